//! `list`: the user's sandboxes, of all servers.

use super::{
    Answer,
    screen::{self, Look},
};
use crate::{
    app::App,
    config::Settings,
    sandboxes::{State, Summary},
};

pub(super) async fn list(settings: Settings, answer: Answer) -> anyhow::Result<u8> {
    let app = App::reach(settings)?;
    let list = app.sandboxes.list_all().await;
    match answer {
        Answer::Json => screen::say_json(&list),
        Answer::Text if list.is_empty() => screen::tell("you have no sandboxes"),
        Answer::Text => {
            let head = format!(
                "{:<38} {:<11} {:<14} {:>5} {:>5} {:>8}  {}",
                "SESSION", "STATE", "POLICY", "AGE", "IDLE", "ENDS IN", "IMAGE"
            );
            screen::say(&screen::paint(&head, Look::Bold));
            list.iter().for_each(|summary| screen::say(&line(summary)));
        }
    }
    Ok(0)
}

fn line(summary: &Summary) -> String {
    let (state, look) = match &summary.state {
        State::Running => ("running", Look::Good),
        State::Frozen { .. } => ("frozen", Look::Bad),
        State::Unattended => ("unattended", Look::Weak),
        State::Ended { .. } => ("ended", Look::Weak),
    };
    let ends = summary.expires_in.map_or("never".to_owned(), screen::short_time);
    format!(
        "{:<38} {} {:<14} {:>5} {:>5} {ends:>8}  {}",
        summary.session_id.as_str(),
        screen::paint(&format!("{state:<11}"), look),
        screen::harmless(&summary.policy),
        screen::short_time(summary.age),
        screen::short_time(summary.idle),
        screen::harmless(&summary.image.to_string()),
    )
}
