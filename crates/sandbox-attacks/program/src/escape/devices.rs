//! Devices of the machine, and terminals.

use std::{
    ffi::CString,
    fs, io,
    os::{
        fd::AsRawFd,
        unix::fs::{FileTypeExt, OpenOptionsExt},
    },
};

use crate::{
    Attack,
    arguments::Arguments,
    outcome::Outcome,
    sys::{self, Argument, call, n},
};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("make_block_device", |_| {
        Outcome::first_breach([(8, 0), (7, 0), (253, 0), (254, 0), (259, 0)].map(|id| make_device(libc::S_IFBLK, id)))
    }),
    ("make_character_device", |_| {
        Outcome::first_breach(
            [(1, 1), (1, 2), (1, 11), (10, 200), (10, 229), (10, 232), (5, 1)].map(|id| make_device(libc::S_IFCHR, id)),
        )
    }),
    ("device_files", device_files),
    ("open_host_devices", open_host_devices),
    ("unexpected_devices", unexpected_devices),
    ("type_into_terminal", type_into_terminal),
    ("console_ioctls", console_ioctls),
    ("line_disciplines", line_disciplines),
    ("controlling_terminal", controlling_terminal),
];

fn make_device(kind: u32, (major, minor): (u32, u32)) -> Outcome {
    let attempts = ["/tmp", "/workspace", "/dev/shm", "/home/sandbox", "/dev", "/var/tmp"].map(|folder| {
        let path = format!("{folder}/device-{major}-{minor}-{}", std::process::id());
        let name = CString::new(path.clone()).unwrap_or_default();
        let made = call(
            libc::SYS_mknodat,
            [n(libc::AT_FDCWD), Argument::Text(&name), n(kind | 0o666), n(libc::makedev(major, minor) as i64)],
        );
        let opened = made.and_then(|_| fs::File::open(&path));
        let _ = fs::remove_file(&path);
        Outcome::of(format!("device {major}:{minor} in {folder}"), opened)
    });
    Outcome::first_breach(attempts)
}

/// The one node that everybody may make, which stands for no device. Where files of devices are nothing but files it is
/// refused; elsewhere the kernel looks for the device, and says that there is none.
fn device_files(_: &Arguments) -> Outcome {
    let attempts = ["/workspace", "/home/sandbox", "/tmp", "/dev/shm"].map(|folder| {
        let path = format!("{folder}/no-device-{}", std::process::id());
        let name = CString::new(path.clone()).unwrap_or_default();
        let made = call(libc::SYS_mknodat, [n(libc::AT_FDCWD), Argument::Text(&name), n(libc::S_IFCHR | 0o666), n(0)]);
        let opened = made.and_then(|_| fs::File::open(&path));
        let _ = fs::remove_file(&path);
        match opened {
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
                Outcome::BrokeThrough(format!("a file in {folder} was taken for a device: {error}"))
            }
            other => Outcome::of(format!("a file for device 0:0 in {folder}"), other),
        }
    });
    Outcome::first_breach(attempts)
}

fn open_host_devices(_: &Arguments) -> Outcome {
    let names = [
        "sda",
        "vda",
        "xvda",
        "nvme0n1",
        "mmcblk0",
        "loop0",
        "loop-control",
        "dm-0",
        "mapper/control",
        "mem",
        "kmem",
        "port",
        "kvm",
        "fuse",
        "net/tun",
        "vhost-vsock",
        "vhost-net",
        "vsock",
        "uinput",
        "uhid",
        "input/event0",
        "input/mice",
        "snd/controlC0",
        "dri/card0",
        "dri/renderD128",
        "tty0",
        "tty1",
        "ttyS0",
        "console",
        "kmsg",
        "hpet",
        "rtc0",
        "watchdog",
        "cpu/0/msr",
        "cpu/0/cpuid",
        "ppp",
        "nvram",
        "vfio/vfio",
        "autofs",
        "cuse",
        "rfkill",
        "btrfs-control",
        "userfaultfd",
        "udmabuf",
        "dma_heap/system",
        "snapshot",
        "bsg",
        "sg0",
        "tpm0",
        "nvidia0",
        "video0",
        "mcelog",
        "usbmon0",
        "fb0",
        "vcs",
        "vcsa",
        "ptp0",
        "hwrng",
        "zero_nul",
    ];
    let opens = |name: &&&str| {
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        fs::OpenOptions::new().read(true).custom_flags(flags).open(format!("/dev/{name}")).is_ok()
    };
    let broken = names.iter().filter(opens).map(|name| format!("/dev/{name}"));
    Outcome::of_list("devices of the machine that could be opened", broken.collect())
}

