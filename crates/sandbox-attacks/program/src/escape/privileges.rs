//! Becoming more than one is.

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::{MetadataExt, PermissionsExt},
    process::{Command, Stdio},
    time::Duration,
};

use crate::{
    Attack,
    arguments::Arguments,
    outcome::Outcome,
    sys::{Argument, call, n},
};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("become_root", become_root),
    ("become_root_group", become_root_group),
    ("hold_capabilities", hold_capabilities),
    ("raise_capabilities", raise_capabilities),
    ("raise_ambient_capabilities", raise_ambient),
    ("change_securebits", |_| {
        Outcome::of("PR_SET_SECUREBITS", call(libc::SYS_prctl, [n(28), n(0x2f), n(0), n(0), n(0)]))
    }),
    ("move_own_memory_map", |_| {
        Outcome::of("PR_SET_MM", call(libc::SYS_prctl, [n(35), n(1), n(0x40_0000), n(0), n(0)]))
    }),
    ("setuid_programs", setuid_programs),
    ("own_setuid_program", own_setuid_program),
    ("setuid_for_another", setuid_for_another),
    ("file_capabilities", file_capabilities),
    ("gain_by_exec", gain_by_exec),
    ("give_files_away", give_files_away),
    ("realtime_priority", |_| {
        Outcome::of(
            "SCHED_FIFO",
            call(libc::SYS_sched_setscheduler, [n(0), n(1), Argument::Bytes(&1i32.to_ne_bytes())]),
        )
    }),
    ("raise_priority", |_| Outcome::of("a higher priority", call(libc::SYS_setpriority, [n(0), n(0), n(-5)]))),
    ("raise_hard_limit", raise_hard_limit),
    ("protect_from_oom", protect_from_oom),
];

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn root_already() -> Outcome {
    Outcome::NotApplicable("the policy makes commands root inside".to_owned())
}

fn become_root(_: &Arguments) -> Outcome {
    if is_root() {
        return root_already();
    }
    Outcome::first_breach([
        Outcome::of("setuid(0)", call(libc::SYS_setuid, [n(0)])),
        Outcome::of("setresuid(0)", call(libc::SYS_setresuid, [n(0), n(0), n(0)])),
        Outcome::of("setreuid(0)", call(libc::SYS_setreuid, [n(0), n(0)])),
    ])
}

fn become_root_group(_: &Arguments) -> Outcome {
    if is_root() {
        return root_already();
    }
    Outcome::first_breach([
        Outcome::of("setgid(0)", call(libc::SYS_setgid, [n(0)])),
        Outcome::of("setgroups([0])", call(libc::SYS_setgroups, [n(1), Argument::Bytes(&[0; 4])])),
    ])
}

/// The sets as the kernel shows them, against what the policy grants.
fn hold_capabilities(arguments: &Arguments) -> Outcome {
    let number = |text: &str| u64::from_str_radix(text.trim(), 16).unwrap_or_default();
    let granted = number(arguments.text("granted").unwrap_or_default());
    let bounding = number(arguments.text("bounding").unwrap_or_default());
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let beyond = status.lines().filter_map(|line| {
        let (name, value) = line.split_once(':').filter(|(name, _)| name.starts_with("Cap"))?;
        let allowed = if name == "CapBnd" { granted | bounding } else { granted };
        let extra = number(value) & !allowed;
        (extra != 0).then(|| format!("{name} {extra:x}"))
    });
    Outcome::of_list("capabilities beyond the policy", beyond.collect())
}

fn raise_capabilities(arguments: &Arguments) -> Outcome {
    // Version 3 of the header, ourselves, every capability in two halves of three sets.
    let header = [0x2008_0522u32.to_ne_bytes(), [0; 4]].concat();
    let _ = call(libc::SYS_capset, [Argument::Bytes(&header), Argument::Bytes(&[0xff; 24])]);
    hold_capabilities(arguments)
}

