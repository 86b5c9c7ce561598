//! Doors into the kernel that commands have no business with. Each is knocked at so that nothing happens if it opens.

use crate::{
    Attack,
    arguments::Arguments,
    outcome::Outcome,
    sys::{Argument, call, n},
};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("kexec_load", |_| Outcome::of_door("kexec_load", call(libc::SYS_kexec_load, [n(0), n(100), n(0), n(-1)]))),
    ("kexec_file_load", |_| {
        Outcome::of_door("kexec_file_load", call(libc::SYS_kexec_file_load, [n(-1), n(-1), n(0), n(0), n(0)]))
    }),
    ("load_module", |_| {
        Outcome::of_door(
            "init_module",
            call(libc::SYS_init_module, [Argument::Bytes(&[0; 64]), n(64), Argument::Text(c"")]),
        )
    }),
    ("load_module_from_file", |_| {
        Outcome::of_door("finit_module", call(libc::SYS_finit_module, [n(-1), Argument::Text(c""), n(0)]))
    }),
    ("remove_module", |_| {
        Outcome::of_door(
            "delete_module",
            call(libc::SYS_delete_module, [Argument::Text(c"sandbox_attack_nothing"), n(libc::O_NONBLOCK)]),
        )
    }),
    ("bpf", bpf),
    ("io_uring", |_| {
        Outcome::of("io_uring_setup", call(libc::SYS_io_uring_setup, [n(1), Argument::Buffer(&mut [0; 128])]))
    }),
    ("io_uring_register", |_| {
        Outcome::of_door("io_uring_register", call(libc::SYS_io_uring_register, [n(-1), n(0), n(0), n(0)]))
    }),
    ("add_key", |_| {
        Outcome::of(
            "add_key",
            call(
                libc::SYS_add_key,
                [Argument::Text(c"user"), Argument::Text(c"sandbox-attack"), Argument::Bytes(b"x"), n(1), n(-2)],
            ),
        )
    }),
    ("read_keyring", |_| Outcome::of_door("keyctl", call(libc::SYS_keyctl, [n(0), n(-3), n(0)]))),
    ("request_key", |_| {
        Outcome::of_door(
            "request_key",
            call(libc::SYS_request_key, [Argument::Text(c"user"), Argument::Text(c"sandbox-attack"), n(0), n(-2)]),
        )
    }),
    ("userfaultfd", userfaultfd),
    ("perf_event_open", perf_event_open),
    ("open_by_handle", open_by_handle),
    ("quotactl", |_| {
        Outcome::of_door(
            "quotactl",
            call(
                libc::SYS_quotactl,
                [n(0x80_0002 << 8), Argument::Text(c"/dev/null"), n(0), Argument::Buffer(&mut [0; 128])],
            ),
        )
    }),
    ("swapon", |_| Outcome::of_door("swapon", call(libc::SYS_swapon, [Argument::Text(c"/nonexistent"), n(0)]))),
    ("reboot", |_| Outcome::of_door("reboot", call(libc::SYS_reboot, [n(0), n(0), n(0), n(0)]))),
    ("set_time", set_time),
    ("set_host_name", set_host_name),
    ("io_ports", io_ports),
    ("process_accounting", |_| Outcome::of_door("acct", call(libc::SYS_acct, [Argument::Text(c"/nonexistent")]))),
    ("fanotify", |_| Outcome::of("fanotify_init", call(libc::SYS_fanotify_init, [n(0x200), n(0)]))),
    ("hang_up_terminal", |_| Outcome::of("vhangup", call(libc::SYS_vhangup, []))),
    ("trace_a_child", trace_a_child),
    ("secret_memory", |_| Outcome::of("memfd_secret", call(libc::SYS_memfd_secret, [n(0)]))),
    ("weaken_personality", weaken_personality),
    ("unfiltered", unfiltered),
    ("unknown_calls", unknown_calls),
];

