//! What was granted in one sandbox, and how often it may ask. Kept in the memory of the server that was asked; what
//! was asked and answered is in the history.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use sandbox_egress::Rule;
use serde::Serialize;

use super::{Question, Span, Wish};

/// Grants that are kept; the oldest go first.
const KEPT: usize = 64;
/// Questions in this time are counted.
const WINDOW: Duration = Duration::from_secs(600);
/// Questions of one sandbox in that time.
pub const QUESTIONS: usize = 5;
/// Questions of all sandboxes of a server in that time: a new sandbox gives nobody a new voice.
pub const QUESTIONS_IN_ALL: usize = 20;

/// What was granted in one sandbox.
#[derive(Default)]
pub struct Grants(Mutex<Vec<Grant>>);

struct Grant {
    wish: Wish,
    /// As it was asked for: once is for this very command.
    asked: String,
    target: String,
    span: Span,
    until: Option<Instant>,
    by: String,
}

/// A grant as it is told.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActiveGrant {
    /// `command`, `limit` or `network`.
    pub kind: &'static str,
    /// What was asked for.
    pub target: String,
    /// What it lifts: rules of the command list, or a time.
    pub lifts: Vec<String>,
    /// `once`, `sandbox`, or so many minutes.
    pub granted_for: String,
    /// Until it ends, where it ends by itself.
    pub expires_in_seconds: Option<u64>,
    /// Who said yes.
    pub by: String,
}

impl Grants {
    /// Keeps a grant.
    pub fn add(&self, question: &Question, span: Span, by: &str) {
        let until = match span {
            Span::Minutes(minutes) => Some(Instant::now() + Duration::from_secs(u64::from(minutes) * 60)),
            Span::Once | Span::Sandbox => None,
        };
        let (wish, target, by) = (question.wish.clone(), question.shown_target(), by.to_owned());
        let asked = question.target.trim().to_owned();
        self.with(|grants| {
            if grants.len() == KEPT {
                grants.remove(0);
            }
            grants.push(Grant { wish, asked, target, span, until, by });
        });
    }

    /// Whether this rule is lifted now, for this command.
    pub fn lift(&self, rule: &str, command: &str) -> bool {
        self.with(|grants| grants.iter().any(|grant| grant.lifts(rule, command)))
    }

    /// A command ran thanks to these rules being lifted: what was granted for one command is used up.
    pub fn use_up(&self, rules: &[String], command: &str) {
        self.with(|grants| {
            for rule in rules {
                if grants.iter().any(|grant| grant.span != Span::Once && grant.lifts(rule, command)) {
                    continue;
                }
                grants.retain(|grant| !grant.lifts(rule, command));
            }
        });
    }

    /// The longest time that was granted to commands.
    pub fn run_time(&self) -> Option<Duration> {
        self.with(|grants| {
            let time = |grant: &Grant| match grant.wish {
                Wish::RunTime(time) => Some(time),
                Wish::Command { .. } | Wish::Network(_) => None,
            };
            grants.iter().filter_map(time).max()
        })
    }

    /// A command was given this much time, more than its policy's: what was granted for one command is used up.
    pub fn use_run_time(&self, used: Duration) {
        self.with(|grants| {
            let gives = |grant: &Grant| matches!(grant.wish, Wish::RunTime(time) if time >= used);
            if !grants.iter().any(|grant| grant.span != Span::Once && gives(grant)) {
                grants.retain(|grant| !gives(grant));
            }
        });
    }

    /// What may be reached beyond the policy.
    pub fn network_rules(&self) -> Vec<Rule> {
        self.with(|grants| {
            let rule = |grant: &Grant| match &grant.wish {
                Wish::Network(wanted) => Some(wanted.rule(&grant.by)),
                Wish::Command { .. } | Wish::RunTime(_) => None,
            };
            grants.iter().filter_map(rule).collect()
        })
    }