fn unexpected_devices(_: &Arguments) -> Outcome {
    const USUAL: [&str; 8] = ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"];
    let mut found = Vec::new();
    let mut folders = vec!["/dev".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && path != "/dev/pts" && path != "/dev/shm" {
                folders.push(path);
            } else if (kind.is_char_device() || kind.is_block_device())
                && !USUAL.iter().any(|usual| path == format!("/dev/{usual}"))
            {
                found.push(path);
            }
        }
    }
    Outcome::of_list("devices beyond the usual ones", found)
}

/// A pair of terminals of our own: both ends, and the near one as controlling terminal of a new session.
fn with_terminal(work: impl FnOnce(&fs::File, &fs::File) -> i32) -> io::Result<i32> {
    let controller = fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open("/dev/ptmx")?;
    let (mut number, unlock) = ([0u8; 4], [0u8; 4]);
    call(libc::SYS_ioctl, [n(controller.as_raw_fd()), n(0x4004_5431), Argument::Bytes(&unlock)])?;
    call(libc::SYS_ioctl, [n(controller.as_raw_fd()), n(0x8004_5430u32), Argument::Buffer(&mut number)])?;
    let path = format!("/dev/pts/{}", u32::from_ne_bytes(number));
    let terminal = fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open(path)?;
    let child = sys::fork(|| {
        let _ = call(libc::SYS_setsid, []);
        let _ = call(libc::SYS_ioctl, [n(terminal.as_raw_fd()), n(libc::TIOCSCTTY as i64), n(0)]);
        work(&controller, &terminal)
    })?;
    sys::wait(child)
}

/// Typing for whoever reads from a terminal next: with a terminal that a shell outside shares, a way out.
fn type_into_terminal(_: &Arguments) -> Outcome {
    let typed = with_terminal(|_, terminal| {
        i32::from(
            call(libc::SYS_ioctl, [n(terminal.as_raw_fd()), n(libc::TIOCSTI as i64), Argument::Bytes(b"x")]).is_err(),
        )
    });
    match typed {
        Ok(0) => Outcome::BrokeThrough("TIOCSTI typed a character into a terminal".to_owned()),
        Ok(_) => Outcome::Held("TIOCSTI was refused".to_owned()),
        Err(error) => Outcome::NotApplicable(format!("no terminal: {error}")),
    }
}

fn console_ioctls(_: &Arguments) -> Outcome {
    const CONSOLE: i64 = 0x541d;
    let refused = with_terminal(|_, terminal| {
        let linux = call(
            libc::SYS_ioctl,
            [n(terminal.as_raw_fd()), n(libc::TIOCLINUX as i64), Argument::Buffer(&mut [6, 0, 0, 0])],
        );
        let console = call(libc::SYS_ioctl, [n(terminal.as_raw_fd()), n(CONSOLE), n(0)]);
        i32::from(linux.is_err() && console.is_err())
    });
    match refused {
        Ok(0) => Outcome::BrokeThrough("the console's output or selection was taken".to_owned()),
        Ok(_) => Outcome::Held("TIOCLINUX and TIOCCONS were refused".to_owned()),
        Err(error) => Outcome::NotApplicable(format!("no terminal: {error}")),
    }
}

/// Drivers for modems and buses, loaded by whoever names them: many holes of the kernel were there.
fn line_disciplines(_: &Arguments) -> Outcome {
    let opened = with_terminal(|_, terminal| {
        let set = |number: i32| {
            call(
                libc::SYS_ioctl,
                [n(terminal.as_raw_fd()), n(libc::TIOCSETD as i64), Argument::Bytes(&number.to_ne_bytes())],
            )
        };
        // Beyond the usual one (0) and the one that swallows all (27).
        (1..32).filter(|number| *number != 27).find(|number| set(*number).is_ok()).unwrap_or(0)
    });
    match opened {
        Ok(0) => Outcome::Held("no line discipline but the usual one".to_owned()),
        Ok(number) => Outcome::BrokeThrough(format!("line discipline {number} was set on a terminal")),
        Err(error) => Outcome::NotApplicable(format!("no terminal: {error}")),
    }
}

/// The terminal of whoever started the sandbox, or their session: one outside has no number in here.
fn controlling_terminal(_: &Arguments) -> Outcome {
    let opened = fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open("/dev/tty");
    let session = match (call(libc::SYS_getsid, [n(1)]), call(libc::SYS_getpgid, [n(1)])) {
        (Ok(0), _) | (_, Ok(0)) => {
            Outcome::BrokeThrough("the first process is in a session or group of outside".to_owned())
        }
        _ => Outcome::Held("the session is the sandbox's own".to_owned()),
    };
    Outcome::first_breach([Outcome::of("opening /dev/tty", opened), session])
}
