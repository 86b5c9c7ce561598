//! `doctor`: what works on this machine, what does not, and the exact fix.

use std::collections::BTreeSet;

use sandbox_core::{Control, Finding, Grade, Held, Outlook, Policy, Probe};

use super::{
    Answer, exit,
    screen::{self, Look},
};
use crate::{
    agent::{self, MOCK},
    app,
    config::{ConfigError, SecretSetting, Settings},
    sandboxes::{available_memory, secrets},
};

/// Where what was found begins.
const MARGIN: usize = 30;

pub(super) async fn doctor(settings: Settings, answer: Answer) -> anyhow::Result<u8> {
    let probe = look(&settings).await;
    match answer {
        Answer::Json => screen::say_json(&probe),
        Answer::Text => show(&probe, &settings),
    }
    Ok(if probe.usable { 0 } else { exit::FAILED })
}

/// Everything that was found, ours and the backend's. Where the default policy cannot be had, nothing is usable.
pub(super) async fn look(settings: &Settings) -> Probe {
    let (policies, broken) = policies(settings);
    let mut probe = match app::backends(settings).and_then(|all| Ok(all.named(None)?.clone())) {
        Ok(backend) => backend.probe(&policies).await,
        Err(error) => unusable(format!("{error:#}")),
    };
    probe.findings.extend(others(settings).await);
    probe.findings.extend(ours(settings));
    probe.findings.extend(broken);
    probe.findings.extend(of_engine(settings).await);
    for secret in &settings.secrets {
        let found = of_secret(secret).await;
        probe.usable &= found.grade != Grade::Broken || !secret.is_for(&settings.default_policy);
        probe.findings.push(found);
    }
    for Outlook { policy, refused, .. } in &probe.outlooks {
        let Some(why) = refused else { continue };
        probe.findings.push(finding(&format!("policy {policy}"), Grade::Broken, why.clone(), None));
        probe.usable &= *policy != settings.default_policy.name;
    }
    probe
}

/// What can be chosen instead of the default backend; nothing about what is not installed.
async fn others(settings: &Settings) -> Option<Finding> {
    if settings.backend == sandbox_oci::BACKEND {
        return None;
    }
    let found = app::runtime(settings).ok()?.probe(&[]).await;
    let installed = found.findings.iter().any(|finding| finding.subject == "runtime");
    let named = settings.oci_runtime.is_some();
    let told =
        found.findings.into_iter().find(|finding| finding.grade == Grade::Broken || finding.subject == "start")?;
    // Nobody chose it, so nothing is broken for anybody.
    let grade = if told.grade == Grade::Broken { Grade::Weak } else { told.grade };
    (installed || named).then(|| Finding { subject: "backend oci".to_owned(), grade, ..told })
}

/// All policies, and what is wrong with those that cannot be used.
fn policies(settings: &Settings) -> (Vec<Policy>, Vec<Finding>) {
    let (mut good, mut broken) = (Vec::new(), Vec::new());
    for (name, policy) in settings.policies() {
        let subject = format!("policy {name}");
        match policy {
            Ok(policy) => good.push(policy),
            Err(ConfigError::Policy { file, why }) => {
                let fix = Some(format!("correct {}", file.display()));
                broken.push(finding(&subject, Grade::Broken, why, fix));
            }
            Err(error) => broken.push(finding(&subject, Grade::Broken, error.to_string(), None)),
        }
    }
    for (file, why) in settings.ignored_policies() {
        let found = format!("{} is ignored: {why}", file.display());
        broken.push(finding("policy file", Grade::Weak, found, Some("give the file another name".to_owned())));
    }
    (good, broken)
}

/// Where a secret cannot be read no sandbox is made that may use it.
async fn of_secret(secret: &SecretSetting) -> Finding {
    let (subject, policies) = (format!("secret {}", secret.name), secret.policies_in_words());
    match secrets::check(secret).await {
        Ok(()) => finding(&subject, Grade::Good, format!("can be read; for {policies}"), None),
        Err(why) => {
            let fix = format!("correct [secrets.{}] in the settings, or what it names", secret.name);
            let found = format!("{why}; no sandbox can be made with {policies}");
            finding(&subject, Grade::Broken, found, Some(fix))
        }
    }
}

