//! Which wall a failed command probably met, read from what it printed.
//!
//! What a command prints is its own to choose, so this is a guess, and says so: a [`Hint`] is told to whoever asked,
//! marked as inferred, and is never an event, never counted, and never asked about. Hostile output can at most make a
//! wrong hint. The work is bounded: the last few kilobytes, a few lines, one hint for each reason.

use sandbox_core::{
    Denial, Policy, Reason,
    policy::{Network, Root},
};

use super::limits;
use sandbox_core::Control;

/// How much of the end of standard error is looked at.
const LOOKED_AT: usize = 4096;
/// Hints in one answer.
const MOST: usize = 3;
/// What may be written in every sandbox.
const WRITABLE: [&str; 3] = ["/workspace", "/home/sandbox", "/tmp"];

/// A refusal that was guessed from what a command printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint(pub Denial);

/// A text that programs print for an error number, and the wall that it tells of.
const PHRASES: [(&str, Wall); 12] = [
    ("Read-only file system", Wall::ReadOnly),
    ("Permission denied", Wall::Permission),
    ("Operation not permitted", Wall::Privilege),
    ("Network is unreachable", Wall::Network),
    ("Could not resolve host", Wall::Network),
    ("Temporary failure in name resolution", Wall::Network),
    ("Name or service not known", Wall::Network),
    ("No space left on device", Wall::Space),
    ("Cannot fork", Wall::Processes),
    ("Resource temporarily unavailable", Wall::Processes),
    ("Cannot allocate memory", Wall::Memory),
    ("Function not implemented", Wall::SystemCall),
];

#[derive(Clone, Copy)]
enum Wall {
    ReadOnly,
    Permission,
    Privilege,
    Network,
    Space,
    Processes,
    Memory,
    SystemCall,
}

/// Guesses for a command that failed.
pub fn read(stderr: &str, policy: &Policy) -> Vec<Hint> {
    let mut hints: Vec<Hint> = Vec::new();
    for line in end(stderr).lines().rev() {
        let found = PHRASES.iter().find(|(phrase, _)| line.contains(phrase));
        let Some(denial) = found.and_then(|(phrase, wall)| guess(*wall, phrase, line, policy)) else { continue };
        if hints.iter().all(|Hint(known)| known.reason != denial.reason) {
            hints.push(Hint(denial));
        }
        if hints.len() == MOST {
            break;
        }
    }
    hints
}

