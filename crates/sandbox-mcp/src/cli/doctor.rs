//! `doctor`: what works on this machine, what does not, and the exact fix.

use std::collections::BTreeSet;

use sandbox_core::{Control, Finding, Grade, Held, Outlook, Policy, Probe};

use super::{
    Answer, exit,
    screen::{self, Look},
};
use crate::{app, config::Settings, sandboxes::available_memory};

pub(super) async fn doctor(settings: Settings, answer: Answer) -> anyhow::Result<u8> {
    let (policies, broken) = policies(&settings);
    let mut probe = match app::backend(&settings) {
        Ok(backend) => backend.probe(&policies).await,
        Err(error) => unusable(format!("{error:#}")),
    };
    probe.findings.extend(ours(&settings));
    probe.findings.extend(broken);
    match answer {
        Answer::Json => screen::say_json(&probe),
        Answer::Text => show(&probe, &settings),
    }
    Ok(if probe.usable { 0 } else { exit::FAILED })
}

/// All policies, and what is wrong with those that cannot be used.
fn policies(settings: &Settings) -> (Vec<Policy>, Vec<Finding>) {
    let (mut good, mut broken) = (Vec::new(), Vec::new());
    for (name, policy) in settings.policies() {
        match policy {
            Ok(policy) => good.push(policy),
            Err(error) => {
                let subject = format!("policy {name}");
                broken.push(Finding { subject, grade: Grade::Weak, found: error.to_string(), fix: None });
            }
        }
    }
    (good, broken)
}

fn unusable(found: String) -> Probe {
    let finding = Finding { subject: "sandboxes".into(), grade: Grade::Broken, found, fix: None };
    Probe { backend: "linux".into(), usable: false, findings: vec![finding], outlooks: Vec::new() }
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
    let default = &settings.default_policy.name;
    if let Some(outlook) = probe.outlooks.iter().find(|outlook| outlook.policy == *default) {
        screen::say(&screen::paint(
            &format!("\nHow the limits and walls of {default}, the default policy, are held:"),
            Look::Bold,
        ));
        for (control, holding) in &outlook.enforcement.0 {
            screen::say(&format!("{}  {:<18} {}", in_full(holding.held), control.to_string(), holding.by));
        }
    }
    show_matrix(probe);
    let verdict = match probe.usable {
        true => screen::paint("\nSandboxes work on this machine.", Look::Good),
        false => screen::paint("\nSandboxes do not work on this machine yet.", Look::Bad),
    };
    screen::say(&verdict);
}

/// A row for every policy, a column for every control.
fn show_matrix(probe: &Probe) {
    let controls: BTreeSet<Control> =
        probe.outlooks.iter().flat_map(|outlook| outlook.enforcement.0.keys()).copied().collect();
    if controls.is_empty() {
        return;
    }
    let title = format!("\nEvery policy on the backend {}, with the image `host`:", probe.backend);
    screen::say(&screen::paint(&title, Look::Bold));
    let widest = probe.outlooks.iter().map(|outlook| outlook.policy.len()).max().unwrap_or(0);
    let heads: Vec<String> = controls.iter().map(|control| control.to_string()).collect();
    screen::say(&format!("{:widest$}  {}", "", heads.join("  ")));
    for Outlook { policy, enforcement, refused } in &probe.outlooks {
        let cells = controls
            .iter()
            .zip(&heads)
            .map(|(control, head)| in_a_letter(enforcement.0.get(control).map(|holding| holding.held), head.len()));
        let row = match refused {
            Some(why) => screen::paint(&format!("not here: {why}"), Look::Bad),
            None => cells.collect::<Vec<_>>().join("  "),
        };
        screen::say(&format!("{policy:widest$}  {row}"));
    }
    let legend = "K held by the kernel · S supervised: we watch, and stop what goes over · - held by nobody";
    screen::say(&screen::paint(legend, Look::Dim));
}

fn in_full(held: Held) -> String {
    match held {
        Held::Kernel => screen::paint("kernel    ", Look::Good),
        Held::Supervised => screen::paint("supervised", Look::Weak),
        Held::None => screen::paint("none      ", Look::Bad),
    }
}

fn in_a_letter(held: Option<Held>, width: usize) -> String {
    let (letter, look) = match held {
        Some(Held::Kernel) => ("K", Look::Good),
        Some(Held::Supervised) => ("S", Look::Weak),
        Some(Held::None) => ("-", Look::Bad),
        None => ("", Look::Dim),
    };
    screen::paint(&format!("{letter:<width$}"), look)
}
