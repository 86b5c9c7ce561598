//! Changing what is mounted where.

use std::{
    ffi::{CStr, CString},
    fs, io,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
};

use crate::{
    Attack,
    arguments::Arguments,
    outcome::Outcome,
    sys::{Argument, call, n},
};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("mount_tmpfs", |_| mount(c"tmpfs", 0)),
    ("mount_proc", |_| mount(c"proc", 0)),
    ("mount_sysfs", |_| mount(c"sysfs", 0)),
    ("mount_cgroup", |_| Outcome::first_breach([mount(c"cgroup2", 0), mount(c"cgroup", 0)])),
    ("mount_bind", |_| mount(c"/", libc::MS_BIND | libc::MS_REC)),
    ("mount_overlay", |_| mount(c"overlay", 0)),
    ("remount_root_writable", remount_root),
    ("unmount_masks", unmount_masks),
    ("mount_by_descriptor", mount_by_descriptor),
    ("copy_mount_tree", copy_mount_tree),
    ("move_mount", move_mount),
    ("make_mount_writable", make_mount_writable),
    ("pivot_root", pivot_root),
    ("chroot_walk", chroot_walk),
    ("above_the_root", above_the_root),
    ("write_root", write_root),
    ("root_mounted_writable", root_mounted_writable),
    ("write_system_folders", write_system_folders),
    ("preload_for_others", preload_for_others),
];

/// A folder that we may use.
fn folder() -> CString {
    let path = format!("/tmp/attack-{}", std::process::id());
    let _ = fs::create_dir_all(&path);
    CString::new(path).unwrap_or_default()
}

fn mount(kind: &CStr, flags: u64) -> Outcome {
    let target = folder();
    let empty: &CStr = c"lowerdir=/usr:/tmp";
    let data = if kind == c"overlay" { empty } else { c"" };
    let made = call(
        libc::SYS_mount,
        [Argument::Text(kind), Argument::Text(&target), Argument::Text(kind), n(flags as i64), Argument::Text(data)],
    );
    if made.is_ok() {
        let _ = call(libc::SYS_umount2, [Argument::Text(&target), n(libc::MNT_DETACH)]);
    }
    Outcome::of(format!("mounting {}", kind.to_string_lossy()), made)
}

fn remount_root(_: &Arguments) -> Outcome {
    let attempts = ["/", "/usr", "/etc", "/proc/sys", "/dev"].map(|path| {
        let target = CString::new(path).unwrap_or_default();
        let flags = libc::MS_REMOUNT | libc::MS_BIND;
        let made = call(
            libc::SYS_mount,
            [Argument::Text(c"none"), Argument::Text(&target), Argument::Text(c""), n(flags as i64), n(0)],
        );
        Outcome::of(format!("mounting {path} again, writable"), made)
    });
    Outcome::first_breach(attempts)
}

fn unmount_masks(_: &Arguments) -> Outcome {
    let points = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = points.lines().filter_map(|line| line.split(' ').nth(4));
    let covers = points.filter(|point| point.starts_with("/proc") || point.starts_with("/dev") || *point == "/tmp");
    let attempts = covers.map(|point| {
        let target = CString::new(point).unwrap_or_default();
        Outcome::of(
            format!("unmounting {point}"),
            call(libc::SYS_umount2, [Argument::Text(&target), n(libc::MNT_DETACH)]),
        )
    });
    Outcome::first_breach(attempts.collect::<Vec<_>>())
}

fn mount_by_descriptor(_: &Arguments) -> Outcome {
    const CREATE: i64 = 6;
    let made = call(libc::SYS_fsopen, [Argument::Text(c"tmpfs"), n(0)]).and_then(|context| {
        call(libc::SYS_fsconfig, [n(context), n(CREATE), n(0), n(0), n(0)])?;
        call(libc::SYS_fsmount, [n(context), n(0), n(0)])
    });
    Outcome::of("a new file system by fsopen", made)
}

fn copy_mount_tree(_: &Arguments) -> Outcome {
    const CLONE: i64 = 1;
    const RECURSIVE: i64 = 0x8000;
    let made = call(libc::SYS_open_tree, [n(libc::AT_FDCWD), Argument::Text(c"/"), n(CLONE | RECURSIVE)]);
    Outcome::of("a copy of the mount tree by open_tree", made)
}

fn move_mount(_: &Arguments) -> Outcome {
    let target = folder();
    let made = call(
        libc::SYS_move_mount,
        [n(libc::AT_FDCWD), Argument::Text(c"/tmp"), n(libc::AT_FDCWD), Argument::Text(&target), n(0)],
    );
    // Into itself: the kernel says ELOOP where the caller may move mounts at all.
    Outcome::of_door("move_mount", made)
}