/// What there is to say of a container engine, where there is one or somebody wants one.
async fn of_engine(settings: &Settings) -> Vec<Finding> {
    // Where sandboxes are made in one, it was looked at already.
    if settings.backend == sandbox_docker::BACKEND {
        return Vec::new();
    }
    let Ok(backend) = app::engine(settings) else { return Vec::new() };
    let probe = backend.probe(&[]).await;
    let wanted = std::env::var_os("DOCKER_HOST").is_some();
    let findings = if probe.usable || wanted { probe.findings } else { Vec::new() };
    // Nobody has to have one, and rows about it are not about the sandboxes that are made here.
    let beside = |row: Finding| Finding {
        grade: if row.grade == Grade::Broken { Grade::Weak } else { row.grade },
        subject: if row.subject.contains("engine") { row.subject } else { format!("engine: {}", row.subject) },
        ..row
    };
    findings.into_iter().map(beside).collect()
}

fn unusable(found: String) -> Probe {
    let findings = vec![finding("sandboxes", Grade::Broken, found, None)];
    Probe { backend: "linux".into(), usable: false, findings, outlooks: Vec::new() }
}

fn finding(subject: &str, grade: Grade, found: String, fix: Option<String>) -> Finding {
    Finding { subject: subject.to_owned(), grade, found, fix }
}

/// Who would work on a task that names nobody. Sandboxes do without a model, so that is nothing to fix.
fn agents(settings: &Settings) -> Finding {
    let name = match agent::choose(settings, None) {
        Ok(chosen) => chosen.agent.name(),
        Err(error) => return finding("agents", Grade::Weak, error.to_string(), None),
    };
    let offers = agent::offers(settings);
    if name == MOCK && settings.agent != MOCK {
        let how = offers.into_iter().find_map(|offer| offer.agent.err()).unwrap_or_default();
        let found = format!("no model is set, so tasks go to {MOCK}, which only pretends: {how} (docs/agents.md)");
        return finding("agents", Grade::Weak, found, None);
    }
    let own = offers.into_iter().find(|offer| offer.name == name).and_then(|offer| offer.agent.ok());
    let why = own.map(|ready| ready.why).unwrap_or_default();
    finding("agents", Grade::Good, format!("tasks go to {name}: {why}"), None)
}

/// What the centre needs beyond the backend.
fn ours(settings: &Settings) -> Vec<Finding> {
    let state = finding("state folder", Grade::Good, settings.state.display().to_string(), None);
    let mut findings = vec![state, agents(settings)];
    if let Some(available) = available_memory() {
        let enough = available >= settings.memory_floor;
        let grade = if enough { Grade::Good } else { Grade::Broken };
        let found = format!("{available}, of which {} must stay", settings.memory_floor);
        let fix = (!enough).then(|| "stop other programs, or lower memory_floor".to_owned());
        findings.push(finding("memory left", grade, found, fix));
    }
    findings
}

fn show(probe: &Probe, settings: &Settings) {
    probe.findings.iter().for_each(show_finding);
    let default = &settings.default_policy.name;
    let outlook = probe.outlooks.iter().find(|outlook| outlook.policy == *default && outlook.refused.is_none());
    if let Some(outlook) = outlook {
        screen::say(&screen::paint(
            &format!("\nHow the limits and walls of {default}, the default policy, are held:"),
            Look::Bold,
        ));
        for (control, holding) in &outlook.enforcement.0 {
            let by = screen::hanging(&holding.by, MARGIN + 1);
            screen::say(format!("{}  {:<18} {by}", in_full(holding.held), control.to_string()).trim_end());
        }
    }
    show_matrix(probe);
    screen::say(&verdict(probe, default));
}

/// One line, or more on a terminal that is too narrow, with the fix below it.
pub(super) fn show_finding(finding: &Finding) {
    // The words that answers in JSON have.
    let mark = match finding.grade {
        Grade::Good => screen::paint("good  ", Look::Good),
        Grade::Weak => screen::paint("weak  ", Look::Weak),
        Grade::Broken => screen::paint("broken", Look::Bad),
    };
    screen::say(&format!(
        "{mark}  {:<21} {}",
        finding.subject,
        screen::hanging(&screen::harmless(&finding.found), MARGIN)
    ));
    if let Some(fix) = &finding.fix {
        let fix = screen::hanging(&screen::harmless(fix), MARGIN + 5);
        screen::say(&format!("{:MARGIN$}{} {fix}", "", screen::paint("fix:", Look::Bold)));
    }
}

