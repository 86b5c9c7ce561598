//! `agents`: who can work on tasks, and how to get those that cannot yet.

use std::{io::IsTerminal, sync::Mutex};

use indicatif::{ProgressBar, ProgressStyle};
use sandbox_core::Fetching;
use serde::Serialize;

use super::{
    Answer,
    args::{Agents, AgentsCommand},
    screen::{self, Look},
};
use crate::{
    agent::{self, KINDS, Kind, Store},
    config::Settings,
};

/// One agent, as it is shown.
#[derive(Serialize)]
struct Row {
    name: &'static str,
    about: &'static str,
    ready: bool,
    /// Of programs that were fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// Why it can work, or how to get it.
    how: String,
}

pub(super) async fn agents(settings: Settings, args: Agents, answer: Answer) -> anyhow::Result<u8> {
    match args.command {
        None | Some(AgentsCommand::List) => list(&settings, answer),
        Some(AgentsCommand::Install { name, version }) => {
            install(&settings, kind(&name)?, version.as_deref(), answer).await?;
        }
        Some(AgentsCommand::Remove { name }) => remove(&settings, kind(&name)?, answer)?,
    }
    Ok(0)
}

fn list(settings: &Settings, answer: Answer) {
    let store = Store::of(&settings.state);
    let row = |offer: agent::Offer| {
        let version = Kind::named(offer.name).and_then(|kind| store.find(kind)).map(|there| there.version);
        let (ready, how) = match offer.agent {
            Ok(ready) => (true, ready.why),
            Err(how) => (false, how),
        };
        Row { name: offer.name, about: offer.about, ready, version, how }
    };
    let rows: Vec<Row> = agent::offers(settings).into_iter().map(row).collect();
    if answer == Answer::Json {
        return screen::say_json(&rows);
    }
    screen::say(&screen::paint(
        &format!("{:<12} {:<6} {:<10} {}", "AGENT", "READY", "VERSION", "WHAT IT IS"),
        Look::Bold,
    ));
    for row in &rows {
        let (word, look) = if row.ready { ("yes", Look::Good) } else { ("no", Look::Weak) };
        let version = row.version.as_deref().unwrap_or("-");
        screen::say(&format!(
            "{:<12} {} {version:<10} {}",
            row.name,
            screen::paint(&format!("{word:<6}"), look),
            row.about
        ));
        let how = if row.ready { row.how.clone() } else { format!("to get it: {}", row.how) };
        screen::say(&screen::paint(&format!("{:<30} {how}", ""), Look::Dim));
    }
}

async fn install(
    settings: &Settings,
    kind: &'static Kind,
    version: Option<&str>,
    answer: Answer,
) -> anyhow::Result<()> {
    let shown = Shown::new(answer);
    let installed = agent::install(settings, kind, version, &|fetching| shown.show(&fetching)).await;
    shown.bar.finish_and_clear();
    let installed = installed?;
    match answer {
        Answer::Json => screen::say_json(&serde_json::json!({ "name": kind.name, "version": installed.version })),
        Answer::Text => {
            screen::say(&format!("{} {} is installed", kind.name, installed.version));
            screen::tell(&format!("use it: sandbox-mcp run \"…\" --agent {}", kind.name));
        }
    }
    Ok(())
}

fn remove(settings: &Settings, kind: &Kind, answer: Answer) -> anyhow::Result<()> {
    let removed = Store::of(&settings.state).remove(kind)?;
    match answer {
        Answer::Json => screen::say_json(&serde_json::json!({ "name": kind.name, "removed": removed })),
        Answer::Text if removed => screen::say(&format!("{} is removed", kind.name)),
        Answer::Text => screen::say(&format!("{} was not installed", kind.name)),
    }
    Ok(())
}

fn kind(name: &str) -> anyhow::Result<&'static Kind> {
    let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
    let names = names.join(", ");
    Kind::named(name)
        .ok_or_else(|| anyhow::anyhow!("`{}` is not an agent that can be installed: {names}", screen::harmless(name)))
}

/// A bar on a terminal; elsewhere a line for each step.
struct Shown {
    bar: ProgressBar,
    last: Mutex<String>,
}

impl Shown {
    fn new(answer: Answer) -> Self {
        let bar = match answer == Answer::Text && std::io::stderr().is_terminal() {
            true => ProgressBar::no_length(),
            false => ProgressBar::hidden(),
        };
        let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, last: Mutex::default() }
    }

    fn show(&self, fetching: &Fetching) {
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *last != fetching.step {
            last.clone_from(&fetching.step);
            self.bar.set_message(screen::harmless(&fetching.step));
            if self.bar.is_hidden() {
                screen::tell(&screen::harmless(&fetching.step));
            }
        }
        if let Some(total) = fetching.total {
            self.bar.set_length(total);
        }
        self.bar.set_position(fetching.done);
    }
}
