//! What may have been left open by accident: descriptors, sockets of daemons, network families.

use std::{
    fs,
    os::unix::{fs::FileTypeExt, net::UnixStream},
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    Attack,
    arguments::Arguments,
    outcome::Outcome,
    sys::{call, n},
};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("inherited_descriptors", inherited_descriptors),
    ("standard_streams", standard_streams),
    ("read_own_output", read_own_output),
    ("runtime_sockets", runtime_sockets),
    ("any_socket_file", any_socket_file),
    ("socket_table", socket_table),
    ("crypto_sockets", |_| family("AF_ALG", libc::AF_ALG, libc::SOCK_SEQPACKET)),
    ("vsock_sockets", |_| family("AF_VSOCK", libc::AF_VSOCK, libc::SOCK_STREAM)),
    ("packet_sockets", |_| family("AF_PACKET", libc::AF_PACKET, libc::SOCK_RAW)),
    ("odd_socket_families", odd_families),
    ("netlink_kinds", netlink_kinds),
    ("other_processes_descriptors", other_processes),
];

fn inherited_descriptors(_: &Arguments) -> Outcome {
    let found = (3..1024).filter_map(|number| {
        let link = fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        Some(format!("{number} → {}", link.display()))
    });
    Outcome::of_list("open descriptors beyond the standard streams", found.collect())
}

/// A terminal, a file or a folder of the machine behind a standard stream.
fn standard_streams(_: &Arguments) -> Outcome {
    let odd = (0..3).filter_map(|number| {
        let link = fs::read_link(format!("/proc/self/fd/{number}")).ok()?.display().to_string();
        let usual = ["pipe:", "socket:", "/dev/null"].iter().any(|start| link.starts_with(start));
        (!usual).then(|| format!("{number} → {link}"))
    });
    Outcome::of_list("standard streams that lead elsewhere", odd.collect())
}

/// Whoever can read the pipe that output goes to takes from it what others wrote.
fn read_own_output(_: &Arguments) -> Outcome {
    Outcome::of("opening its own output for reading", fs::File::open("/proc/self/fd/1"))
}

fn runtime_sockets(arguments: &Arguments) -> Outcome {
    let known = [
        "/var/run/docker.sock",
        "/run/docker.sock",
        "/run/containerd/containerd.sock",
        "/run/podman/podman.sock",
        "/run/crio/crio.sock",
        "/run/buildkit/buildkitd.sock",
        "/run/dbus/system_bus_socket",
        "/run/systemd/private",
        "/run/systemd/notify",
        "/run/systemd/journal/socket",
        "/run/systemd/resolve/io.systemd.Resolve",
        "/dev/log",
        "/run/snapd.socket",
        "/run/udev/control",
        "/run/libvirt/libvirt-sock",
        "/run/lxd.socket",
        "/run/cups/cups.sock",
        "/run/pcscd/pcscd.comm",
        "/tmp/.X11-unix/X0",
        "/tmp/.X11-unix/X1",
        "/var/run/postgresql/.s.PGSQL.5432",
        "/run/mysqld/mysqld.sock",
        "/run/user/0/bus",
        "/run/user/1000/bus",
        "/run/user/1000/wayland-0",
        "/run/user/1000/podman/podman.sock",
        "/run/user/1000/gnupg/S.gpg-agent",
        "/run/user/1000/pulse/native",
    ];
    let reached = known.into_iter().chain(arguments.all("daemon")).filter(|path| reaches(Path::new(path)));
    Outcome::of_list("sockets of daemons that were reached", reached.map(str::to_owned).collect())
}

fn reaches(path: &Path) -> bool {
    let datagram = || std::os::unix::net::UnixDatagram::unbound().and_then(|socket| socket.connect(path));
    UnixStream::connect(path).is_ok() || datagram().is_ok()
}

fn any_socket_file(_: &Arguments) -> Outcome {
    let mut folders: Vec<(PathBuf, u32)> =
        ["/run", "/var", "/tmp", "/dev", "/home", "/root", "/opt", "/srv", "/mnt", "/etc", "/workspace"]
            .map(|path| (path.into(), 0))
            .into();
    let mut reached = Vec::new();
    let mut seen = 0;
    while let Some((folder, depth)) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            seen += 1;
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && depth < 6 && seen < 50_000 {
                folders.push((entry.path(), depth + 1));
            } else if kind.is_socket() && reaches(&entry.path()) {
                reached.push(entry.path().display().to_string());
            }
        }
    }
    Outcome::of_list(format!("sockets among {seen} files that were reached"), reached)
}

/// Local sockets of others: the executor's, the server's, the machine's.
fn socket_table(_: &Arguments) -> Outcome {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let named = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(7)).map(str::to_owned);
    Outcome::of_list("named local sockets", named.collect())
}

fn family(name: &str, family: i32, kind: i32) -> Outcome {
    Outcome::of_door(format!("a socket of {name}"), call(libc::SYS_socket, [n(family), n(kind), n(0)]))
}

fn odd_families(_: &Arguments) -> Outcome {
    let usual = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
    let kinds = [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_SEQPACKET];
    let opened = (1..64).filter(|family| !usual.contains(family)).filter(|family| {
        kinds.iter().any(|kind| call(libc::SYS_socket, [n(*family), n(*kind), n(0)]).is_ok())
            || call(
                libc::SYS_socketpair,
                [n(*family), n(libc::SOCK_STREAM), n(0), crate::sys::Argument::Buffer(&mut [0; 8])],
            )
            .is_ok()
    });
    Outcome::of_list("socket families that could be opened", opened.map(|family| family.to_string()).collect())
}

/// All kinds but the one that lists addresses, which programs ask for.
fn netlink_kinds(_: &Arguments) -> Outcome {
    let opened =
        (1..32).filter(|kind| call(libc::SYS_socket, [n(libc::AF_NETLINK), n(libc::SOCK_RAW), n(*kind)]).is_ok());
    Outcome::of_list("netlink kinds that could be opened", opened.map(|kind| kind.to_string()).collect())
}

/// Processes of others, and roots that they see: only commands of the sandbox's user may be there. One that is just being
/// started is somebody else's before and the user's after, so who it is is asked twice.
fn other_processes(_: &Arguments) -> Outcome {
    let own = rustix::process::geteuid().as_raw();
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_anothers = |number: u32| {
        let status = fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
        let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
        number == 1 || ids.split_whitespace().next().is_some_and(|id| id.parse() != Ok(own))
    };
    let is_open =
        |number: u32| is_anothers(number) && fs::read_dir(format!("/proc/{number}/fd")).is_ok() && is_anothers(number);
    let open: Vec<u32> = numbers.filter(|&number| is_open(number)).collect();
    // A command that is being started is soon one of our own.
    if !open.is_empty() {
        std::thread::sleep(Duration::from_millis(200));
    }
    let foreign = open.into_iter().filter(|&number| is_open(number));
    Outcome::of_list(
        "processes of others whose descriptors can be listed",
        foreign.map(|number| number.to_string()).collect(),
    )
}
