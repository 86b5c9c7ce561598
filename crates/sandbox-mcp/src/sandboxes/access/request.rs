//! What can be asked for in advance, and what the answer can be: a question to a person, or at once why not.
//!
//! Only what can change while a sandbox lives is ever asked about. Nothing passes the operator's ceiling; private
//! addresses and secrets are not to be had by asking.

use std::time::Duration;

use sandbox_core::{Bytes, Control, Denial, Policy, Reason, exec::Exec, policy::Root};

use super::{
    Span, Wish,
    grants::Grants,
    hosts::Wanted,
    judge::{self, Liftable},
    limits,
};
use crate::{config::Settings, sandboxes::way_out::rules};
use sandbox_egress::{Reader, Rules};

/// Something that is asked for in advance.
#[derive(Clone, Debug)]
pub struct AccessRequest {
    /// What kind of thing.
    pub kind: AccessKind,
    /// Which one: a command, `timeout=900`, `memory=8GiB`, a host.
    pub target: String,
    /// Why, in the asker's own words.
    pub reason: Option<String>,
    /// For how long.
    pub span: Span,
}

/// Kinds of things that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum AccessKind {
    Command,
    Limit,
    Network,
    Filesystem,
    Privilege,
    Secret,
}

/// What is to be done about a request.
#[derive(Debug)]
pub enum Plan {
    /// Somebody must say yes.
    Ask(Wish),
    /// Nobody needs to be asked; why.
    Already(String),
    /// It names nothing that could be asked for; what to name.
    Unclear(String),
    /// It cannot be had.
    Refuse(Box<Denial>),
}

/// Looks at a request. Nothing has been asked yet.
pub fn plan(request: &AccessRequest, policy: &Policy, settings: &Settings, grants: &Grants, reader: Reader) -> Plan {
    let asked = Asked { target: &request.target, policy, settings, reader };
    match request.kind {
        AccessKind::Command => asked.command(grants),
        AccessKind::Limit => asked.limit(grants),
        AccessKind::Network => asked.network(grants),
        AccessKind::Filesystem => asked.at_creation(
            "filesystem",
            "which places may be written is fixed when a sandbox is made",
            "Write to /workspace, HOME (/home/sandbox) or /tmp",
            |policy| policy.filesystem.root == Root::Writable,
        ),
        AccessKind::Privilege => asked.at_creation(
            "privileges",
            "what commands may ask of the kernel is fixed when a sandbox is made",
            "Do it without",
            |other| !other.privileges.capabilities.is_within(policy.privileges.capabilities),
        ),
        AccessKind::Secret => asked.refuse(
            Reason::NeverGranted,
            "secrets",
            "secrets are never given to a sandbox by asking".to_owned(),
            "Do the work without it, or let the person who has it do that part".to_owned(),
        ),
    }
}

/// A policy that may be used here and gives something; the sandbox's own one first, then from narrow to wide.
pub fn policy_giving(settings: &Settings, own: &Policy, gives: impl Fn(&Policy) -> bool) -> Option<String> {
    const NARROW_FIRST: [&str; 5] = ["full_isolation", "yolo-1", "yolo-2", "yolo-3", "yolo-4"];
    let all = settings.policies();
    let names = [own.name.as_str()].into_iter().chain(NARROW_FIRST).chain(all.iter().map(|(name, _)| name.as_str()));
    let usable = |name: &str| settings.policy_for_model(Some(name)).ok();
    names.filter_map(usable).find(gives).map(|policy| policy.name)
}

/// Whether a rule is the operator's own, above every policy.
pub fn is_operators(rule: &str, settings: &Settings) -> bool {
    settings.ceiling.as_ref().is_some_and(|ceiling| ceiling.commands.deny.contains(rule))
}

/// The longest that any command may run, whoever says yes.
pub fn longest(settings: &Settings) -> Duration {
    let ceiling = settings.ceiling.as_ref().map_or(settings.max_timeout, |ceiling| ceiling.limits.run);
    settings.max_timeout.min(ceiling)
}

