//! `rm`: ends sandboxes, whichever server looks after them.

use sandbox_core::SessionId;
use serde_json::json;

use super::{Answer, args::Rm, exit, screen};
use crate::{
    app::{self, App},
    config::Settings,
    sandboxes::State,
};

pub(super) async fn rm(settings: Settings, args: Rm, answer: Answer) -> anyhow::Result<u8> {
    let app = App::reach(settings)?;
    let chosen: Vec<SessionId> = if args.all || args.ended {
        let mine = app.sandboxes.list_all().await.into_iter();
        mine.filter(|summary| args.all || matches!(summary.state, State::Ended { .. }))
            .map(|summary| summary.session_id)
            .collect()
    } else {
        args.sessions
    };
    let (mut failed, mut told) = (0, Vec::new());
    for id in &chosen {
        let removed = app.sandboxes.remove(&app.owner_of(id), id).await;
        failed += usize::from(removed.is_err());
        match (answer, &removed) {
            (Answer::Json, Ok(())) => told.push(json!({ "session_id": id, "status": "removed" })),
            (Answer::Json, Err(error)) => {
                let error = screen::error_in_json(&error.to_string());
                told.push(json!({ "session_id": id, "status": "failed", "error": error["error"] }));
            }
            (Answer::Text, Ok(())) => screen::say(&format!("removed {id}")),
            (Answer::Text, Err(error)) => screen::tell(&error.to_string()),
        }
    }
    match answer {
        Answer::Json => screen::say_json(&told),
        Answer::Text if chosen.is_empty() => screen::tell("there is nothing to remove"),
        Answer::Text => {}
    }
    app.sandboxes.close().await;
    empty_trash(&app.settings);
    Ok(if failed == 0 { 0 } else { exit::FAILED })
}

/// Files of other ids are left in the trash by an ordinary user; a launcher may delete them, and goes on by itself.
fn empty_trash(settings: &Settings) {
    let left = std::fs::read_dir(settings.state.join("trash")).is_ok_and(|mut entries| entries.next().is_some());
    if left && let Err(error) = app::embedded(settings) {
        screen::tell(&format!("some files wait in the trash of the state folder: {error:#}"));
    }
}
