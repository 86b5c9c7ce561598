//! `doctor --fix`: puts right what can be put right on this machine, and shows what it did.

use sandbox_core::{Finding, Grade};
use sandbox_linux::{Repair, RepairOutcome};
use serde::Serialize;

use super::{
    Answer, doctor, exit,
    screen::{self, Look},
};
use crate::config::{self, Settings};

/// What a machine reads.
#[derive(Serialize)]
struct Answered<'a> {
    repairs: &'a [Repair],
    /// What only a person can put right.
    by_hand: &'a [Finding],
}

pub(super) async fn fix(settings: &Settings, answer: Answer) -> anyhow::Result<u8> {
    config::prepare_state(&settings.state)?;
    let repairs = sandbox_linux::repair(&settings.state.join("fix"));
    // Looked at afterwards, so that what was put right is not said again; what this command does was tried just now.
    let mut by_hand = doctor::look(settings).await.findings;
    by_hand.retain(|finding| {
        let ours = finding.fix.as_ref().is_none_or(|fix| fix.contains("doctor --fix"));
        finding.grade != Grade::Good && !ours
    });
    match answer {
        Answer::Json => screen::say_json(&Answered { repairs: &repairs, by_hand: &by_hand }),
        Answer::Text => {
            repairs.iter().for_each(show);
            match (repairs.as_slice(), by_hand.as_slice()) {
                ([], []) => screen::say("There is nothing to fix. `sandbox-mcp doctor` shows everything."),
                (_, []) => {}
                (tried, left) => {
                    let nothing = if tried.is_empty() { "There is nothing to fix automatically. " } else { "" };
                    screen::say(&format!("{nothing}By hand:"));
                    left.iter().for_each(doctor::show_finding);
                }
            }
        }
    }
    let done = repairs.iter().all(|repair| matches!(repair.outcome, RepairOutcome::Done(_)));
    let works = by_hand.iter().all(|finding| finding.grade != Grade::Broken);
    Ok(if done && works { 0 } else { exit::FAILED })
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
