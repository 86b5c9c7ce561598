//! `doctor --attack`: the attack suite on this machine's own sandboxes. Any breach is an exit code of its own.

use std::{
    collections::BTreeSet,
    io::{IsTerminal, stderr},
    sync::Arc,
    time::Duration,
};

use anyhow::bail;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sandbox_attacks::{AttackError, Expected, Group, Outcome, PolicyReport, Progress, Record, Subject};
use sandbox_core::{Backend, Image, Policy};
use serde::Serialize;

use super::{
    Answer,
    args::Doctor,
    exit,
    screen::{self, Look},
    terminal,
};
use crate::{app, config::Settings};

/// What a machine reads.
#[derive(Serialize)]
struct Answered<'a> {
    breaches: usize,
    policies: &'a [PolicyReport],
}

pub(super) async fn attack(settings: Settings, args: Doctor, answer: Answer) -> anyhow::Result<u8> {
    let policies = policies(&settings, &args)?;
    let groups: Vec<Group> = match args.groups.is_empty() {
        true => Group::ALL.to_vec(),
        false => args.groups.iter().copied().collect::<BTreeSet<_>>().into_iter().collect(),
    };
    check_there_are_any(&groups, args.only.as_deref())?;
    let backends = app::backends(&settings)?;
    let (backend, name) = (backends.named(None)?.clone(), backends.default().to_owned());
    let attacking = async {
        let mut reports = Vec::new();
        for policy in policies {
            let report =
                try_policy((backend.clone(), &name), policy, &groups, args.only.as_deref().unwrap_or_default()).await;
            if answer == Answer::Text {
                show(&report);
            }
            reports.push(report);
        }
        reports
    };
    let reports = tokio::select! {
        reports = attacking => reports,
        signal = terminal::stop_asked() => {
            screen::tell("stopped; what was attacked ends with this program");
            return Ok(128 + signal);
        }
    };
    Ok(verdict(&reports, answer))
}

/// A name that is mistyped must not look like walls that hold.
fn check_there_are_any(groups: &[Group], only: Option<&str>) -> anyhow::Result<()> {
    let Some(only) = only else { return Ok(()) };
    if sandbox_attacks::all().any(|attack| groups.contains(&attack.group) && attack.name.contains(only)) {
        return Ok(());
    }
    let groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
    bail!("no attack is called `{only}` (groups: {}). `doctor --attack --json` names them all", groups.join(", "));
}

/// Those that were named, or all that there are.
fn policies(settings: &Settings, args: &Doctor) -> anyhow::Result<Vec<Policy>> {
    if args.policies.is_empty() {
        return Ok(settings.policies().into_iter().filter_map(|(_, policy)| policy.ok()).collect());
    }
    args.policies.iter().map(|name| Ok(settings.policy_at_terminal(name)?)).collect()
}

/// A policy whose sandboxes cannot be made here is said to be skipped, and why.
async fn try_policy(
    (backend, place): (Arc<dyn Backend>, &str),
    policy: Policy,
    groups: &[Group],
    only: &str,
) -> PolicyReport {
    let live = Live::start(&policy.name);
    let (name, image) = (policy.name.clone(), Image::Host);
    let subject = Subject { backend, backend_name: place.to_owned(), image: image.clone(), policy };
    let report = sandbox_attacks::run(subject, groups, only, &|progress| live.show(&progress)).await;
    live.stop();
    report.unwrap_or_else(|error| PolicyReport {
        backend: place.to_owned(),
        policy: name,
        image: image.to_string(),
        failed: !matches!(error, AttackError::Create(_)),
        skipped: Some(error.to_string()),
        memory_held: None,
        records: Vec::new(),
        bystander: None,
        milliseconds: 0,
    })
}