fn bpf(_: &Arguments) -> Outcome {
    // A map of one element, then a program that does nothing.
    let mut map = [0u8; 128];
    for (index, value) in [2u32, 4, 4, 1].iter().enumerate() {
        map[4 * index..4 * index + 4].copy_from_slice(&value.to_ne_bytes());
    }
    let nothing: [u8; 16] = [0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    let mut program = [0u8; 128];
    program[0..4].copy_from_slice(&1u32.to_ne_bytes());
    program[4..8].copy_from_slice(&2u32.to_ne_bytes());
    program[8..16].copy_from_slice(&(nothing.as_ptr() as u64).to_ne_bytes());
    program[16..24].copy_from_slice(&(c"GPL".as_ptr() as u64).to_ne_bytes());
    Outcome::first_breach([
        Outcome::of("a bpf map", call(libc::SYS_bpf, [n(0), Argument::Buffer(&mut map), n(128)])),
        Outcome::of("a bpf program", call(libc::SYS_bpf, [n(5), Argument::Buffer(&mut program), n(128)])),
    ])
}

fn userfaultfd(_: &Arguments) -> Outcome {
    let user_mode_only = 1;
    Outcome::first_breach([
        Outcome::of("userfaultfd", call(libc::SYS_userfaultfd, [n(user_mode_only)])),
        Outcome::of("opening /dev/userfaultfd", std::fs::File::open("/dev/userfaultfd")),
    ])
}

fn perf_event_open(_: &Arguments) -> Outcome {
    // Software event, task clock, of ourselves, user mode only.
    let mut attributes = [0u8; 128];
    attributes[0..4].copy_from_slice(&1u32.to_ne_bytes());
    attributes[4..8].copy_from_slice(&128u32.to_ne_bytes());
    attributes[8..16].copy_from_slice(&1u64.to_ne_bytes());
    attributes[40] = 0b0110_0001;
    Outcome::of(
        "perf_event_open",
        call(libc::SYS_perf_event_open, [Argument::Bytes(&attributes), n(0), n(-1), n(-1), n(0)]),
    )
}

/// A file named by its number instead of a path: how containers were left before.
fn open_by_handle(_: &Arguments) -> Outcome {
    let mut handle = vec![0u8; 128];
    handle[0] = 120;
    let mut mount = [0u8; 8];
    let named = call(
        libc::SYS_name_to_handle_at,
        [n(libc::AT_FDCWD), Argument::Text(c"/tmp"), Argument::Buffer(&mut handle), Argument::Buffer(&mut mount), n(0)],
    );
    let opened = call(libc::SYS_open_by_handle_at, [n(libc::AT_FDCWD), Argument::Buffer(&mut handle), n(0)]);
    Outcome::first_breach([Outcome::of("open_by_handle_at", opened), Outcome::of("name_to_handle_at", named)])
}

/// The time that it is, so that nothing changes where it works.
fn set_time(_: &Arguments) -> Outcome {
    let mut now = [0u8; 16];
    let _ = call(libc::SYS_clock_gettime, [n(0), Argument::Buffer(&mut now)]);
    let offset_by_nothing = [0u8; 256];
    Outcome::first_breach([
        Outcome::of("clock_settime", call(libc::SYS_clock_settime, [n(0), Argument::Bytes(&now)])),
        Outcome::of("settimeofday", call(libc::SYS_settimeofday, [n(0), Argument::Bytes(&[0; 8])])),
        Outcome::of("adjtimex", {
            let mut set = offset_by_nothing;
            set[0] = 1;
            call(libc::SYS_adjtimex, [Argument::Buffer(&mut set)])
        }),
        Outcome::of("clock_adjtime", {
            let mut set = offset_by_nothing;
            set[0] = 1;
            call(libc::SYS_clock_adjtime, [n(0), Argument::Buffer(&mut set)])
        }),
    ])
}

fn set_host_name(_: &Arguments) -> Outcome {
    let name = rustix::system::uname().nodename().to_bytes().to_vec();
    Outcome::first_breach([
        Outcome::of("sethostname", call(libc::SYS_sethostname, [Argument::Bytes(&name), n(name.len() as i64)])),
        Outcome::of("setdomainname", call(libc::SYS_setdomainname, [Argument::Bytes(b"(none)"), n(6)])),
    ])
}

#[cfg(target_arch = "x86_64")]
fn io_ports(_: &Arguments) -> Outcome {
    Outcome::first_breach([
        Outcome::of("iopl", call(libc::SYS_iopl, [n(3)])),
        Outcome::of("ioperm", call(libc::SYS_ioperm, [n(0x80), n(1), n(1)])),
        Outcome::of("opening /dev/port", std::fs::File::open("/dev/port")),
    ])
}

#[cfg(not(target_arch = "x86_64"))]
fn io_ports(_: &Arguments) -> Outcome {
    Outcome::NotApplicable("this processor has no ports".to_owned())
}

/// Tracing a child of one's own is harmless by itself; a tracer gets around filters, so the door is closed.
fn trace_a_child(_: &Arguments) -> Outcome {
    let code = crate::sys::fork(|| i32::from(call(libc::SYS_ptrace, [n(0), n(0), n(0), n(0)]).is_err()))
        .and_then(crate::sys::wait);
    match code {
        Ok(0) => Outcome::BrokeThrough("a child let itself be traced".to_owned()),
        Ok(_) => Outcome::Held("PTRACE_TRACEME was refused".to_owned()),
        Err(error) => Outcome::NotApplicable(format!("no child: {error}")),
    }
}

/// Programs without random addresses, or with all memory executable, are easier prey.
fn weaken_personality(_: &Arguments) -> Outcome {
    let flags = [("ADDR_NO_RANDOMIZE", 0x004_0000), ("READ_IMPLIES_EXEC", 0x040_0000), ("MMAP_PAGE_ZERO", 0x010_0000)];
    let attempts =
        flags.map(|(name, flag)| Outcome::of(format!("personality {name}"), call(libc::SYS_personality, [n(flag)])));
    Outcome::first_breach(attempts)
}

fn unfiltered(_: &Arguments) -> Outcome {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    match status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim) {
        Some("2") => Outcome::Held("system calls are filtered".to_owned()),
        mode => Outcome::BrokeThrough(format!("system calls are not filtered (mode {mode:?})")),
    }
}

/// Numbers that no kernel of today has: a list of what is forbidden would let them through tomorrow. They say the same
/// with a filter and without one, so only a surprise is a breach.
fn unknown_calls(_: &Arguments) -> Outcome {
    let broken = (480..560).filter(|number| match call(*number, []) {
        Ok(_) => true,
        Err(error) => !matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)),
    });
    Outcome::of_list("unknown system calls that were let through", broken.map(|number| number.to_string()).collect())
}