    /// Those that hold now.
    pub fn active(&self) -> Vec<ActiveGrant> {
        self.with(|grants| grants.iter().map(Grant::told).collect())
    }

    /// With those that have not ended.
    fn with<T>(&self, act: impl FnOnce(&mut Vec<Grant>) -> T) -> T {
        let mut grants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        grants.retain(|grant| grant.until.is_none_or(|until| until > now));
        act(&mut grants)
    }
}

impl Grant {
    fn lifts(&self, rule: &str, command: &str) -> bool {
        let meant = self.span != Span::Once || self.asked == command.trim();
        meant && matches!(&self.wish, Wish::Command { rules } if rules.iter().any(|lifted| lifted == rule))
    }

    fn told(&self) -> ActiveGrant {
        ActiveGrant {
            kind: self.wish.kind(),
            target: self.target.clone(),
            lifts: match &self.wish {
                Wish::Command { rules } => rules.clone(),
                Wish::RunTime(time) => vec![format!("timeout={}", time.as_secs())],
                Wish::Network(wanted) => vec![wanted.to_string()],
            },
            granted_for: self.span.to_string(),
            expires_in_seconds: self.until.map(|until| until.saturating_duration_since(Instant::now()).as_secs()),
            by: self.by.clone(),
        }
    }
}

/// How often questions may be put.
pub struct Pace {
    most: usize,
    asked: Mutex<VecDeque<Instant>>,
}

impl Pace {
    /// So many in ten minutes.
    pub fn of(most: usize) -> Self {
        Self { most, asked: Mutex::default() }
    }

    /// Counts a question, unless there were too many.
    pub fn take(&self) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        while asked.front().is_some_and(|then| now.duration_since(*then) > WINDOW) {
            asked.pop_front();
        }
        let free = asked.len() < self.most;
        if free {
            asked.push_back(now);
        }
        free
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn question(wish: Wish) -> Question {
        let session_id = "sandbox_local_0123456789abcdef01234567".parse().unwrap();
        Question { session_id, policy: String::new(), wish, target: "x".into(), reason: None, span: Span::Once }
    }

    fn lifted(grants: &Grants, rule: &str) -> bool {
        let lifted = grants.lift(rule, "x");
        grants.use_up(&[rule.to_owned()], "x");
        lifted
    }

    #[test]
    fn once_is_once_and_a_sandbox_is_for_good() {
        let grants = Grants::default();
        grants.add(&question(Wish::Command { rules: vec!["sudo".into(), "ssh".into()] }), Span::Once, "a");
        assert!(!lifted(&grants, "nc"), "another rule uses nothing up");
        assert!(!grants.lift("sudo", "x; sudo y"), "another command was not asked for");
        assert!(lifted(&grants, "sudo") && !lifted(&grants, "ssh"), "used up by one command");
        grants.add(&question(Wish::Command { rules: vec!["sudo".into()] }), Span::Sandbox, "a");
        assert!(lifted(&grants, "sudo") && lifted(&grants, "sudo"));
        grants.add(&question(Wish::Command { rules: vec!["ssh".into()] }), Span::Minutes(0), "a");
        assert!(!lifted(&grants, "ssh"), "its time is over");
        assert_eq!(grants.active().len(), 1);
    }

    #[test]
    fn the_longest_time_counts_and_once_is_used_up() {
        let grants = Grants::default();
        let seconds = |n| Wish::RunTime(Duration::from_secs(n));
        grants.add(&question(seconds(400)), Span::Once, "a");
        assert_eq!(grants.run_time(), Some(Duration::from_secs(400)));
        grants.use_run_time(Duration::from_secs(350));
        assert_eq!(grants.run_time(), None);
    }

    #[test]
    fn questions_are_counted() {
        let pace = Pace::of(QUESTIONS);
        assert_eq!((0..20).filter(|_| pace.take()).count(), QUESTIONS);
    }
}
