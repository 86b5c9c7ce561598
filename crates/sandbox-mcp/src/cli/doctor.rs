//! `doctor`: what works on this machine, what does not, and the exact fix.

use sandbox_core::{Enforcement, Finding, Grade, Held, Probe};

use super::{
    Answer, exit,
    screen::{self, Look},
};
use crate::{app, config::Settings, sandboxes::available_memory};

pub(super) async fn doctor(settings: Settings, answer: Answer) -> anyhow::Result<u8> {
    let mut probe = match app::backend(&settings) {
        Ok(backend) => backend.probe().await,
        Err(error) => unusable(format!("{error:#}")),
    };
    probe.findings.extend(ours(&settings));
    match answer {
        Answer::Json => screen::say_json(&probe),
        Answer::Text => show(&probe, &settings),
    }
    Ok(if probe.usable { 0 } else { exit::FAILED })
}

fn unusable(found: String) -> Probe {
    let finding = Finding { subject: "sandboxes".into(), grade: Grade::Broken, found, fix: None };
    Probe { backend: "linux".into(), usable: false, findings: vec![finding], enforcement: Enforcement::default() }
}

/// What the centre needs beyond the backend.
fn ours(settings: &Settings) -> Vec<Finding> {
    let state = settings.state.display().to_string();
    let mut findings = vec![Finding { subject: "state folder".into(), grade: Grade::Good, found: state, fix: None }];
    if let Some(available) = available_memory() {
        let enough = available >= settings.memory_floor;
        findings.push(Finding {
            subject: "memory left".into(),
            grade: if enough { Grade::Good } else { Grade::Broken },
            found: format!("{available}, of which {} must stay", settings.memory_floor),
            fix: (!enough).then(|| "stop other programs, or lower memory_floor".to_owned()),
        });
    }
    findings
}

fn show(probe: &Probe, settings: &Settings) {
    for finding in &probe.findings {
        let mark = match finding.grade {
            Grade::Good => screen::paint("ok  ", Look::Good),
            Grade::Weak => screen::paint("weak", Look::Weak),
            Grade::Broken => screen::paint("NO  ", Look::Bad),
        };
        screen::say(&format!("{mark}  {:<18} {}", finding.subject, finding.found));
        if let Some(fix) = &finding.fix {
            screen::say(&format!("      {:<18} {} {fix}", "", screen::paint("fix:", Look::Bold)));
        }
    }
    if !probe.enforcement.0.is_empty() {
        let policy = &settings.default_policy.name;
        screen::say(&screen::paint(&format!("\nHow the limits of {policy} are held:"), Look::Bold));
    }
    for (control, holding) in &probe.enforcement.0 {
        let held = match holding.held {
            Held::Kernel => screen::paint("kernel    ", Look::Good),
            Held::Supervised => screen::paint("supervised", Look::Weak),
            Held::None => screen::paint("none      ", Look::Bad),
        };
        screen::say(&format!("{held}  {:<18} {}", control.to_string(), holding.by));
    }
    let verdict = match probe.usable {
        true => screen::paint("\nSandboxes work on this machine.", Look::Good),
        false => screen::paint("\nSandboxes do not work on this machine yet.", Look::Bad),
    };
    screen::say(&verdict);
}
