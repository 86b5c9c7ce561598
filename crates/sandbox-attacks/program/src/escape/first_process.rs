//! Reading, changing, stopping or steering the sandbox's first process, which is the executor.

use std::{
    fs,
    io::{Read, Seek, SeekFrom, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
};

use crate::{
    Attack,
    arguments::Arguments,
    outcome::Outcome,
    sys::{Argument, call, n},
};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("first_process_root", |_| listed("/proc/1/root/")),
    ("first_process_folder", |_| listed("/proc/1/cwd/")),
    ("first_process_descriptors", |_| {
        Outcome::first_breach(["fd", "task/1/fd", "fdinfo", "map_files"].map(|name| listed(&format!("/proc/1/{name}"))))
    }),
    ("first_process_environment", |_| read("environ")),
    ("first_process_memory", memory),
    ("first_process_map", |_| Outcome::first_breach(["maps", "smaps", "numa_maps", "pagemap"].map(read))),
    ("first_process_state", |_| {
        Outcome::first_breach(["auxv", "syscall", "stack", "io", "personality", "timerslack_ns"].map(read))
    }),
    ("first_process_layout", layout),
    ("first_process_program", program),
    ("first_process_program_overwrite", overwrite),
    ("first_process_namespaces", |_| Outcome::first_breach(["mnt", "user", "net", "pid"].map(namespace_name))),
    ("first_process_oom_score", |_| write("oom_score_adj", "1000")),
    ("first_process_settings", settings),
    ("first_process_id_maps", |_| {
        Outcome::first_breach(["uid_map", "gid_map", "setgroups", "projid_map"].map(|name| write(name, "0 0 1\n")))
    }),
    ("ptrace_first_process", ptrace),
    ("read_first_process_by_vm", vm_read),
    ("write_first_process_by_vm", vm_write),
    ("take_descriptor_of_first_process", take_descriptor),
    ("compare_with_first_process", |_| {
        Outcome::of("kcmp", call(libc::SYS_kcmp, [n(1), n(i64::from(std::process::id())), n(1), n(0), n(0)]))
    }),
    ("limits_of_first_process", limits),
    ("processors_of_first_process", processors),
    ("priority_of_first_process", priority),
    ("pages_of_first_process", pages),
    ("session_of_first_process", session),
    ("signals_to_first_process", signals),
    ("signals_of_files_to_first_process", signals_of_files),
    ("null_device_of_first_process", null_device),
    ("kill_everything", kill_everything),
];

/// fcntl(2) and ioctl_sockios(2): the C library does not have them everywhere.
const F_SETSIG: i32 = 10;
const F_SETOWN_EX: i32 = 15;
const FIOSETOWN: i32 = 0x8901;
const SIOCSPGRP: i32 = 0x8902;

fn listed(path: &str) -> Outcome {
    match fs::read_dir(path).map(|entries| entries.count()) {
        Ok(count) => Outcome::BrokeThrough(format!("{path} has {count} entries")),
        Err(error) => Outcome::Held(format!("{path}: {error}")),
    }
}

fn read(name: &str) -> Outcome {
    let mut content = [0; 64];
    let path = format!("/proc/1/{name}");
    match fs::File::open(&path).and_then(|mut file| file.read(&mut content)) {
        Ok(0) => Outcome::Held(format!("{path} is empty")),
        Ok(length) => {
            Outcome::BrokeThrough(format!("{path}: {}", String::from_utf8_lossy(&content[..length]).escape_debug()))
        }
        Err(error) => Outcome::Held(format!("{path}: {error}")),
    }
}

fn write(name: &str, value: &str) -> Outcome {
    let path = format!("/proc/1/{name}");
    let written = fs::OpenOptions::new().write(true).open(&path).and_then(|mut file| file.write_all(value.as_bytes()));
    Outcome::of(format!("writing {value:?} to {path}"), written)
}

fn memory(_: &Arguments) -> Outcome {
    let open = |writable| fs::OpenOptions::new().read(true).write(writable).open("/proc/1/mem");
    for writable in [true, false] {
        if let Ok(mut file) = open(writable) {
            let mut byte = [0];
            // A static program without a fixed place begins at one of these; that the file opens is proof enough.
            let read = file.seek(SeekFrom::Start(0x40_0000)).and_then(|_| file.read(&mut byte));
            return Outcome::BrokeThrough(format!("/proc/1/mem was opened (writable: {writable}, read: {read:?})"));
        }
    }
    Outcome::Held("/proc/1/mem cannot be opened".to_owned())
}

