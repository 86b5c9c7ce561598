//! Which wall a failed command probably met, read from what it printed.
//!
//! What a command prints is its own to choose, so this is a guess, and says so: a [`Hint`] is told to whoever asked,
//! marked as inferred, and is never an event, never counted, and never asked about. Hostile output can at most make a
//! wrong hint. The work is bounded: the last few kilobytes, a few lines, one hint for each reason.

use sandbox_core::{
    Denial, Policy, Reason,
    policy::{Root, User},
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
const PHRASES: [(&str, Wall); 24] = [
    ("Read-only file system", Wall::ReadOnly),
    ("Permission denied", Wall::Permission),
    ("Operation not permitted", Wall::Privilege),
    ("are you root?", Wall::Packages),
    ("requires superuser privilege", Wall::Packages),
    ("/var/lib/apt/lists/partial", Wall::Packages),
    ("Unable to locate package", Wall::Network),
    ("Network is unreachable", Wall::Network),
    ("Could not resolve host", Wall::Network),
    ("Temporary failure resolving", Wall::Network),
    ("Temporary failure in name resolution", Wall::Network),
    ("Name or service not known", Wall::Network),
    ("EAI_AGAIN", Wall::Network),
    ("getaddrinfo ENOTFOUND", Wall::Network),
    ("unable to resolve host address", Wall::Network),
    ("failed to lookup address information", Wall::Network),
    ("No space left on device", Wall::Space),
    ("Cannot fork", Wall::Processes),
    ("Resource temporarily unavailable", Wall::Processes),
    ("Cannot allocate memory", Wall::Memory),
    ("MemoryError", Wall::Memory),
    ("std::bad_alloc", Wall::Memory),
    ("Out of memory", Wall::Memory),
    ("Function not implemented", Wall::SystemCall),
];

#[derive(Clone, Copy)]
enum Wall {
    ReadOnly,
    Permission,
    Privilege,
    /// Packages of the system want root.
    Packages,
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
        Wall::Packages if policy.privileges.user == User::Root => return None,
        Wall::Packages => (
            Reason::Privilege,
            "packages of the system".to_owned(),
            format!("privileges.user = {}", policy.privileges.user),
            "only root inside installs packages of the system, and this policy gives none".to_owned(),
            "Use pip or npm, which install into HOME, or install it in a new sandbox with policy yolo-4 or build, where \
             commands are root inside"
                .to_owned(),
        ),
        Wall::Network => (
            Reason::Network,
            named,
            format!("network = {}", policy.network),
            if policy.reaches_something() {
                "the policy does not let this be reached, or it does not exist".to_owned()
            } else {
                "the policy gives no network".to_owned()
            },
            match policy.reaches_something() {
                true => "Bring what is needed with write_files, ask for the host with request_access (kind network), or use a \
                         policy that reaches it",
                false => sandbox_egress::WITHOUT_NETWORK,
            }
            .to_owned(),
        ),
        Wall::Space => no_space(path.as_deref(), policy),
        Wall::Processes => {
            full(Control::Pids, "processes", "Start fewer processes and threads, or end those that wait", policy)
        }
        Wall::Memory => {
            let told = full(Control::Memory, "memory", "Use less memory, or work on smaller pieces", policy);
            // Nobody saw how much was in use: one request beyond the limit fails just so.
            (told.0, told.1, told.2, format!("it asked for more than the memory limit of {} leaves", policy.limits.memory), told.4)
        }
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
    Some(Denial { reason, target, rule, level: policy.name.clone(), message, how_to_ask, verdict: None })
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

/// /tmp and /dev/shm are file systems of their own; who names no path may mean any.
fn no_space(path: Option<&str>, policy: &Policy) -> Told {
    let in_tmp = "Delete files in /tmp, or write to /workspace";
    let kept = "Delete files in /workspace and HOME, or create_sandbox with a policy that gives more";
    let limits = &policy.limits;
    match path {
        Some(path) if is_beneath(path, "/tmp") => full(Control::Tmp, "/tmp", in_tmp, policy),
        Some(path) if is_beneath(path, "/dev/shm") => {
            let told = full(Control::Tmp, "/dev/shm", "Delete files in /dev/shm, or write to /workspace", policy);
            let message =
                format!("/dev/shm is full: it holds 64 MiB, or the tmp limit of {} if that is less", limits.tmp);
            (told.0, told.1, told.2, message, told.4)
        }
        Some(_) => full(Control::Disk, "/workspace or HOME", kept, policy),
        None => (
            Reason::DiskLimit,
            "/workspace, HOME or /tmp".to_owned(),
            format!("limits.tmp = {}, limits.disk = {}", limits.tmp, limits.disk),
            format!(
                "/tmp is full ({}, limits.tmp), or /workspace and HOME are ({}, limits.disk)",
                limits.tmp, limits.disk
            ),
            "Delete files where you wrote, or write to /workspace instead of /tmp".to_owned(),
        ),
    }
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
    let beneath = |place: &str| is_beneath(path, place);
    let further = &policy.filesystem.writable;
    WRITABLE.into_iter().any(beneath)
        || further.iter().any(|place| beneath(place))
        || beneath("/dev")
        || beneath("/proc")
}

fn is_beneath(path: &str, place: &str) -> bool {
    path == place || path.strip_prefix(place).is_some_and(|rest| rest.starts_with('/'))
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
            ("cp: writing '/workspace/x': No space left on device", Reason::DiskLimit, "/workspace or HOME"),
            (
                "head: error writing 'standard output': No space left on device",
                Reason::DiskLimit,
                "/workspace, HOME or /tmp",
            ),
            ("dd: error writing '/dev/shm/x': No space left on device", Reason::TmpLimit, "/dev/shm"),
            ("sh: 0: Cannot fork", Reason::PidsLimit, "processes"),
            ("OSError: [Errno 12] Cannot allocate memory", Reason::MemoryLimit, "memory"),
            ("MemoryError", Reason::MemoryLimit, "memory"),
            ("terminate called after throwing an instance of 'std::bad_alloc'", Reason::MemoryLimit, "memory"),
            ("  Temporary failure resolving 'deb.debian.org'", Reason::Network, "Temporary failure resolving"),
            ("npm error code EAI_AGAIN", Reason::Network, "EAI_AGAIN"),
            (
                "E: Unable to acquire the dpkg frontend lock (/x), are you root?",
                Reason::Privilege,
                "packages of the system",
            ),
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
    fn the_limit_that_was_met_is_the_one_that_is_named() {
        let told = |stderr: &str| read(stderr, &Policy::default()).remove(0).0;
        let both = told("head: error writing 'standard output': No space left on device").message;
        assert!(both.contains("1 GiB, limits.tmp") && both.contains("10 GiB, limits.disk"), "{both}");
        let tmp = told("cp: writing '/tmp/x': No space left on device");
        assert_eq!((tmp.reason, tmp.rule.as_str()), (Reason::TmpLimit, "limits.tmp = 1 GiB"));
        assert_eq!(told("cp: writing '/tmpx': No space left on device").reason, Reason::DiskLimit);
        let memory = told("MemoryError").message;
        assert!(memory.starts_with("probably") && memory.contains("limit of 4 GiB leaves"), "{memory}");
        let network = told("curl: (6) Could not resolve host: x");
        assert!(network.message.contains("does not let this be reached"), "{network:?}");
        let root = Policy::preset("yolo-4").unwrap();
        assert_eq!(read("E: Unable to acquire the dpkg frontend lock, are you root?", &root), []);
        assert_eq!(read("E: Unable to locate package jq", &root).len(), 1);
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