fn show(report: &PolicyReport) {
    let title = format!("\n{} on the backend {}, image {}", report.policy, report.backend, report.image);
    screen::say(&screen::paint(&title, Look::Bold));
    if let Some(why) = &report.skipped {
        let word =
            if report.failed { screen::paint("failed: ", Look::Bad) } else { screen::paint("skipped: ", Look::Weak) };
        screen::say(&format!("{word}{}", screen::harmless(why)));
        return;
    }
    screen::say(&screen::paint("group         held   broke through   allowed   not applicable", Look::Dim));
    for group in Group::ALL {
        let records: Vec<&Record> = report.records.iter().filter(|record| record.group == group).collect();
        if !records.is_empty() {
            show_group(group, &records);
        }
    }
    for record in report.breaches() {
        show_breach(record);
    }
    for record in report.records.iter().filter(|record| is_unpromised(record)) {
        let line = format!("not promised here  {}: {}", record.attack, screen::harmless(&record.detail));
        screen::say(&screen::paint(&line, Look::Weak));
    }
    if let Some(bystander) = report.bystander {
        let line = format!(
            "a command in another sandbox took {:.1} ms before and {:.1} ms while others were being exhausted (95th of 100)",
            bystander.before, bystander.during
        );
        screen::say(&screen::paint(&line, Look::Dim));
    }
}

fn show_group(group: Group, records: &[&Record]) {
    let count = |wanted: &dyn Fn(&Record) -> bool| records.iter().filter(|record| wanted(record)).count();
    let breaches = count(&Record::is_breach);
    let broke = screen::paint(&format!("{breaches:>13}"), if breaches > 0 { Look::Bad } else { Look::Good });
    screen::say(&format!(
        "{:<12}  {:>4}   {broke}   {:>7}   {:>14}",
        group.to_string(),
        count(&|record| record.outcome == Outcome::Held),
        count(&|record| record.outcome == Outcome::BrokeThrough && !record.is_breach()),
        count(&|record| record.outcome == Outcome::NotApplicable),
    ));
}

fn show_breach(record: &Record) {
    let word = if record.outcome == Outcome::Failed { "could not be tried" } else { "BROKE THROUGH" };
    let walls: Vec<String> = record.walls.iter().map(|wall| wall.to_string()).collect();
    screen::say(&format!("{}  {}/{}", screen::paint(word, Look::Bad), record.group, record.attack));
    screen::say(&format!("    what it tries   {}", record.tries));
    screen::say(&format!("    what was seen   {}", screen::harmless(&record.detail)));
    screen::say(&format!("    walls           {}", walls.join(", ")));
}

fn is_unpromised(record: &Record) -> bool {
    record.outcome == Outcome::BrokeThrough && record.expected == Expected::Unpromised
}

fn verdict(reports: &[PolicyReport], answer: Answer) -> u8 {
    let breaches = reports.iter().flat_map(PolicyReport::breaches).count();
    let failed = reports.iter().filter(|report| report.failed).count();
    let tried = reports.iter().filter(|report| report.skipped.is_none()).count();
    let attacks: usize = reports.iter().map(|report| report.records.len()).sum();
    match answer {
        Answer::Json => screen::say_json(&Answered { breaches, policies: reports }),
        Answer::Text if tried == 0 => screen::say(&screen::paint("\nNothing could be attacked.", Look::Bad)),
        Answer::Text if breaches == 0 => {
            let line = format!("\nAll walls held: {}.", count(attacks, tried));
            screen::say(&screen::paint(&line, Look::Good));
        }
        Answer::Text => {
            let line = format!("\n{breaches} of {} broke through.", count(attacks, tried));
            screen::say(&screen::paint(&line, Look::Bad));
        }
    }
    if breaches == 0 && failed == 0 && tried > 0 { 0 } else { exit::FAILED }
}

fn count(attacks: usize, policies: usize) -> String {
    let attacks = if attacks == 1 { "1 attack".to_owned() } else { format!("{attacks} attacks") };
    let policies = if policies == 1 { "1 policy".to_owned() } else { format!("{policies} policies") };
    format!("{attacks} on {policies}")
}

/// Something to look at meanwhile, on a terminal.
struct Live(ProgressBar);

impl Live {
    fn start(policy: &str) -> Self {
        let target = if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {pos}/{len} {msg} ({elapsed})") {
            bar.set_style(style);
        }
        bar.set_prefix(policy.to_owned());
        bar.set_message("making a sandbox");
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    fn show(&self, progress: &Progress<'_>) {
        match progress {
            Progress::Begun(count) => self.0.set_length(*count as u64),
            Progress::Ended(record) => {
                self.0.inc(1);
                self.0.set_message(record.attack.clone());
            }
        }
    }

    fn stop(&self) {
        self.0.finish_and_clear();
    }
}