fn make_mount_writable(_: &Arguments) -> Outcome {
    const READ_ONLY: u64 = 1;
    let mut attributes = [0u8; 32];
    attributes[8..16].copy_from_slice(&READ_ONLY.to_ne_bytes());
    let attempts = [c"/", c"/usr", c"/proc/sys"].map(|path| {
        let changed = call(
            libc::SYS_mount_setattr,
            [n(libc::AT_FDCWD), Argument::Text(path), n(0), Argument::Bytes(&attributes), n(32)],
        );
        Outcome::of(format!("mount_setattr on {}", path.to_string_lossy()), changed)
    });
    Outcome::first_breach(attempts)
}

fn pivot_root(_: &Arguments) -> Outcome {
    let made = call(libc::SYS_pivot_root, [Argument::Text(c"."), Argument::Text(c".")]);
    Outcome::of_door("pivot_root", made)
}

/// The old way out of a changed root: keep a descriptor of a folder above, change the root below it, and walk up.
fn chroot_walk(_: &Arguments) -> Outcome {
    let walk = || -> io::Result<bool> {
        let before = fs::metadata("/")?;
        let above = fs::File::open("/")?;
        let below = folder();
        call(libc::SYS_chroot, [Argument::Text(&below)])?;
        call(libc::SYS_fchdir, [n(above.as_raw_fd())])?;
        for _ in 0..64 {
            std::env::set_current_dir("..")?;
        }
        let after = fs::metadata(".")?;
        let is_another = (before.dev(), before.ino()) != (after.dev(), after.ino());
        // A kernel may have mounted the root over something that has nothing in it and takes nothing.
        Ok(is_another && (fs::read_dir(".")?.next().is_some() || fs::File::create("sandbox-attack").is_ok()))
    };
    match walk() {
        Ok(true) => Outcome::BrokeThrough("a folder above the sandbox's root was reached".to_owned()),
        Ok(false) => Outcome::Held(
            "changing the root is allowed; the way up ends at the sandbox's own root or in nothing".to_owned(),
        ),
        Err(error) => Outcome::Held(format!("chroot: {error}")),
    }
}

/// What the root was mounted over shows above it, unless it was taken away.
fn above_the_root(_: &Arguments) -> Outcome {
    let seen = fs::metadata("/").and_then(|root| Ok((root, fs::metadata("/..")?)));
    match seen {
        Ok((root, above)) if (root.dev(), root.ino()) != (above.dev(), above.ino()) => {
            let entries = fs::read_dir("/..").map(|entries| entries.count());
            Outcome::BrokeThrough(format!("/.. is another folder than /, with {entries:?} entries"))
        }
        Ok(_) => Outcome::Held("nothing is above the root".to_owned()),
        Err(error) => Outcome::Held(format!("/..: {error}")),
    }
}

fn write_root(_: &Arguments) -> Outcome {
    let folders =
        ["/", "/etc", "/usr", "/usr/bin", "/usr/lib", "/bin", "/lib", "/opt", "/run", "/var", "/home", "/root"];
    Outcome::of_list("files were made in", written(&folders))
}

/// The kernel looks at the mount before it looks at the owner: any other refusal means that only the owner is in the way.
fn root_mounted_writable(_: &Arguments) -> Outcome {
    let open = ["/", "/usr", "/etc", "/opt", "/var"].into_iter().filter(|folder| {
        let path = format!("{folder}/attack-{}", std::process::id());
        // A folder, not a file: for those gVisor looks at the owner first.
        let made = fs::create_dir(&path);
        let _ = fs::remove_dir(&path);
        !matches!(made.map_err(|error| error.raw_os_error()), Err(Some(libc::EROFS | libc::ENOENT)))
    });
    Outcome::of_list("folders that are not read-only", open.map(str::to_owned).collect())
}

fn write_system_folders(_: &Arguments) -> Outcome {
    let folders = ["/dev", "/dev/pts", "/dev/mqueue", "/proc", "/proc/sys", "/sys", "/sys/fs/cgroup", "/opt/sandbox"];
    let present: Vec<&str> = folders.into_iter().filter(|path| is_kernels(path)).collect();
    Outcome::of_list("files were made in", written(&present))
}

/// An image may bring a plain folder under one of these names; that one is its own to change.
fn is_kernels(path: &str) -> bool {
    let root = fs::metadata("/").map(|found| found.dev()).unwrap_or_default();
    fs::metadata(path).is_ok_and(|found| found.dev() != root)
}

fn written(folders: &[&str]) -> Vec<String> {
    let made = folders.iter().filter(|folder| {
        let path = format!("{folder}/attack-{}", std::process::id());
        let made = fs::write(&path, "x").is_ok();
        let _ = fs::remove_file(&path);
        made
    });
    made.map(|folder| (*folder).to_owned()).collect()
}

/// A library that the loader would put into every later command.
fn preload_for_others(_: &Arguments) -> Outcome {
    let opened = fs::OpenOptions::new().append(true).create(true).open("/etc/ld.so.preload");
    Outcome::of("opening /etc/ld.so.preload for writing", opened)
}