/// Addresses in `stat` are 0 or 1 for who may not look.
fn layout(_: &Arguments) -> Outcome {
    let stat = fs::read_to_string("/proc/1/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let addresses = fields.iter().enumerate().filter(|(index, _)| matches!(index + 3, 26..=30 | 45..=51));
    let shown = addresses.filter(|(_, text)| text.parse::<u64>().is_ok_and(|value| value > 1));
    Outcome::of_list(
        "addresses of the first process",
        shown.map(|(index, text)| format!("field {}: {text}", index + 3)).collect(),
    )
}

fn program(_: &Arguments) -> Outcome {
    let link = fs::read_link("/proc/1/exe");
    let opened = fs::File::open("/proc/1/exe");
    Outcome::first_breach([
        Outcome::of("reading the link /proc/1/exe", link),
        Outcome::of("opening /proc/1/exe", opened),
    ])
}

fn overwrite(_: &Arguments) -> Outcome {
    let what = "opening /proc/1/exe for writing";
    match fs::OpenOptions::new().write(true).open("/proc/1/exe") {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Outcome::Held(format!("{what}: it is covered")),
        // A program that runs is busy, which is told only to who may open it.
        opened => Outcome::of_door(what, opened),
    }
}

fn namespace_name(name: &str) -> Outcome {
    Outcome::of(format!("reading the link /proc/1/ns/{name}"), fs::read_link(format!("/proc/1/ns/{name}")))
}

fn settings(_: &Arguments) -> Outcome {
    let values = [
        ("coredump_filter", "0"),
        ("comm", "taken"),
        ("timerslack_ns", "1000000000"),
        ("clear_refs", "1"),
        ("autogroup", "19"),
        ("sched", "0"),
        ("loginuid", "0"),
        ("oom_adj", "15"),
        ("make-it-fail", "1"),
        ("attr/current", "x"),
        ("attr/exec", "x"),
    ];
    Outcome::first_breach(values.map(|(name, value)| write(name, value)))
}

fn ptrace(_: &Arguments) -> Outcome {
    const SEIZE: i64 = 0x4206;
    let attempts = [i64::from(libc::PTRACE_ATTACH), SEIZE]
        .map(|request| Outcome::of("ptrace", call(libc::SYS_ptrace, [n(request), n(1), n(0), n(0)])));
    Outcome::first_breach(attempts)
}

/// Two vectors, one here and one there, whose place is only guessed: who may look gets EFAULT instead of a refusal.
fn vm(number: libc::c_long) -> std::io::Result<i64> {
    let mut buffer = [0u8; 16];
    let here = [(buffer.as_mut_ptr() as u64).to_ne_bytes(), 16u64.to_ne_bytes()].concat();
    let there = [0x40_0000u64.to_ne_bytes(), 16u64.to_ne_bytes()].concat();
    call(number, [n(1), Argument::Bytes(&here), n(1), Argument::Bytes(&there), n(1), n(0)])
}

fn vm_read(_: &Arguments) -> Outcome {
    Outcome::of_door("process_vm_readv", vm(libc::SYS_process_vm_readv))
}

fn vm_write(_: &Arguments) -> Outcome {
    // Only reached where reading is: nothing is written unless that page is writable, which program text is not.
    Outcome::of_door("process_vm_writev", vm(libc::SYS_process_vm_writev))
}

fn take_descriptor(_: &Arguments) -> Outcome {
    let attempts = (0..64).map(|number| {
        let taken = call(libc::SYS_pidfd_open, [n(1), n(0)])
            .and_then(|first| call(libc::SYS_pidfd_getfd, [n(first), n(number), n(0)]));
        Outcome::of(format!("taking descriptor {number} of the first process"), taken)
    });
    Outcome::first_breach(attempts.collect::<Vec<_>>())
}

fn limits(_: &Arguments) -> Outcome {
    // Its present limit, so that nothing changes where it works.
    let mut present = [0u8; 16];
    let read =
        call(libc::SYS_prlimit64, [n(1), n(i64::from(libc::RLIMIT_NOFILE)), n(0), Argument::Buffer(&mut present)]);
    if read.is_err() {
        return Outcome::of("reading its limits", read);
    }
    let set = call(libc::SYS_prlimit64, [n(1), n(i64::from(libc::RLIMIT_NOFILE)), Argument::Bytes(&present), n(0)]);
    Outcome::of("setting the first process's limits", set)
}

fn processors(_: &Arguments) -> Outcome {
    let mut mask = [0u8; 128];
    if let Err(error) = call(libc::SYS_sched_getaffinity, [n(1), n(128), Argument::Buffer(&mut mask)]) {
        return Outcome::Held(format!("sched_getaffinity: {error}"));
    }
    Outcome::of(
        "setting the first process's processors",
        call(libc::SYS_sched_setaffinity, [n(1), n(128), Argument::Bytes(&mask)]),
    )
}

fn priority(_: &Arguments) -> Outcome {
    let idle = 5;
    let attempts = [
        Outcome::of("lowering its priority", call(libc::SYS_setpriority, [n(0), n(1), n(19)])),
        Outcome::of("making it idle", call(libc::SYS_sched_setscheduler, [n(1), n(idle), Argument::Bytes(&[0; 4])])),
        Outcome::of("lowering its disk priority", call(libc::SYS_ioprio_set, [n(1), n(1), n(3 << 13)])),
    ];
    Outcome::first_breach(attempts)
}

fn pages(_: &Arguments) -> Outcome {
    let first = call(libc::SYS_pidfd_open, [n(1), n(0)]).unwrap_or(-1);
    let vector = [0x40_0000u64.to_ne_bytes(), 4096u64.to_ne_bytes()].concat();
    let cold = 20;
    let attempts = [
        Outcome::of_door(
            "process_madvise",
            call(libc::SYS_process_madvise, [n(first), Argument::Bytes(&vector), n(1), n(cold), n(0)]),
        ),
        Outcome::of_door("process_mrelease", call(libc::SYS_process_mrelease, [n(first), n(0)])),
        Outcome::of_door("move_pages", call(libc::SYS_move_pages, [n(1), n(0), n(0), n(0), n(0), n(0)])),
    ];
    Outcome::first_breach(attempts)
}

/// Its group and its session have no number in here if they are those of somebody outside.
fn session(_: &Arguments) -> Outcome {
    let stat = fs::read_to_string("/proc/1/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    match (fields.get(2), fields.get(3)) {
        (Some(&group), Some(&session)) if group == "0" || session == "0" => {
            Outcome::BrokeThrough(format!("the first process is in group {group}, session {session}: not its own"))
        }
        (Some(group), Some(session)) => Outcome::Held(format!("it is in group {group}, session {session}")),
        _ => Outcome::NotApplicable("/proc/1/stat does not tell".to_owned()),
    }
}

/// Every signal by every way. The suite asks the executor afterwards; here it is seen whether it was stopped.
fn signals(_: &Arguments) -> Outcome {
    let first = call(libc::SYS_pidfd_open, [n(1), n(0)]).unwrap_or(-1);
    let mut information = [0u8; 128];
    for signal in 1..=64i64 {
        information[0] = signal as u8;
        information[8..12].copy_from_slice(&(-1i32).to_ne_bytes());
        let _ = call(libc::SYS_kill, [n(1), n(signal)]);
        let _ = call(libc::SYS_tgkill, [n(1), n(1), n(signal)]);
        let _ = call(libc::SYS_pidfd_send_signal, [n(first), n(signal), n(0), n(0)]);
        let _ = call(libc::SYS_rt_sigqueueinfo, [n(1), n(signal), Argument::Bytes(&information)]);
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    let stat = fs::read_to_string("/proc/1/stat").unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('?');
    match state {
        '?' => Outcome::Held("the first process is covered, and the suite asks it".to_owned()),
        'T' | 't' | 'Z' | 'X' => Outcome::BrokeThrough(format!("the first process is in state {state}")),
        _ => Outcome::Held(format!("the first process is in state {state}")),
    }
}

/// A socket whose owner is told when there is something to read, by a signal of one's own choice; the owner is somebody else.
fn signals_of_files(_: &Arguments) -> Outcome {
    let first = 1i32.to_ne_bytes();
    let of_one_process = [0, 0, 0, 0, 1, 0, 0, 0];
    for signal in [libc::SIGKILL, libc::SIGSTOP, libc::SIGIO] {
        for way in 0..4 {
            let Ok((mut writer, reader)) = UnixStream::pair() else { continue };
            let socket = || n(reader.as_raw_fd());
            let _ = match way {
                0 => call(libc::SYS_fcntl, [socket(), n(libc::F_SETOWN), n(1)]),
                1 => call(libc::SYS_fcntl, [socket(), n(F_SETOWN_EX), Argument::Bytes(&of_one_process)]),
                2 => call(libc::SYS_ioctl, [socket(), n(FIOSETOWN), Argument::Bytes(&first)]),
                _ => call(libc::SYS_ioctl, [socket(), n(SIOCSPGRP), Argument::Bytes(&first)]),
            };
            let _ = call(libc::SYS_fcntl, [socket(), n(F_SETSIG), n(signal)]);
            let _ = call(libc::SYS_fcntl, [socket(), n(libc::F_SETFL), n(libc::O_ASYNC)]);
            let _ = writer.write_all(b"x");
        }
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    Outcome::Held("the suite asks the first process".to_owned())
}

/// A pipe in place of what commands without input read: who opens that waits for ever.
fn null_device(_: &Arguments) -> Outcome {
    let removed = fs::remove_file("/dev/null");
    let pipe = n(libc::S_IFIFO as i32 | 0o666);
    let made = call(libc::SYS_mknodat, [n(libc::AT_FDCWD), Argument::Text(c"/dev/null"), pipe, n(0)]);
    match (removed, made) {
        (Ok(()), Ok(_)) => Outcome::Held("it is a pipe now, and the suite starts a command".to_owned()),
        (Err(error), _) | (_, Err(error)) => Outcome::Held(format!("it stays what it is: {error}")),
    }
}

/// The suite asks afterwards whether the executor lives; that we die of it is no breach.
fn kill_everything(_: &Arguments) -> Outcome {
    let _ = call(libc::SYS_kill, [n(-1), n(libc::SIGSTOP)]);
    let _ = call(libc::SYS_kill, [n(-1), n(libc::SIGKILL)]);
    Outcome::Held("the signal was sent".to_owned())
}
