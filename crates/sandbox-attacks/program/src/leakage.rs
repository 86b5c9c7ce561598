//! Looking for what belongs to the machine, to its other processes, or to other sandboxes.

use std::{
    fs,
    hash::{DefaultHasher, Hasher},
    io::Read,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use crate::{
    Attack,
    arguments::Arguments,
    outcome::Outcome,
    sys::{Argument, call, n},
};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("environment", environment),
    ("host_secrets", host_secrets),
    ("host_folders", host_folders),
    ("host_canary_file", host_canary_file),
    ("host_processes", host_processes),
    ("host_name", host_name),
    ("host_users", host_users),
    ("mount_table", |_| seen("/proc/self/mountinfo")),
    ("cgroup_path", cgroup_path),
    ("boot_command_line", |_| seen("/proc/cmdline")),
    ("interrupts", |_| content("/proc/interrupts")),
    ("kernel_config", |_| content("/proc/config.gz")),
    ("kernel_addresses", kernel_addresses),
    ("kernel_secrets", kernel_secrets),
    ("kernel_log", kernel_log),
    ("sys_secrets", sys_secrets),
    ("shared_memory_segment", shared_memory_segment),
    ("shared_memory_file", |arguments| found([format!("/dev/shm/{}", arguments.mark()).as_str()].into_iter())),
    ("message_queue", message_queue),
    ("network_tables", network_tables),
    ("find_mark", find_mark),
    ("leave_mark", leave_mark),
];

/// Short content of a file, if it can be read and is not empty. Never waits.
fn read(path: impl AsRef<Path>, limit: u64) -> Option<Vec<u8>> {
    let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).ok()?;
    let mut content = Vec::new();
    file.take(limit).read_to_end(&mut content).ok()?;
    (!content.is_empty()).then_some(content)
}

fn content(path: &str) -> Outcome {
    match read(path, 64) {
        Some(content) => {
            Outcome::BrokeThrough(format!("{path}: {}…", String::from_utf8_lossy(&content).escape_debug()))
        }
        None => Outcome::Held(format!("{path} shows nothing")),
    }
}

fn seen(path: &str) -> Outcome {
    match read(path, 1 << 18) {
        Some(content) => Outcome::Seen(String::from_utf8_lossy(&content).into_owned()),
        None => Outcome::Held(format!("{path} shows nothing")),
    }
}

fn found<'a>(paths: impl Iterator<Item = &'a str>) -> Outcome {
    let there = paths.filter(|path| fs::symlink_metadata(path).is_ok()).map(str::to_owned);
    Outcome::of_list("files of the machine that are there", there.collect())
}

/// Under its own path, above the root, and beneath everything that is mounted: a root that was left leaves traces.
fn host_canary_file(arguments: &Arguments) -> Outcome {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).chain(["/..", "/proc/1/root"]);
    let points: Vec<&str> = points.map(|point| point.trim_end_matches('/')).collect();
    let paths: Vec<String> =
        points.iter().flat_map(|point| arguments.all("canary").map(move |path| format!("{point}{path}"))).collect();
    found(paths.iter().map(String::as_str))
}

fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Variables of every process whose variables can be read, for the suite to compare with its own.
fn environment(_: &Arguments) -> Outcome {
    let blocks = processes().into_iter().filter_map(|number| read(format!("/proc/{number}/environ"), 1 << 16));
    let all: Vec<String> = blocks.map(|block| String::from_utf8_lossy(&block).replace('\0', "\n")).collect();
    Outcome::Seen(all.join("\n"))
}

/// Which of these files can be read, with a fingerprint: the suite compares it with that of its own file.
fn host_secrets(arguments: &Arguments) -> Outcome {
    let lines = arguments.all("secret").filter_map(|path| {
        let mut hasher = DefaultHasher::new();
        hasher.write(&read(path, 1 << 16)?);
        Some(format!("{:016x} {path}", hasher.finish()))
    });
    Outcome::Seen(lines.collect::<Vec<_>>().join("\n"))
}