/// Who lets commands of this policy run for no longer than this.
pub fn lowered_by(most: Duration, policy: &Policy, settings: &Settings) -> String {
    match &settings.ceiling {
        _ if most > policy.limits.run => "as it was granted".to_owned(),
        _ if most >= settings.max_timeout => "max_timeout_seconds in the settings".to_owned(),
        Some(ceiling) if most >= ceiling.limits.run => format!("the ceiling `{}`", ceiling.name),
        _ => format!("the policy `{}`", policy.name),
    }
}

struct Asked<'a> {
    target: &'a str,
    policy: &'a Policy,
    settings: &'a Settings,
    reader: Reader,
}

impl Asked<'_> {
    fn refuse(&self, reason: Reason, rule: &str, message: String, how_to_ask: String) -> Plan {
        let target = super::question::shown(self.target, (240, 60));
        let (rule, level) = (rule.to_owned(), self.policy.name.clone());
        Plan::Refuse(Box::new(Denial { reason, target, rule, level, message, how_to_ask, verdict: None }))
    }

    fn command(&self, grants: &Grants) -> Plan {
        let judged = judge::judge(&Exec::shell(self.target), self.policy);
        let open: Vec<_> =
            judged.objections.iter().filter(|objection| !grants.lift(&objection.rule, self.target)).collect();
        if let Some(held) = open.iter().find(|objection| objection.liftable == Liftable::No) {
            let message = "the kernel keeps this command from running, from the sandbox's beginning".to_owned();
            return self.refuse(Reason::NeedsNewSandbox, &held.rule, message, held.denial.how_to_ask.clone());
        }
        if let Some(held) = open.iter().find(|objection| is_operators(&objection.rule, self.settings)) {
            let message = "the operator of this server denies this command to everybody".to_owned();
            return self.refuse(Reason::Ceiling, &held.rule, message, "Do it another way".to_owned());
        }
        let rules: Vec<String> = open.into_iter().map(|objection| objection.rule.clone()).collect();
        match (rules.is_empty(), judged.unknown) {
            (false, _) => Plan::Ask(Wish::Command { rules }),
            (true, None) => Plan::Already("the policy lets this command run: just run it".to_owned()),
            (true, Some(unknown)) => {
                Plan::Already(format!("{unknown}. It may be run; the kernel has the last word on what it does"))
            }
        }
    }

    fn limit(&self, grants: &Grants) -> Plan {
        let (name, value) = self.target.split_once(['=', ' ', ':']).unwrap_or((self.target, ""));
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
        let bytes = value.parse::<Bytes>().ok();
        let count = value.parse::<f64>().ok().filter(|count| (0.0..=1e9).contains(count));
        let limits = &self.policy.limits;
        let (control, enough): (Control, fn(&Policy, f64) -> bool) = match name.as_str() {
            "timeout" | "time" | "run_time" | "timeout_seconds" => return self.run_time(value, grants),
            "memory" => (Control::Memory, |policy, asked| policy.limits.memory.0 as f64 >= asked),
            "disk" => (Control::Disk, |policy, asked| policy.limits.disk.0 as f64 >= asked),
            "tmp" => (Control::Tmp, |policy, asked| policy.limits.tmp.0 as f64 >= asked),
            "pids" | "processes" => (Control::Pids, |policy, asked| f64::from(policy.limits.pids) >= asked),
            "cpu" | "cpus" => (Control::Cpu, |policy, asked| f64::from(policy.limits.cpu_millis) / 1000.0 >= asked),
            _ => return self.not_understood(),
        };
        let asked = match control {
            Control::Pids | Control::Cpu => count,
            _ => bytes.map(|bytes| bytes.0 as f64),
        };
        let Some(asked) = asked else { return self.not_understood() };
        if enough(self.policy, asked) {
            return Plan::Already(format!("the sandbox already has {control} = {}", limits::size(control, limits)));
        }
        let more = policy_giving(self.settings, self.policy, |policy| enough(policy, asked));
        let message = format!(
            "the {control} limit is {} from the sandbox's beginning and cannot be raised while it lives",
            limits::size(control, limits)
        );
        let rule = format!("limits.{control}");
        match more {
            Some(_) => {
                self.refuse(Reason::NeedsNewSandbox, &rule, message, limits::newer(more.as_deref(), self.reader))
            }
            None => self.refuse(
                Reason::Ceiling,
                &rule,
                format!("no policy that may be used here gives so much {control}"),
                format!(
                    "Make do with {}; the operator decides which policies there are",
                    limits::size(control, limits)
                ),
            ),
        }
    }

    fn not_understood(&self) -> Plan {
        let target = super::question::shown(self.target, (60, 0));
        Plan::Unclear(format!(
            "`{target}` names no limit. Name one with its size: timeout=900, memory=8GiB, disk=20GiB, tmp=2GiB, pids=1024, \
             cpus=4"
        ))
    }

    fn run_time(&self, value: &str, grants: &Grants) -> Plan {
        let Some(seconds) = value.trim_end_matches('s').trim().parse::<u64>().ok().filter(|seconds| *seconds > 0)
        else {
            return self.not_understood();
        };
        let (asked, most) = (Duration::from_secs(seconds), longest(self.settings));
        if asked > most {
            let message = format!("the operator lets no command run longer than {} s", most.as_secs());
            let instead = format!("Divide the work, or ask for at most {} s", most.as_secs());
            return self.refuse(Reason::Ceiling, "the operator's longest run time", message, instead);
        }
        let given = self.policy.limits.run.max(grants.run_time().unwrap_or_default());
        if asked <= given {
            return Plan::Already(format!("commands may run for {} s: give the command that timeout", given.as_secs()));
        }
        Plan::Ask(Wish::RunTime(asked))
    }

    fn network(&self, grants: &Grants) -> Plan {
        let Some(wanted) = Wanted::read(self.target) else {
            let target = super::question::shown(self.target, (60, 0));
            if Wanted::has_wrong_port(self.target) {
                return Plan::Unclear(format!(
                    "the port in `{target}` is wrong: ports are numbers from 1 to 65535, as in example.com:8080"
                ));
            }
            return Plan::Unclear(format!(
                "`{target}` names no host. Name one, with its port unless it is a web server: example.com, example.com:8080"
            ));
        };
        if wanted.is_private() {
            let message = "addresses of this machine and of private networks are never given by asking".to_owned();
            let files = self.reader.files();
            let instead = format!("Use a public address where the policy allows one, or bring the data with {files}");
            return self.refuse(Reason::NeverGranted, "private addresses", message, instead);
        }
        let allows = |policy: &Policy| rules(policy, self.settings).is_ok_and(|rules| wanted.is_allowed(&rules));
        if allows(self.policy) || wanted.is_allowed(&Rules(grants.network_rules())) {
            return Plan::Already(format!("{wanted} may be reached: just connect"));
        }
        let rule = format!("network = {}", self.policy.network);
        let instead = format!("Bring what is needed with {}", self.reader.files());
        let own = rules(self.policy, self.settings).unwrap_or_default();
        let wholly =
            |ceiling: &Policy| rules(ceiling, self.settings).is_ok_and(|rules| wanted.may_be_granted(&rules, &own));
        if let Some(ceiling) = self.settings.ceiling.as_ref().filter(|ceiling| !wholly(ceiling)) {
            let message = match allows(ceiling) {
                true => "the operator's ceiling lets it be reached at some addresses only".to_owned(),
                false => "the operator's ceiling lets no sandbox reach it".to_owned(),
            };
            return self.refuse(Reason::Ceiling, &rule, message, instead);
        }
        if !self.policy.reaches_something() {
            let message = "a sandbox without a network has none from its beginning";
            return self.at_creation(&rule, message, &instead, allows);
        }
        Plan::Ask(Wish::Network(wanted))
    }

    fn at_creation(&self, rule: &str, message: &str, instead: &str, gives: impl Fn(&Policy) -> bool) -> Plan {
        let more = policy_giving(self.settings, self.policy, gives);
        let how_to_ask = format!("{instead}, or {}", limits::newer(more.as_deref(), self.reader));
        self.refuse(Reason::NeedsNewSandbox, rule, message.to_owned(), how_to_ask)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::{Flags, Typed};

    fn settings(text: &str) -> Settings {
        let mut typed = Typed::default();
        typed.add_file(std::path::Path::new("/x"), text).unwrap();
        typed.add_flags(&Flags { state: Some("/nowhere/state".into()), ..Flags::default() }).unwrap();
        Settings::from_typed(typed).unwrap()
    }

    fn planned(policy: &str, kind: AccessKind, target: &str) -> Plan {
        let settings = settings("");
        let policy = settings.policy(policy).unwrap();
        let request = AccessRequest { kind, target: target.into(), reason: None, span: Span::Once };
        plan(&request, &policy, &settings, &Grants::default(), Reader::Model)
    }

    fn refused(policy: &str, kind: AccessKind, target: &str) -> Denial {
        match planned(policy, kind, target) {
            Plan::Refuse(denial) => *denial,
            other => panic!("{target}: {other:?}"),
        }
    }

    #[test]
    fn only_what_can_change_is_asked_about() {
        assert!(
            matches!(planned("yolo-3", AccessKind::Command, "sudo id"), Plan::Ask(Wish::Command { rules }) if rules == ["sudo"])
        );
        assert!(matches!(planned("yolo-3", AccessKind::Command, "ls"), Plan::Already(_)));
        let time = planned("user_added", AccessKind::Limit, "timeout=500");
        assert!(matches!(time, Plan::Ask(Wish::RunTime(time)) if time == Duration::from_secs(500)));
        assert!(matches!(planned("user_added", AccessKind::Limit, "timeout=200"), Plan::Already(_)));
        let held = refused("full_isolation", AccessKind::Command, "ssh host");
        assert_eq!((held.reason, held.rule.as_str()), (Reason::NeedsNewSandbox, "ssh"));
    }

    #[test]
    fn a_limit_that_needs_a_new_sandbox_names_the_policy_that_would_do() {
        let memory = refused("user_added", AccessKind::Limit, "memory=2GiB");
        assert_eq!(memory.reason, Reason::NeedsNewSandbox);
        assert_eq!(memory.how_to_ask, "create_sandbox with policy yolo-1");
        assert_eq!(refused("yolo-3", AccessKind::Limit, "memory=900GiB").reason, Reason::Ceiling);
        assert_eq!(refused("yolo-3", AccessKind::Limit, "timeout=9999").reason, Reason::Ceiling);
        let unclear = planned("yolo-3", AccessKind::Limit, "everything");
        assert!(matches!(&unclear, Plan::Unclear(what) if what.contains("timeout=900")), "{unclear:?}");
        assert!(refused("yolo-3", AccessKind::Privilege, "CAP_CHOWN").how_to_ask.contains("yolo-4"));
    }

    #[test]
    fn a_person_at_a_terminal_is_told_of_options_and_not_of_tools() {
        let settings = settings("");
        let told = |policy: &str, kind, target: &str| {
            let request = AccessRequest { kind, target: target.into(), reason: None, span: Span::Once };
            let policy = settings.policy(policy).unwrap();
            match plan(&request, &policy, &settings, &Grants::default(), Reader::Person) {
                Plan::Refuse(denial) => denial.how_to_ask,
                other => panic!("{target}: {other:?}"),
            }
        };
        assert_eq!(
            told("yolo-1", AccessKind::Network, "example.com"),
            "Bring what is needed with --file, or use --level 2 (`exec`: --policy yolo-2)"
        );
        assert_eq!(told("user_added", AccessKind::Limit, "memory=2GiB"), "use --level 1 (`exec`: --policy yolo-1)");
        let private = told("yolo-3", AccessKind::Network, "10.0.0.1");
        assert!(private.ends_with("bring the data with --file"), "{private}");
    }

    #[test]
    fn who_lowers_a_timeout_is_told() {
        let told = |text: &str, policy: &str, most: u64| {
            let settings = settings(text);
            lowered_by(Duration::from_secs(most), &settings.policy(policy).unwrap(), &settings)
        };
        assert_eq!(told("", "yolo-3", 600), "max_timeout_seconds in the settings");
        assert_eq!(told("", "user_added", 300), "the policy `user_added`");
        assert_eq!(told("ceiling = \"user_added\"", "yolo-3", 300), "the ceiling `user_added`");
        assert_eq!(told("", "user_added", 500), "as it was granted");
    }

    #[test]
    fn no_question_is_put_above_the_operators_ceiling() {
        let ceiling = settings("ceiling = \"user_added\"");
        let asked = |kind, target: &str| {
            let request = AccessRequest { kind, target: target.into(), reason: None, span: Span::Once };
            match plan(&request, &ceiling.policy("yolo-3").unwrap(), &ceiling, &Grants::default(), Reader::Model) {
                Plan::Refuse(denial) => denial.reason,
                other => panic!("{target}: {other:?}"),
            }
        };
        assert_eq!(asked(AccessKind::Limit, "timeout=301"), Reason::Ceiling);
        assert_eq!(asked(AccessKind::Limit, "memory=1GiB"), Reason::Ceiling);
        assert!(is_operators("sudo", &ceiling) && !is_operators("sudo", &settings("")));
    }

    #[test]
    fn private_addresses_and_secrets_are_never_given() {
        for target in [
            "127.0.0.1",
            "localhost:8080",
            "http://169.254.169.254/latest",
            "10.1.2.3",
            "192.168.1.1:22",
            "[::1]:80",
            "100.64.0.1",
            "::ffff:127.0.0.1",
            "printer",
            "db.internal",
            "0.0.0.0",
            "fd00::1",
        ] {
            assert_eq!(refused("yolo-3", AccessKind::Network, target).reason, Reason::NeverGranted, "{target}");
        }
        assert!(matches!(planned("yolo-3", AccessKind::Network, "http://user@10.0.0.1/x"), Plan::Unclear(_)));
        assert_eq!(refused("yolo-3", AccessKind::Secret, "API_KEY").reason, Reason::NeverGranted);
    }
    #[test]
    fn what_is_public_can_be_asked_for_where_there_is_a_network() {
        assert!(matches!(planned("yolo-3", AccessKind::Network, "https://example.com/x"), Plan::Already(_)));
        assert!(matches!(planned("yolo-3", AccessKind::Network, "example.com:22"), Plan::Ask(Wish::Network(_))));
        assert!(matches!(planned("yolo-2", AccessKind::Network, "pypi.org"), Plan::Ask(Wish::Network(_))));
        let sealed = refused("yolo-1", AccessKind::Network, "example.com");
        assert!(sealed.reason == Reason::NeedsNewSandbox && sealed.how_to_ask.contains("yolo-2"), "{sealed:?}");
        let settings = settings("ceiling = \"yolo-2\"");
        let request = |target: &str| AccessRequest {
            kind: AccessKind::Network,
            target: target.into(),
            reason: None,
            span: Span::Once,
        };
        let policy = settings.policy("yolo-2").unwrap();
        let planned = plan(&request("pypi.org"), &policy, &settings, &Grants::default(), Reader::Model);
        assert!(matches!(planned, Plan::Refuse(denial) if denial.reason == Reason::Ceiling));
    }
}
