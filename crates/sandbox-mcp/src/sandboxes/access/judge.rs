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
                let denial = if liftable == Liftable::No { held_by_the_kernel(denial) } else { denial };
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

/// The refusals for these objections. What is said in the same words by several rules is said once, with all of them.
///
/// The lists know what to do instead; whether asking helps is known to who looked for somebody to ask.
pub fn refusals(objections: &[&Objection], way: impl Fn(&[&str]) -> Option<String>) -> Vec<Denial> {
    let mut told: Vec<(Vec<&str>, Liftable, Denial)> = Vec::new();
    for Objection { rule, denial, liftable } in objections {
        match told.iter_mut().find(|(_, _, known)| known.message == denial.message) {
            Some((rules, _, _)) => rules.push(rule),
            None => told.push((vec![rule], *liftable, denial.clone())),
        }
    }
    let finish = |(rules, liftable, mut denial): (Vec<&str>, Liftable, Denial)| {
        denial.rule = rules.join(", ");
        if let Some(way) = way(&rules).filter(|_| liftable == Liftable::Yes) {
            denial.how_to_ask = format!("{}. {way}", denial.how_to_ask.trim_end_matches('.'));
        }
        denial
    };
    told.into_iter().map(finish).collect()
}

fn held_by_the_kernel(mut denial: Denial) -> Denial {
    let way = "The kernel holds this from the sandbox's beginning: only a new sandbox could have it";
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
    fn what_two_rules_say_in_the_same_words_is_said_once() {
        let judged = judge(&Exec::argv(["rm", "-rf", "/"]), &Policy::default());
        assert!(judged.objections.len() > 1, "{judged:?}");
        let open: Vec<&Objection> = judged.objections.iter().collect();
        let told = refusals(&open, |rules| Some(format!("{} rules", rules.len())));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].rule.contains(", ") && told[0].how_to_ask.ends_with(&format!("{} rules", open.len())),
            "{told:?}"
        );
        let judged = judge(&Exec::shell("sudo ssh host"), &Policy::default());
        assert_eq!(refusals(&judged.objections.iter().collect::<Vec<_>>(), |_| None).len(), 2);
    }

    #[test]
    fn who_is_root_already_is_told_to_leave_sudo_out() {
        let told = |policy: &str| {
            let judged =
                judge(&Exec::shell("sudo apt-get install ./x.deb"), &Policy::preset(policy).unwrap_or_default());
            judged.objections.first().map(|objection| objection.denial.how_to_ask.clone()).unwrap_or_default()
        };
        assert!(
            told("yolo-4").contains("root already") && told("yolo-4").contains("leave `sudo` out"),
            "{}",
            told("yolo-4")
        );
        assert!(told("yolo-3").contains("HOME"), "{}", told("yolo-3"));
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