fn host_folders(_: &Arguments) -> Outcome {
    let folders = [
        "/home",
        "/root",
        "/run",
        "/srv",
        "/mnt",
        "/media",
        "/boot",
        "/var/lib",
        "/var/log",
        "/var/spool",
        "/var/mail",
        "/opt",
    ];
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    Outcome::Seen(entries.take(500).map(|entry| entry.path().display().to_string()).collect::<Vec<_>>().join("\n"))
}

fn host_processes(arguments: &Arguments) -> Outcome {
    let mark = arguments.mark();
    let shows = |number: &u32| {
        ["cmdline", "comm", "environ"].iter().any(|name| {
            let content = read(format!("/proc/{number}/{name}"), 1 << 16).unwrap_or_default();
            String::from_utf8_lossy(&content).contains(&mark)
        })
    };
    let shown = processes().into_iter().filter(shows).map(|number| number.to_string());
    Outcome::of_list("processes of the machine that are seen", shown.collect())
}

fn host_name(arguments: &Arguments) -> Outcome {
    let Some(host) =
        arguments.text("host").filter(|host| !host.is_empty() && *host != "sandbox" && *host != "localhost")
    else {
        return Outcome::NotApplicable("this machine's name says nothing".to_owned());
    };
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let files = ["/proc/sys/kernel/hostname", "/etc/hostname", "/etc/hosts"];
    let told = files.into_iter().filter(|path| {
        let content = read(path, 1 << 16).unwrap_or_default();
        String::from_utf8_lossy(&content).split_whitespace().any(|word| word == host)
    });
    let by_call = (own == host).then_some("uname");
    Outcome::of_list("the machine's name is told by", told.chain(by_call).map(str::to_owned).collect())
}

fn host_users(arguments: &Arguments) -> Outcome {
    let known = String::from_utf8_lossy(&read("/etc/passwd", 1 << 18).unwrap_or_default()).into_owned();
    let told = arguments.all("user").filter(|user| known.lines().any(|line| line.split(':').next() == Some(user)));
    Outcome::of_list("people of the machine in /etc/passwd", told.map(str::to_owned).collect())
}

fn cgroup_path(_: &Arguments) -> Outcome {
    let own = String::from_utf8_lossy(&read("/proc/self/cgroup", 1 << 16).unwrap_or_default()).into_owned();
    let told: Vec<&str> = own.lines().filter(|line| line.rsplit(':').next() != Some("/")).collect();
    Outcome::Seen(told.join("\n"))
}

fn kernel_addresses(_: &Arguments) -> Outcome {
    let starts = |line: &str| {
        line.split([' ', '-']).find_map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok())
    };
    let shown = ["/proc/kallsyms", "/proc/iomem", "/proc/ioports", "/proc/vmallocinfo"].into_iter().filter(|path| {
        let content = read(path, 1 << 16).unwrap_or_default();
        String::from_utf8_lossy(&content).lines().filter_map(starts).any(|address| address > 0xfff)
    });
    let modules = String::from_utf8_lossy(&read("/proc/modules", 1 << 16).unwrap_or_default()).into_owned();
    let modules = modules.lines().any(|line| {
        line.rsplit("0x").next().is_some_and(|text| {
            text.trim_end().chars().any(|c| matches!(c, '1'..='9' | 'a'..='f')) && line.contains(" 0x")
        })
    });
    Outcome::of_list(
        "addresses of the kernel in",
        shown.chain(modules.then_some("/proc/modules")).map(str::to_owned).collect(),
    )
}

