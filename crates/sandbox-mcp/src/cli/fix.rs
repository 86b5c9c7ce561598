//! `doctor --fix`: puts right what can be put right on this machine, and shows what it did.

use sandbox_linux::{Repair, RepairOutcome};

use super::{
    Answer, exit,
    screen::{self, Look},
};
use crate::config::{self, Settings};

pub(super) fn fix(settings: &Settings, answer: Answer) -> anyhow::Result<u8> {
    config::prepare_state(&settings.state)?;
    let repairs = sandbox_linux::repair(&settings.state.join("fix"));
    match answer {
        Answer::Json => screen::say_json(&repairs),
        Answer::Text if repairs.is_empty() => {
            screen::say("There is nothing to fix. `sandbox-mcp doctor` shows everything.")
        }
        Answer::Text => repairs.iter().for_each(show),
    }
    let done = repairs.iter().all(|repair| matches!(repair.outcome, RepairOutcome::Done(_)));
    Ok(if done { 0 } else { exit::FAILED })
}

fn show(repair: &Repair) {
    let (mark, note, lines) = match &repair.outcome {
        RepairOutcome::Done(done) => (screen::paint("done", Look::Good), "", done.as_slice()),
        RepairOutcome::Commands(commands) => {
            (screen::paint("todo", Look::Weak), ": only root can load it; type this", commands.as_slice())
        }
        RepairOutcome::Failed(why) => (screen::paint("NO  ", Look::Bad), "", std::slice::from_ref(why)),
    };
    screen::say(&format!("{mark}  {}{note}", repair.subject));
    lines.iter().for_each(|line| screen::say(&format!("      {line}")));
}