fn end(text: &str) -> &str {
    let mut from = text.len().saturating_sub(LOOKED_AT);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

fn guess(wall: Wall, phrase: &str, line: &str, policy: &Policy) -> Option<Denial> {
    let path = path_in(line);
    let named = path.clone().unwrap_or_else(|| phrase.to_owned());
    let (reason, target, rule, message, how_to_ask) = match wall {
        Wall::ReadOnly => read_only(named, policy),
        Wall::Permission => match (path, refused_program(line, phrase, policy)) {
            (_, Some((reason, program, rule))) => (
                reason,
                program,
                rule,
                "the policy keeps this program from running".to_owned(),
                "Do it another way; a policy that allows the program would need a new sandbox".to_owned(),
            ),
            (Some(path), None) if !is_writable(&path, policy) => read_only(path, policy),
            _ => return None,
        },
        Wall::Privilege => (
            Reason::Privilege,
            named,
            format!("privileges.capabilities = {}", policy.privileges.capabilities),
            "commands do not have the privilege that this needs".to_owned(),
            "Do it without: no owners, mounts, devices or clocks. yolo-4, development and build give more, in a new \
             sandbox"
                .to_owned(),
        ),
        Wall::Network => (
            Reason::Network,
            named,
            format!("network = {}", policy.network),
            if policy.network == Network::None {
                "the policy gives no network".to_owned()
            } else {
                "this release has no network yet, whatever the policy allows".to_owned()
            },
            "Bring what is needed with write_files; there is no way to a network from here".to_owned(),
        ),
        Wall::Space if path.as_deref().is_some_and(|path| path.starts_with("/tmp")) => {
            full(Control::Tmp, "/tmp", "Delete files in /tmp, or write to /workspace", policy)
        }
        Wall::Space => full(
            Control::Disk,
            "/workspace, HOME or /tmp",
            "Delete files in /workspace, HOME and /tmp, or create_sandbox with a policy that gives more",
            policy,
        ),
        Wall::Processes => {
            full(Control::Pids, "processes", "Start fewer processes and threads, or end those that wait", policy)
        }
        Wall::Memory => full(Control::Memory, "memory", "Use less memory, or work on smaller pieces", policy),
        Wall::SystemCall => (
            Reason::SystemCall,
            named,
            format!("privileges.system_calls = {}", policy.privileges.system_calls),
            "the kernel was told to refuse a system call that this makes".to_owned(),
            "Use a program or an option that does without; a policy with other system_calls needs a new sandbox"
                .to_owned(),
        ),
    };
    let message = format!("probably (from what the command printed): {message}");
    Some(Denial { reason, target, rule, level: policy.name.clone(), message, how_to_ask })
}

type Told = (Reason, String, String, String, String);

fn read_only(target: String, policy: &Policy) -> Told {
    let root = match policy.filesystem.root {
        Root::ReadOnly => "filesystem.root = read_only",
        Root::Writable => "filesystem.root = writable, but not this place",
    };
    (
        Reason::ReadOnly,
        target,
        root.to_owned(),
        "this place may not be written".to_owned(),
        "Write to /workspace, HOME (/home/sandbox) or /tmp; pip install and npm i -g put things into HOME".to_owned(),
    )
}

fn full(control: Control, target: &str, instead: &str, policy: &Policy) -> Told {
    let size = limits::size(control, &policy.limits);
    (
        Reason::of_limit(control).unwrap_or(Reason::DiskLimit),
        target.to_owned(),
        format!("limits.{control} = {size}"),
        format!("the {control} limit of {size} is used up"),
        instead.to_owned(),
    )
}

/// `sh: 1: ssh: Permission denied`, where the policy has something against ssh.
fn refused_program(line: &str, phrase: &str, policy: &Policy) -> Option<(Reason, String, String)> {
    let before = line[..line.find(phrase)?].trim_end().trim_end_matches(':');
    let word = before.rsplit([' ', ':']).find(|word| !word.is_empty())?;
    let name = word.rsplit('/').next().unwrap_or(word);
    if name.is_empty() || name.len() > 64 {
        return None;
    }
    if policy.commands.deny.contains(name) {
        return Some((Reason::CommandDenied, name.to_owned(), format!("commands.deny: {name}")));
    }
    let allow = policy.commands.allow.as_ref()?;
    let is_program = word.starts_with("/usr/") || word.starts_with("/bin/") || !word.contains('/');
    (is_program && !allow.contains(name)).then(|| (Reason::CommandNotAllowed, name.to_owned(), "commands.allow".into()))
}

/// The first absolute path of a line: `touch: cannot touch '/etc/x': …`, `[Errno 13] …: '/etc/x'`.
fn path_in(line: &str) -> Option<String> {
    let ends = |c: char| c.is_whitespace() || matches!(c, '\'' | '"' | ':' | ',' | ')' | '\u{2019}' | '`');
    let starts =
        |at: usize| at == 0 || line[..at].chars().next_back().is_some_and(|c| c != '/' && !c.is_alphanumeric());
    let (at, _) = line.match_indices('/').find(|(at, _)| starts(*at))?;
    let path = line[at..].split(ends).next().unwrap_or_default();
    (path.len() > 1).then(|| path.chars().filter(|c| !c.is_control()).take(200).collect())
}

fn is_writable(path: &str, policy: &Policy) -> bool {
    let beneath = |place: &str| path == place || path.strip_prefix(place).is_some_and(|rest| rest.starts_with('/'));
    let further = &policy.filesystem.writable;
    WRITABLE.into_iter().any(beneath)
        || further.iter().any(|place| beneath(place))
        || beneath("/dev")
        || beneath("/proc")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn one(stderr: &str) -> Option<(Reason, String)> {
        let policy = Policy::preset("full_isolation").unwrap();
        read(stderr, &policy).into_iter().next().map(|Hint(denial)| (denial.reason, denial.target))
    }

    #[test]
    fn well_known_errors_name_the_wall() {
        for (line, reason, target) in [
            ("touch: cannot touch '/etc/x': Read-only file system", Reason::ReadOnly, "/etc/x"),
            ("sh: 1: cannot create /usr/x: Permission denied", Reason::ReadOnly, "/usr/x"),
            ("PermissionError: [Errno 13] Permission denied: '/opt/a b'", Reason::ReadOnly, "/opt/a"),
            ("sh: 1: ssh: Permission denied", Reason::CommandDenied, "ssh"),
            ("bash: line 1: /usr/bin/sudo: Permission denied", Reason::CommandDenied, "sudo"),
            ("chown: changing ownership of 'x': Operation not permitted", Reason::Privilege, "Operation not permitted"),
            ("curl: (6) Could not resolve host: example.com", Reason::Network, "Could not resolve host"),
            ("connect: Network is unreachable", Reason::Network, "Network is unreachable"),
            ("dd: error writing '/tmp/x': No space left on device", Reason::TmpLimit, "/tmp"),
            ("cp: writing '/workspace/x': No space left on device", Reason::DiskLimit, "/workspace, HOME or /tmp"),
            ("sh: 0: Cannot fork", Reason::PidsLimit, "processes"),
            ("OSError: [Errno 12] Cannot allocate memory", Reason::MemoryLimit, "memory"),
            ("OSError: [Errno 38] Function not implemented", Reason::SystemCall, "Function not implemented"),
        ] {
            assert_eq!(one(line), Some((reason, target.to_owned())), "{line}");
        }
    }

    #[test]
    fn what_is_the_programs_own_affair_is_no_hint() {
        for line in [
            "cat: /workspace/secret: Permission denied",
            "cat: /home/sandbox/secret: Permission denied",
            "cat: secret: Permission denied",
            "the permission was denied",
            "",
        ] {
            assert_eq!(one(line), None, "{line}");
        }
    }

    #[test]
    fn only_the_end_is_read_and_each_reason_once() {
        let policy = Policy::default();
        let early = format!("touch: '/etc/x': Read-only file system\n{}", "x\n".repeat(5000));
        assert_eq!(read(&early, &policy), []);
        let many = "a: Read-only file system\nb: Operation not permitted\n".repeat(100);
        assert_eq!(read(&many, &policy).len(), 2);
        assert!(read(&many, &policy).iter().all(|Hint(denial)| denial.message.starts_with("probably")));
    }

    proptest! {
        #[test]
        fn no_output_makes_it_panic_or_grow(text in "(Permission denied|Cannot fork|[/é:' \n\u{202e}\\x00-\\x7f]){0,200}") {
            let hints = read(&text, &Policy::default());
            prop_assert!(hints.len() <= MOST && hints.iter().all(|Hint(denial)| denial.target.len() <= 800));
        }
    }
}