fn raise_ambient(arguments: &Arguments) -> Outcome {
    for number in 0..41 {
        let _ = call(libc::SYS_prctl, [n(47), n(2), n(number), n(0), n(0)]);
    }
    hold_capabilities(arguments)
}

/// Programs that are root for whoever starts them, started; while they wait for input their user is looked at.
fn setuid_programs(_: &Arguments) -> Outcome {
    if is_root() {
        return root_already();
    }
    let own = rustix::process::getuid().as_raw();
    let mut tried = 0;
    for folder in ["/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/lib/openssh", "/usr/lib/dbus-1.0"]
    {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(found) = entry.metadata() else { continue };
            if found.mode() & 0o6000 == 0 || !found.is_file() {
                continue;
            }
            tried += 1;
            if let Some(identity) = identity_of(&entry.path(), own) {
                return Outcome::BrokeThrough(format!("{} runs as {identity}", entry.path().display()));
            }
            if tried == 8 {
                return Outcome::Held(format!("{tried} setuid programs run as the sandbox's user"));
            }
        }
    }
    match tried {
        0 => Outcome::NotApplicable("there are no setuid programs".to_owned()),
        _ => Outcome::Held(format!("{tried} setuid programs run as the sandbox's user")),
    }
}

/// Who a program runs as, if not as us.
fn identity_of(path: &std::path::Path, own: u32) -> Option<String> {
    let mut command = Command::new(path);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    let mut seen = None;
    for _ in 0..8 {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
        if ids.split_whitespace().any(|id| id.parse() != Ok(own)) && !ids.is_empty() {
            seen = Some(format!("Uid{}", ids.replace('\t', " ")));
            break;
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    let _ = child.kill();
    let _ = child.wait();
    seen
}

/// A copy of ourselves, given to the group of root or made setuid: what it runs as is what counts.
fn own_setuid_program(_: &Arguments) -> Outcome {
    let made = || -> io::Result<String> {
        let path = format!("/workspace/setuid-{}", std::process::id());
        fs::copy("/proc/self/exe", &path)?;
        std::os::unix::fs::chown(&path, Some(0), Some(0)).or(Ok::<(), io::Error>(()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755))?;
        let mut child = Command::new(&path).arg("become_root").stdout(Stdio::piped()).spawn()?;
        let mut said = String::new();
        child.stdout.take().map(|mut out| out.read_to_string(&mut said)).transpose()?;
        let _ = child.wait();
        let _ = fs::remove_file(&path);
        Ok(said)
    };
    if is_root() {
        return root_already();
    }
    match made() {
        Ok(said) if said.contains("broke_through") || said.contains("root inside") => {
            Outcome::BrokeThrough("a program that was made setuid became root".to_owned())
        }
        Ok(_) => Outcome::Held("a setuid copy gains nothing".to_owned()),
        Err(error) => Outcome::Held(format!("making a setuid copy: {error}")),
    }
}

/// Root inside gives a copy of ourselves to another user and makes it setuid. Run as that user, it is not root any more.
fn setuid_for_another(_: &Arguments) -> Outcome {
    if !is_root() {
        return Outcome::NotApplicable("only root inside may give files away".to_owned());
    }
    let path = format!("/workspace/of-another-{}", std::process::id());
    let made = fs::copy("/proc/self/exe", &path)
        .and_then(|_| std::os::unix::fs::chown(&path, Some(1), Some(1)))
        .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)))
        .and_then(|()| Command::new(&path).arg("become_root").output());
    let _ = fs::remove_file(&path);
    match made {
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains("root inside") => {
            Outcome::Held("a setuid copy runs as who started it".to_owned())
        }
        Ok(output) if output.status.success() => {
            Outcome::BrokeThrough("a program ran as its owner, and not as who started it".to_owned())
        }
        Ok(output) => Outcome::Held(format!("a setuid copy did not run: {}", output.status)),
        Err(error) => Outcome::Held(format!("a setuid copy for another user: {error}")),
    }
}