fn kernel_secrets(_: &Arguments) -> Outcome {
    let names = [
        "kcore",
        "keys",
        "timer_list",
        "sched_debug",
        "latency_stats",
        "slabinfo",
        "vmallocinfo",
        "kpagecount",
        "kpageflags",
        "kpagecgroup",
        "pagetypeinfo",
        "kmsg",
        "acpi/event",
        "scsi/scsi",
        "mtrr",
        "asound/cards",
        "driver/rtc",
        "sysvipc/shm",
    ];
    let shown = names.into_iter().filter(|name| {
        let content = read(format!("/proc/{name}"), 4096).unwrap_or_default();
        // Tables that are empty but for their head show nothing.
        if name.starts_with("sysvipc") {
            content.iter().filter(|byte| **byte == b'\n').count() > 1
        } else {
            !content.is_empty()
        }
    });
    Outcome::of_list("tables of the kernel that can be read", shown.map(|name| format!("/proc/{name}")).collect())
}

fn kernel_log(_: &Arguments) -> Outcome {
    let read_all = 3;
    let mut log = vec![0; 4096];
    Outcome::first_breach([
        Outcome::of("syslog", call(libc::SYS_syslog, [n(read_all), Argument::Buffer(&mut log), n(4096)])),
        content("/dev/kmsg"),
        content("/proc/kmsg"),
    ])
}

fn sys_secrets(_: &Arguments) -> Outcome {
    let paths = [
        "/sys/class/dmi/id/product_uuid",
        "/sys/class/dmi/id/product_name",
        "/sys/class/dmi/id/sys_vendor",
        "/sys/firmware/dmi/tables/DMI",
        "/sys/firmware/efi/runtime",
        "/sys/kernel/vmcoreinfo",
        "/sys/kernel/notes",
        "/sys/kernel/security/lsm",
        "/sys/kernel/debug/sched/features",
        "/sys/kernel/tracing/trace",
        "/sys/class/net/eth0/address",
        "/sys/block/vda/size",
        "/sys/block/sda/size",
        "/sys/fs/cgroup/cgroup.procs",
        "/sys/fs/selinux/enforce",
        "/sys/devices/virtual/powercap/intel-rapl/intel-rapl:0/energy_uj",
        "/sys/module/kernel/sections/.text",
        "/sys/class/power_supply/BAT0/serial_number",
        "/sys/bus/pci/slots",
        "/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count",
    ];
    let shown = paths.into_iter().filter(|path| read(path, 64).is_some());
    Outcome::of_list("files of /sys that can be read", shown.map(str::to_owned).collect())
}

fn shared_memory_segment(arguments: &Arguments) -> Outcome {
    let key = arguments.number("segment", 0) as i64;
    Outcome::of("the machine's shared memory", call(libc::SYS_shmget, [n(key), n(1), n(0)]))
}

fn message_queue(arguments: &Arguments) -> Outcome {
    let name = std::ffi::CString::new(arguments.mark()).unwrap_or_default();
    Outcome::of(
        "the machine's message queue",
        call(libc::SYS_mq_open, [Argument::Text(&name), n(libc::O_RDONLY | libc::O_NONBLOCK), n(0), n(0)]),
    )
}

/// Neighbours, routes and connections that are not our own. Other attacks have some at the same time, wherever they try to
/// get to; but those begin at an address of ours.
fn network_tables(arguments: &Arguments) -> Outcome {
    let canary = ["tcp4", "tcp6", "udp4"].map(|key| arguments.number(key, 0) as u16);
    let tables = ["arp", "route", "tcp", "tcp6", "udp", "udp6", "raw", "packet", "igmp", "dev"];
    let told = tables.iter().flat_map(|table| {
        let content =
            String::from_utf8_lossy(&read(format!("/proc/net/{table}"), 1 << 16).unwrap_or_default()).into_owned();
        let foreign = move |line: &&str| match *table {
            "dev" => line.contains(':') && !line.trim_start().starts_with("lo:"),
            "igmp" => line.contains(':') && !line.contains("lo ") && line.starts_with(|c: char| c.is_ascii_digit()),
            "tcp" | "tcp6" | "udp" | "udp6" | "raw" => {
                let begins = line.split_whitespace().nth(1).and_then(|begins| begins.split_once(':'));
                begins.is_some_and(|(address, port)| {
                    let port = u16::from_str_radix(port, 16).ok().filter(|port| *port != 0);
                    // The table's head has no such number.
                    port.is_some_and(|port| !OWN_ADDRESSES.contains(&address) || canary.contains(&port))
                })
            }
            "packet" | "arp" | "route" => {
                !line.contains("sk ") && !line.starts_with("IP address") && !line.starts_with("Iface")
            }
            _ => false,
        };
        content.lines().filter(foreign).take(2).map(|line| format!("{table}: {}", line.trim())).collect::<Vec<_>>()
    });
    Outcome::of_list("foreign lines in /proc/net", told.collect())
}

