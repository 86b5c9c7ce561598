//! A limit that was met, in numbers and with what to do: "killed: used 512 MiB of 512 MiB", never only "exit 137".

use std::time::Duration;

use sandbox_core::{Control, Denial, Policy, Reason, exec::Ending, policy::Limits};
use sandbox_egress::Reader;

/// The refusal by which a limit ended a job. `more` names a policy that gives more, if there is one.
///
/// What was used is in the ending, if somebody saw it; else it is all of the limit.
pub fn ended(
    control: Control,
    policy: &Policy,
    elapsed: Duration,
    ending: &Ending,
    more: Option<&str>,
    reader: Reader,
) -> Denial {
    let limits = &policy.limits;
    let size = size(control, limits);
    let instead = match control {
        Control::Memory => "Use less memory",
        Control::Disk => "Delete files in /workspace and HOME",
        Control::Tmp => "Delete files in /tmp",
        Control::Pids => "Start fewer processes",
        Control::Time => return out_of_time(policy, elapsed, limits.run, reader),
        _ => "Ask for less",
    };
    let message = ending.by_limit(control, limits).unwrap_or_else(|| format!("killed: it met the {control} limit"));
    Denial {
        reason: Reason::of_limit(control).unwrap_or(Reason::Privilege),
        target: format!("{control}={size}"),
        rule: format!("limits.{control} = {size}"),
        level: policy.name.clone(),
        message,
        how_to_ask: format!("{instead}, or {}", newer(more, reader)),
        verdict: None,
    }
}

/// A limit that a model asked for above the policy's.
pub fn not_raised(control: Control, asked: &str, policy: &Policy, more: Option<&str>) -> Denial {
    let size = size(control, &policy.limits);
    Denial {
        reason: Reason::of_limit(control).unwrap_or(Reason::Privilege),
        target: format!("{control}={asked}"),
        rule: format!("limits.{control} = {size}"),
        level: policy.name.clone(),
        message: format!("the {control} limit stays at the policy's {size}"),
        how_to_ask: format!("Go on with {size}, or {}", newer(more, Reader::Model)),
        verdict: None,
    }
}

/// What to do for more.
pub fn newer(more: Option<&str>, reader: Reader) -> String {
    match (more, reader) {
        (Some(name), Reader::Person) => format!("use {}", reader.with_policy(name)),
        (Some(name), Reader::Model | Reader::Unheard) => format!("create_sandbox with policy {name}"),
        (None, Reader::Person) => {
            "write a policy that gives more (docs/policy.md): none that may be used here does".to_owned()
        }
        (None, Reader::Model | Reader::Unheard) => {
            "ask the operator for a policy that gives more: none that may be used here does".to_owned()
        }
    }
}

/// The size of a limit, as people write it.
pub fn size(control: Control, limits: &Limits) -> String {
    match control {
        Control::Memory => limits.memory.to_string(),
        Control::Disk => limits.disk.to_string(),
        Control::Tmp => limits.tmp.to_string(),
        Control::Pids => limits.pids.to_string(),
        Control::Cpu => (f64::from(limits.cpu_millis) / 1000.0).to_string(),
        Control::Time => format!("{} s", limits.run.as_secs()),
        other => other.to_string(),
    }
}

/// A command has its own timeout, and the policy's above it. No command may have more than `longest`, whoever is asked.
pub fn out_of_time(policy: &Policy, elapsed: Duration, longest: Duration, reader: Reader) -> Denial {
    let most = policy.limits.run;
    let whole = elapsed.as_secs_f64() >= most.as_secs_f64();
    let ran = (elapsed.as_secs_f64() * 10.0).round() / 10.0;
    let (message, rule) = if whole {
        let most = most.as_secs();
        (format!("killed: ran for {ran} s of {most} s, the longest that the policy lets a command run"), "limits.run")
    } else {
        (format!("killed: ran for {ran} s, longer than its timeout"), "timeout of this command")
    };
    Denial {
        reason: Reason::TimeLimit,
        target: format!("timeout={ran}"),
        rule: if whole { format!("{rule} = {} s", most.as_secs()) } else { rule.to_owned() },
        level: policy.name.clone(),
        message,
        how_to_ask: more_time(if whole { None } else { Some(most) }, longest, most, reader),
        verdict: None,
    }
}

