//! All that a policy's command lists have against a command. The kernel has the last word on what it could do.

use std::borrow::Cow;

use sandbox_core::{Denial, Policy, Reason, exec::Exec, policy::DeniedPrograms};

use crate::commands::{Verdict, advise};

/// Rules that are named for one command; one that breaks more is refused all the same.
const NAMED: usize = 5;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// What stands against it. Empty: it may run.
    pub objections: Vec<Objection>,
    /// What could not be told before it runs.
    pub unknown: Option<String>,
}

/// One rule that stands against a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objection {
    /// The rule, as the policy has it.
    pub rule: String,
    /// The refusal.
    pub denial: Denial,
    /// Whether the rule can be lifted while the sandbox lives.
    pub liftable: Liftable,
}

/// Whether a rule can be lifted while a sandbox lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liftable {
    /// It is only advice: somebody may allow it.
    Yes,
    /// The kernel holds it from the sandbox's beginning.
    No,
}

/// Judges a command by the policy's lists.
pub fn judge(exec: &Exec, policy: &Policy) -> Judged {
    let mut judged = Judged::default();
    let mut left = Cow::Borrowed(policy);
    while judged.objections.len() < NAMED {
        let verdict = advise(exec, &left);
        let denial = verdict.denial(policy);
        match (verdict, denial) {
            (Verdict::Denied(refused), Some(denial)) => {
                let liftable = liftable(refused.reason, &refused.rule, policy);
                let was_there = left.to_mut().commands.deny.remove(&refused.rule);
                let denial = with_a_way(denial, liftable);
                judged.objections.push(Objection { rule: refused.rule, denial, liftable });
                if !was_there {
                    break;
                }
            }
            (Verdict::Unknown(hidden), _) => {
                judged.unknown = Some(hidden.to_string());
                break;
            }
            _ => break,
        }
    }
    judged
}

/// The lists know what to do instead; here is known whether asking helps.
fn with_a_way(mut denial: Denial, liftable: Liftable) -> Denial {
    let way = match liftable {
        Liftable::Yes => "A person may allow it: request_access with kind command",
        Liftable::No => "The kernel holds this from the sandbox's beginning: only a new sandbox could have it",
    };
    denial.how_to_ask = format!("{}. {way}", denial.how_to_ask.trim_end_matches('.'));
    denial
}

/// Lists of allowed programs, and programs that were taken away, are the kernel's and stay as they are.
fn liftable(reason: Reason, rule: &str, policy: &Policy) -> Liftable {
    let taken_away = policy.commands.denied_programs == DeniedPrograms::Removed && !rule.contains(' ');
    if reason == Reason::CommandDenied && !taken_away { Liftable::Yes } else { Liftable::No }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denied_command_is_told_with_its_rule() {
        let judged = judge(&Exec::shell("sudo id"), &Policy::default());
        assert_eq!(judged.objections.len(), 1, "{judged:?}");
        let Some(objection) = judged.objections.first() else { return };
        assert_eq!((objection.rule.as_str(), objection.liftable), ("sudo", Liftable::Yes));
        assert_eq!(objection.denial.reason, Reason::CommandDenied);
        assert_eq!(judge(&Exec::shell("id"), &Policy::default()).objections, []);
    }

    #[test]
    fn every_rule_that_a_command_breaks_is_named() {
        let judged = judge(&Exec::shell("sudo ssh host; echo $(nc -l 1)"), &Policy::default());
        let rules: std::collections::BTreeSet<&str> =
            judged.objections.iter().map(|objection| objection.rule.as_str()).collect();
        assert_eq!(rules, ["nc", "ssh", "sudo"].into(), "{judged:?}");
    }

    #[test]
    fn what_cannot_be_told_runs_and_says_so() {
        let judged = judge(&Exec::shell("$(cat name) x"), &Policy::default());
        assert!(judged.objections.is_empty() && judged.unknown.is_some(), "{judged:?}");
    }

    #[test]
    fn what_the_kernel_took_away_cannot_be_given_back() {
        let policy = Policy::preset("full_isolation").unwrap_or_default();
        let judged = judge(&Exec::argv(["/usr/bin/ssh", "host"]), &policy);
        assert_eq!(judged.objections.first().map(|objection| objection.liftable), Some(Liftable::No));
    }
}