/// None, loopback's, and those that a way out begins with, as the kernel writes them.
const OWN_ADDRESSES: [&str; 6] = [
    "00000000",
    "0100007F",
    "010013C6",
    "00000000000000000000000000000000",
    "00000000000000000000000001000000",
    "6E6173FD786F62640000010001000000",
];

const OWN_FOLDERS: [&str; 6] = ["/workspace", "/home", "/tmp", "/dev/shm", "/var/tmp", "/run"];

/// Something that another sandbox left, or has: in files, names, attributes, shared memory, sockets, processes.
fn find_mark(arguments: &Arguments) -> Outcome {
    let mark = arguments.mark();
    let mut hits = Vec::new();
    let mut folders: Vec<PathBuf> = OWN_FOLDERS.map(PathBuf::from).into();
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            seen += 1;
            let path = entry.path();
            let kind = entry.file_type().ok();
            let named = entry.file_name().to_string_lossy().contains(&mark);
            let small =
                kind.is_some_and(|kind| kind.is_file()) && entry.metadata().is_ok_and(|found| found.len() < 1 << 16);
            let holds =
                small && read(&path, 1 << 16).is_some_and(|content| String::from_utf8_lossy(&content).contains(&mark));
            if named || holds {
                hits.push(path.display().to_string());
            } else if kind.is_some_and(|kind| kind.is_dir()) && seen < 20_000 {
                folders.push(path);
            }
        }
    }
    let table = String::from_utf8_lossy(&read("/proc/net/unix", 1 << 18).unwrap_or_default()).into_owned();
    if table.contains(&mark) {
        hits.push("/proc/net/unix".to_owned());
    }
    if let Outcome::BrokeThrough(detail) = host_processes(arguments) {
        hits.push(detail);
    }
    for attempt in [shared_memory_segment(arguments), message_queue(arguments)] {
        if let Outcome::BrokeThrough(detail) = attempt {
            hits.push(detail);
        }
    }
    Outcome::of_list("traces of another sandbox", hits)
}

/// The other side of [`find_mark`]: leaves it everywhere, then waits to be ended.
fn leave_mark(arguments: &Arguments) -> Outcome {
    use std::os::linux::net::SocketAddrExt;
    let mark = arguments.mark();
    for folder in ["/workspace", "/home/sandbox", "/tmp", "/dev/shm"] {
        let _ = fs::write(format!("{folder}/{mark}"), &mark);
        let _ = fs::create_dir_all(format!("{folder}/deep/{mark}/deeper"));
        let _ = fs::write(format!("{folder}/deep/hidden"), &mark);
    }
    let key = arguments.number("segment", 0) as i64;
    let _ = call(libc::SYS_shmget, [n(key), n(4096), n(0o1666)]);
    let name = std::ffi::CString::new(mark.clone()).unwrap_or_default();
    let _ = call(libc::SYS_mq_open, [Argument::Text(&name), n(libc::O_CREAT | libc::O_RDWR), n(0o666), n(0)]);
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&mark);
    let listener = address.and_then(|address| std::os::unix::net::UnixListener::bind_addr(&address));
    let name = std::ffi::CString::new(mark.get(..15).unwrap_or(&mark)).unwrap_or_default();
    let _ = call(libc::SYS_prctl, [n(15), Argument::Text(&name)]);
    crate::exhaustion::hold("the mark was left".to_owned(), listener)
}