/// What to do for more time: `free` is to be had without asking, `longest` by asking.
fn more_time(free: Option<Duration>, longest: Duration, most: Duration, reader: Reader) -> String {
    let mut text = match free {
        Some(most) => format!("Divide the work, or give it a longer timeout (up to {} s)", most.as_secs()),
        None => "Divide the work".to_owned(),
    };
    if longest > most {
        let longest = longest.as_secs();
        text.push_str(&match reader {
            Reader::Person => format!("; up to {longest} s may be given to a command if the agent asks for it in advance"),
            Reader::Model | Reader::Unheard => format!(
                "; for more, up to {longest} s, use request_access with kind limit and target timeout=SECONDS before you start it"
            ),
        });
    } else {
        text.push_str("; no command may run longer here");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_ended_a_job_is_told_in_numbers() {
        let policy = Policy::preset("user_added").unwrap_or_default();
        let told = ended(Control::Memory, &policy, Duration::ZERO, &Ending::default(), Some("verified"), Reader::Model);
        assert_eq!(told.message, "killed: used 512 MiB of 512 MiB of memory");
        assert_eq!((told.reason, told.level.as_str()), (Reason::MemoryLimit, "user_added"));
        assert_eq!(told.how_to_ask, "Use less memory, or create_sandbox with policy verified");
        for control in [Control::Pids, Control::Disk, Control::Tmp, Control::Time] {
            let told = ended(control, &policy, Duration::from_secs(300), &Ending::default(), None, Reader::Model);
            assert!(told.message.starts_with("killed: ") && told.message.contains(" of "), "{}", told.message);
        }
    }

    #[test]
    fn a_person_at_a_terminal_reads_of_options_and_not_of_tools() {
        let policy = Policy::preset("user_added").unwrap_or_default();
        let none = Ending::default();
        let told = |control, more| ended(control, &policy, Duration::ZERO, &none, more, Reader::Person).how_to_ask;
        assert_eq!(
            told(Control::Memory, Some("yolo-3")),
            "Use less memory, or use --level 3 (`exec`: --policy yolo-3)"
        );
        assert!(told(Control::Memory, None).contains("docs/policy.md"));
        let more = out_of_time(&policy, Duration::ZERO, Duration::from_secs(600), Reader::Person).how_to_ask;
        assert!(more.contains("up to 600 s") && !more.contains("request_access"), "{more}");
    }

    #[test]
    fn the_policys_time_is_told_apart_from_a_commands_own() {
        let policy = Policy::preset("user_added").unwrap_or_default();
        let own = ended(Control::Time, &policy, Duration::from_secs(5), &Ending::default(), None, Reader::Model);
        assert_eq!(own.rule, "timeout of this command");
        let whole =
            ended(Control::Time, &policy, Duration::from_millis(300_040), &Ending::default(), None, Reader::Model);
        assert_eq!((whole.rule.as_str(), whole.reason), ("limits.run = 300 s", Reason::TimeLimit));
        assert_eq!(whole.how_to_ask, "Divide the work; no command may run longer here");
        assert!(whole.message.contains("300 s of 300 s"), "{}", whole.message);
    }

    #[test]
    fn asking_for_more_time_is_named_only_where_it_can_succeed() {
        let policy = Policy::preset("user_added").unwrap_or_default();
        let seconds = Duration::from_secs;
        let told = |longest| out_of_time(&policy, seconds(5), seconds(longest), Reader::Model).how_to_ask;
        assert!(told(600).contains("up to 600 s, use request_access"), "{}", told(600));
        assert!(!told(300).contains("request_access") && told(300).contains("up to 300 s"), "{}", told(300));
    }
}