fn file_capabilities(_: &Arguments) -> Outcome {
    let path = format!("/workspace/capable-{}", std::process::id());
    if let Err(error) = fs::write(&path, "x") {
        return Outcome::NotApplicable(format!("no file: {error}"));
    }
    let name = std::ffi::CString::new(path.clone()).unwrap_or_default();
    let value = [1u32 | 0x0200_0000, 1 << 21, 0, 0, 0].map(u32::to_ne_bytes).concat();
    let set = call(
        libc::SYS_setxattr,
        [Argument::Text(&name), Argument::Text(c"security.capability"), Argument::Bytes(&value), n(20), n(0)],
    );
    let _ = fs::remove_file(&path);
    Outcome::of("CAP_SYS_ADMIN on a file", set)
}

fn gain_by_exec(_: &Arguments) -> Outcome {
    match call(libc::SYS_prctl, [n(39), n(0), n(0), n(0), n(0)]) {
        Ok(0) => Outcome::BrokeThrough("no_new_privs is not set: starting a program may gain privileges".to_owned()),
        Ok(_) => Outcome::Held("no_new_privs is set".to_owned()),
        Err(error) => Outcome::Held(format!("PR_GET_NO_NEW_PRIVS: {error}")),
    }
}

fn give_files_away(_: &Arguments) -> Outcome {
    let path = format!("/workspace/given-{}", std::process::id());
    let given = fs::write(&path, "x").and_then(|()| std::os::unix::fs::chown(&path, Some(1), Some(1)));
    let _ = fs::remove_file(&path);
    Outcome::of("giving a file to another user", given)
}

fn raise_hard_limit(_: &Arguments) -> Outcome {
    let kinds = [
        ("processes", libc::RLIMIT_NPROC),
        ("open files", libc::RLIMIT_NOFILE),
        ("file size", libc::RLIMIT_FSIZE),
        ("queued signals", libc::RLIMIT_SIGPENDING),
        ("message queues", libc::RLIMIT_MSGQUEUE),
        ("locked memory", libc::RLIMIT_MEMLOCK),
        ("memory", libc::RLIMIT_AS),
        ("data", libc::RLIMIT_DATA),
    ];
    let raised = kinds.iter().filter(|(_, kind)| {
        let mut present = [0u8; 16];
        let kind = *kind as i64;
        let _ = call(libc::SYS_prlimit64, [n(0), n(kind), n(0), Argument::Buffer(&mut present)]);
        let hard = u64::from_ne_bytes(present[8..].try_into().unwrap_or_default());
        if hard == u64::MAX {
            return false;
        }
        present[8..].copy_from_slice(&(hard + 1).to_ne_bytes());
        call(libc::SYS_prlimit64, [n(0), n(kind), Argument::Bytes(&present), n(0)]).is_ok()
    });
    Outcome::of_list("hard limits that could be raised", raised.map(|(name, _)| (*name).to_owned()).collect())
}

/// Lower than the executor, so that it dies first. As low as that a command may go back.
fn protect_from_oom(_: &Arguments) -> Outcome {
    let score = |process: &str| -> Option<i32> {
        fs::read_to_string(format!("/proc/{process}/oom_score_adj")).ok()?.trim().parse().ok()
    };
    // While it starts a command it has that command's score for a moment.
    let look = |_| {
        std::thread::sleep(Duration::from_millis(2));
        score("1")
    };
    let first = (0..20).filter_map(look).min().unwrap_or_default();
    let below = (first - 1).max(-1000);
    let set = fs::write("/proc/self/oom_score_adj", below.to_string());
    if set.is_ok() && score("self").is_some_and(|own| own < first) {
        return Outcome::BrokeThrough(format!("oom_score_adj is {below}, below the executor's {first}"));
    }
    Outcome::Held(format!("oom_score_adj below {first}: {:?}", set.err()))
}
