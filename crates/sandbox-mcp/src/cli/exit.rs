//! How the way a command ended becomes this program's exit code.

use std::time::Duration;

use sandbox_core::{
    Control, Policy,
    exec::{Ending, Exit},
};

use sandbox_egress::Reader;

use crate::sandboxes::access::ended_by_limit;

/// The task failed, or the machine is unusable.
pub const FAILED: u8 = 1;
/// A command or task ran out of time.
pub const TIMEOUT: u8 = 124;
/// There was no sandbox, so the command did not run.
pub const NO_SANDBOX: u8 = 125;
/// The command may not be run.
pub const NOT_ALLOWED: u8 = 126;
/// There is no such command.
pub const NO_COMMAND: u8 = 127;
/// SIGKILL, also what a limit does.
const KILLED: u8 = 128 + 9;

/// As shells do it.
pub fn code(exit: Exit) -> u8 {
    match exit {
        Exit::Code(code) => (code & 0xff) as u8,
        Exit::Signal(signal) => 128u8.saturating_add(u8::try_from(signal).unwrap_or(127)),
        Exit::Limit(Control::Time) => TIMEOUT,
        Exit::Limit(_) => KILLED,
    }
}

/// What a person must be told beyond the code.
pub fn message(exit: Exit, policy: &Policy) -> Option<String> {
    let Exit::Limit(control) = exit else { return None };
    let limits = &policy.limits;
    Some(match control {
        Control::Memory | Control::Pids | Control::Tmp => {
            let ending = Ending::default();
            let denial = ended_by_limit(control, policy, Duration::ZERO, &ending, None, Reader::Person);
            format!("{}, all that the policy {} gives. Use less, or another policy", denial.message, policy.name)
        }
        Control::Time => {
            "the command was ended: it ran out of time. --timeout gives more, up to max_timeout_seconds".to_owned()
        }
        Control::Disk => format!(
            "the command was ended: its files took more room than the policy {} allows ({}). Write less, or use another policy",
            policy.name, limits.disk
        ),
        other => format!("the command was ended: it went over the {other} limit of the policy {}", policy.name),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn codes_are_what_shells_say() {
        let cases = [
            (Exit::Code(0), 0),
            (Exit::Code(3), 3),
            (Exit::Code(256), 0),
            (Exit::Signal(15), 143),
            (Exit::Signal(9), 137),
            (Exit::Signal(9999), 255),
            (Exit::Limit(Control::Time), 124),
            (Exit::Limit(Control::Memory), 137),
        ];
        for (exit, expected) in cases {
            assert_eq!(code(exit), expected, "{exit:?}");
        }
    }

    #[test]
    fn the_memory_limit_is_named() {
        let message = message(Exit::Limit(Control::Memory), &Policy::default()).unwrap();
        assert!(message.contains("4 GiB") && message.contains("yolo-3"), "{message}");
        assert_eq!(super::message(Exit::Code(1), &Policy::default()), None);
    }
}