fn verdict(probe: &Probe, default: &str) -> String {
    let refused: Vec<&str> = probe.outlooks.iter().filter(|o| o.refused.is_some()).map(|o| o.policy.as_str()).collect();
    match (probe.usable, refused.as_slice()) {
        (true, []) => screen::paint("\nSandboxes work on this machine.", Look::Good),
        (true, some) => {
            let line = format!("\nSandboxes work on this machine, but not with {}.", some.join(", "));
            screen::paint(&line, Look::Weak)
        }
        (false, some) if some.contains(&default) || probe.findings.iter().any(is_broken_secret) => {
            let line = format!("\nNo sandbox can be made with {default}, the default policy: see above.");
            screen::paint(&line, Look::Bad)
        }
        (false, _) => screen::paint("\nSandboxes do not work on this machine yet.", Look::Bad),
    }
}

fn is_broken_secret(finding: &Finding) -> bool {
    finding.grade == Grade::Broken && finding.subject.starts_with("secret ")
}

/// A row for every policy, a column for every control; in as many tables as the screen's width makes of it.
fn show_matrix(probe: &Probe) {
    let controls: BTreeSet<Control> =
        probe.outlooks.iter().flat_map(|outlook| outlook.enforcement.0.keys()).copied().collect();
    if controls.is_empty() {
        return;
    }
    let image = if probe.backend == sandbox_docker::BACKEND { "" } else { ", with the image `host`" };
    let title = format!("\nEvery policy on the backend {}{image}:", probe.backend);
    screen::say(&screen::paint(&title, Look::Bold));
    let widest = probe.outlooks.iter().map(|outlook| outlook.policy.len()).max().unwrap_or(0);
    let controls: Vec<Control> = controls.into_iter().collect();
    let room = screen::columns().unwrap_or(80).saturating_sub(widest);
    for (number, columns) in tables(&controls, room).into_iter().enumerate() {
        if number > 0 {
            screen::say("");
        }
        let heads: Vec<String> = columns.iter().map(|control| head(*control)).collect();
        screen::say(&format!("{:widest$}  {}", "", heads.join("  ")));
        for Outlook { policy, enforcement, refused } in &probe.outlooks {
            let cell = |control: &Control| {
                in_a_letter(enforcement.0.get(control).map(|holding| holding.held), head(*control).len())
            };
            let row = match refused {
                Some(_) => screen::paint("not here", Look::Bad),
                None => columns.iter().map(cell).collect::<Vec<_>>().join("  "),
            };
            screen::say(format!("{policy:widest$}  {row}").trim_end());
        }
    }
    screen::say(&screen::paint("K  held by the kernel", Look::Dim));
    screen::say(&screen::paint("S  supervised: we watch, and stop what goes over", Look::Dim));
    screen::say(&screen::paint("-  held by nobody", Look::Dim));
}

/// The controls, cut into rows of columns that fit in this width.
fn tables(controls: &[Control], width: usize) -> Vec<&[Control]> {
    let (mut tables, mut begin, mut used) = (Vec::new(), 0, 0);
    for (at, control) in controls.iter().enumerate() {
        let column = head(*control).len() + 2;
        if used + column > width && at > begin {
            tables.push(&controls[begin..at]);
            (begin, used) = (at, 0);
        }
        used += column;
    }
    tables.push(&controls[begin..]);
    tables
}

/// A control in one short word.
fn head(control: Control) -> String {
    match control {
        Control::ExecutorIdentity => "executor".to_owned(),
        Control::SecurityModule => "security".to_owned(),
        other => other.to_string(),
    }
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
    let blanks = width.saturating_sub(letter.len());
    match letter {
        "" => " ".repeat(width),
        letter => format!("{}{:blanks$}", screen::paint(letter, look), ""),
    }
}
