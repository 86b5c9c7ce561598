//! `pull`, `images` and `rmi`: images of the embedded backend on this machine.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sandbox_core::{Bytes, Fetching};
use sandbox_image::{ImageError, Images, Listed, Record, Source};
use serde_json::{Value, json};

use super::{
    Answer,
    args::{Pull, Rmi},
    exit,
    pulling::Pulling,
    screen::{self, Look},
    terminal,
};
use crate::config::{self, Settings};

/// So much of a digest tells images apart by eye.
const SHORT: usize = 12;

fn open(settings: &Settings) -> anyhow::Result<Images> {
    config::prepare_state(&settings.state)?;
    Ok(sandbox_linux::open_images(&settings.state, settings.images.clone())?)
}

pub(super) async fn pull(settings: Settings, args: Pull, answer: Answer) -> anyhow::Result<u8> {
    let source = Source::parse(&args.source).map_err(advised)?;
    let images = open(&settings)?;
    let shown = Pulling::new(answer == Answer::Text);
    let tell = |fetching: Fetching| shown.show(&fetching);
    let records = tokio::select! {
        records = images.pull(&source, args.name.as_ref(), &tell) => records.map_err(advised)?,
        signal = terminal::stop_asked() => return Ok(128 + signal),
    };
    drop(shown);
    match answer {
        Answer::Json => screen::say_json(&records.iter().map(in_json).collect::<Vec<_>>()),
        Answer::Text => records.iter().for_each(|record| {
            screen::say(&format!("{} {} {}", record.name, record.digest, Bytes(record.size)));
        }),
    }
    Ok(0)
}

pub(super) async fn images(settings: Settings, answer: Answer) -> anyhow::Result<u8> {
    let listed = open(&settings)?.list();
    match answer {
        Answer::Json => screen::say_json(&listed.iter().map(listed_in_json).collect::<Vec<_>>()),
        Answer::Text if listed.is_empty() => screen::tell("there are no images; `sandbox-mcp pull NAME` brings one"),
        Answer::Text => {
            let width = listed.iter().map(|image| image.record.name.len()).max().unwrap_or(0).max(4);
            let head = format!(
                "{:<width$} {:<SHORT$} {:>10} {:>7} {:>7}  USED BY",
                "NAME", "DIGEST", "SIZE", "PULLED", "USED"
            );
            screen::say(&screen::paint(&head, Look::Bold));
            listed.iter().for_each(|image| screen::say(&line(image, width)));
        }
    }
    Ok(0)
}

fn line(image: &Listed, width: usize) -> String {
    let Listed { record, users, used } = image;
    let by = match users.as_slice() {
        [] => "-".to_owned(),
        [only] => only.to_string(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    };
    let pulled = UNIX_EPOCH + Duration::from_secs(record.pulled);
    format!(
        "{:<width$} {:<SHORT$} {:>10} {:>7} {:>7}  {by}",
        screen::harmless(&record.name),
        &record.digest.hex()[..SHORT],
        Bytes(record.size).to_string(),
        ago(pulled),
        ago(*used)
    )
}

fn ago(time: SystemTime) -> String {
    screen::short_time(SystemTime::now().duration_since(time).unwrap_or_default())
}

fn in_json(record: &Record) -> Value {
    json!({
        "name": record.name,
        "digest": record.digest,
        "size_bytes": record.size,
        "layers": record.layers.len(),
        "pulled": screen::date(record.pulled * 1000),
    })
}

fn listed_in_json(image: &Listed) -> Value {
    let mut value = in_json(&image.record);
    let used = image.used.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    value["used"] = json!(screen::date(used as u64));
    value["used_by"] = json!(image.users);
    value
}

pub(super) async fn rmi(settings: Settings, args: Rmi, answer: Answer) -> anyhow::Result<u8> {
    let images = open(&settings)?;
    let (mut failed, mut told) = (0, Vec::new());
    for name in &args.images {
        let removed = images.remove(name);
        failed += usize::from(removed.is_err());
        match (answer, removed) {
            (Answer::Json, Ok(record)) => told.push(json!({ "name": record.name, "status": "removed" })),
            (Answer::Json, Err(error)) => {
                let error = screen::error_in_json(&error.advice());
                told.push(json!({ "name": name, "status": "failed", "error": error["error"] }));
            }
            (Answer::Text, Ok(record)) => screen::say(&format!("removed {}", record.name)),
            (Answer::Text, Err(error)) => screen::tell(&error.advice()),
        }
    }
    if answer == Answer::Json {
        screen::say_json(&told);
    }
    Ok(if failed == 0 { 0 } else { exit::FAILED })
}

fn advised(error: ImageError) -> anyhow::Error {
    anyhow::anyhow!(error.advice())
}
