//! More room on the disk than the limit: by name, without a name, mapped, on its way in a socket, as inodes.

use std::{
    fs,
    io::{self, Write},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{
            fs::{FileExt, PermissionsExt},
            net::UnixStream,
        },
    },
    process::{Child, Command, Stdio},
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::{Deadline, hold, hold_breach, mib, wait_for_watchers};
use crate::{
    Attack,
    arguments::Arguments,
    outcome::Outcome,
    sys::{self, Argument, Mapping, call, n},
};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("disk_by_name", |arguments| fill(arguments, Room::Named, "/workspace")),
    ("disk_in_home", |arguments| fill(arguments, Room::Named, "/home/sandbox")),
    ("disk_in_root", |arguments| fill(arguments, Room::Named, "/var")),
    ("disk_without_a_name", |arguments| fill(arguments, Room::Unlinked, "/workspace")),
    ("disk_mapped_without_a_name", |arguments| fill(arguments, Room::Mapped, "/workspace")),
    ("disk_on_its_way", |arguments| fill(arguments, Room::InFlight, "/workspace")),
    ("disk_kept_by_a_rule", |arguments| fill(arguments, Room::Rule, "/workspace")),
    ("disk_of_running_programs", |arguments| fill(arguments, Room::Program, "/workspace")),
    ("disk_mapped_in_odd_folders", |arguments| {
        let odd = ["/SYSV", "/memfd:x", "/tmp/.."].map(|above| format!("{above}/home"));
        let made = odd.iter().find(|folder| fs::create_dir_all(folder).is_ok());
        match made {
            Some(folder) => fill(arguments, Room::Mapped, folder),
            None => Outcome::Held("no folder can be made outside the places for files".to_owned()),
        }
    }),
    ("disk_reserved", |arguments| fill(arguments, Room::Reserved, "/workspace")),
    ("disk_sparse_then_filled", |arguments| fill(arguments, Room::Sparse, "/workspace")),
    ("disk_inodes", inodes),
    ("disk_attributes", attributes),
    ("disk_deep_tree", deep_tree),
    ("disk_long_names", long_names),
];

const PIECE: usize = 4 << 20;

enum Room {
    Named,
    Unlinked,
    Mapped,
    InFlight,
    Rule,
    Program,
    Reserved,
    Sparse,
}

/// What keeps a piece alive.
enum Kept {
    File,
    Open { _file: fs::File },
    Mapped { _mapping: Mapping },
    InFlight { _socket: (UnixStream, UnixStream) },
    Rule { _set: OwnedFd },
    Program { _process: Running },
}

/// A program that sleeps, until this one ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

fn fill(arguments: &Arguments, room: Room, folder: &str) -> Outcome {
    let limit = arguments.number("disk", 64 << 20);
    let mut kept = Vec::new();
    while (kept.len() * PIECE) as u64 <= 2 * limit {
        match piece(&room, &format!("{folder}/attack-{}", kept.len())) {
            Ok(piece) => kept.push(piece),
            Err(error) => return Outcome::Held(format!("no more after {}: {error}", mib((kept.len() * PIECE) as u64))),
        }
    }
    // What is hidden is found by looking several times, and beside this others fill disks with files that all count.
    wait_for_watchers(12_000);
    hold_breach(format!("{} are kept, {} are allowed", mib((kept.len() * PIECE) as u64), mib(limit)), kept)
}

fn piece(room: &Room, path: &str) -> io::Result<Kept> {
    let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
    match room {
        Room::Reserved => rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, PIECE as u64)?,
        Room::Sparse => {
            file.set_len(1 << 40)?;
            file.write_all_at(&vec![1; PIECE], 1 << 39)?;
        }
        _ => (&file).write_all(&vec![1; PIECE])?,
    }
    if matches!(room, Room::Named | Room::Sparse | Room::Reserved) {
        return Ok(Kept::File);
    }
    if matches!(room, Room::Program) {
        drop(file);
        return program(path);
    }
    fs::remove_file(path)?;
    match room {
        Room::Rule => Ok(Kept::Rule { _set: rule_about(&file)? }),
        Room::Mapped => {
            // The descriptor is closed; the mapping alone keeps the file.
            Ok(Kept::Mapped { _mapping: Mapping::new(PIECE, libc::MAP_SHARED, file.as_raw_fd())? })
        }
        Room::InFlight => {
            let (here, there) = UnixStream::pair()?;
            let passed = [file.as_fd()];
            let mut space = [std::mem::MaybeUninit::uninit(); 64];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&passed));
            rustix::net::sendmsg(&here, &[io::IoSlice::new(b"x")], &mut control, SendFlags::empty())?;
            Ok(Kept::InFlight { _socket: (here, there) })
        }
        _ => Ok(Kept::Open { _file: file }),
    }
}

/// A set of Landlock's rules keeps the files that they are about.
fn rule_about(file: &fs::File) -> io::Result<OwnedFd> {
    const EXECUTE: u64 = 1;
    let handled = EXECUTE.to_ne_bytes();
    let set = call(libc::SYS_landlock_create_ruleset, [Argument::Bytes(&handled), n(8), n(0)])?;
    let rule = [&EXECUTE.to_ne_bytes()[..], &file.as_raw_fd().to_ne_bytes()].concat();
    call(libc::SYS_landlock_add_rule, [n(set), n(1), Argument::Bytes(&rule), n(0)])?;
    Ok(sys::owned(set))
}

/// A copy of this program with room behind its end, running, its file removed.
fn program(path: &str) -> io::Result<Kept> {
    let mut content = fs::read("/proc/self/exe")?;
    content.resize(content.len().max(PIECE), 1);
    fs::write(path, content)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    let process = Command::new(path).arg("stay").stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    fs::remove_file(path)?;
    Ok(Kept::Program { _process: Running(process?) })
}

/// Empty files take no room that `du` shows, and yet a disk has only so many. One for each KiB is more than fair.
fn inodes(arguments: &Arguments) -> Outcome {
    let fair = arguments.number("disk", 4 << 20) / 1024;
    let mut made = 0;
    let deadline = Deadline::start();
    while made <= fair + fair / 2 {
        if deadline.is_over() {
            return Outcome::NotApplicable(format!(
                "only {made} files could be made in time: this machine is too busy"
            ));
        }
        let folder = format!("/workspace/many/{}", made / 1000);
        if made % 1000 == 0
            && let Err(error) = fs::create_dir_all(&folder)
        {
            return Outcome::Held(format!("no more folders after {made} files: {error}"));
        }
        if let Err(error) = fs::File::create(format!("{folder}/{made}")) {
            return Outcome::Held(format!("no more than {made} files: {error}"));
        }
        made += 1;
    }
    wait_for_watchers(6000);
    hold_breach(format!("{made} files, where the room that is allowed has {fair} KiB"), ())
}

/// Extended attributes: a block for each file that has a large one.
fn attributes(arguments: &Arguments) -> Outcome {
    let limit = arguments.number("disk", 64 << 20);
    let mut made = 0;
    let deadline = Deadline::start();
    while made * 4096 <= 2 * limit {
        if deadline.is_over() {
            return Outcome::NotApplicable(format!("only {made} could be made in time: this machine is too busy"));
        }
        let path = format!("/workspace/attributed-{made}");
        // Different ones, because a file system keeps equal ones once.
        let value = vec![(made % 251) as u8 + 1; 3800 - (made % 97) as usize];
        let set = fs::File::create(&path).and_then(|file| {
            rustix::fs::fsetxattr(&file, "user.attack", &value, rustix::fs::XattrFlags::empty())
                .map_err(io::Error::from)
        });
        if let Err(error) = set {
            return match made {
                0 => Outcome::NotApplicable(format!("no attributes here: {error}")),
                _ => Outcome::Held(format!("no more after {made} attributes: {error}")),
            };
        }
        made += 1;
    }
    wait_for_watchers(6000);
    hold_breach(format!("{} in attributes, {} are allowed", mib(made * 4096), mib(limit)), ())
}

/// Deeper than any path can say: whoever walks it by recursion or by path falls. The suite then lists and removes it.
fn deep_tree(_: &Arguments) -> Outcome {
    let mut depth = 0;
    let mut went = || -> io::Result<()> {
        std::env::set_current_dir("/workspace")?;
        while depth < 5000 {
            fs::create_dir("d")?;
            std::env::set_current_dir("d")?;
            depth += 1;
        }
        Ok(())
    };
    match went() {
        Ok(()) => hold(format!("{depth} folders in each other"), ()),
        Err(error) => hold(format!("{depth} folders in each other, then {error}"), ()),
    }
}

/// Folders grow by their names, which nobody counts as content.
fn long_names(arguments: &Arguments) -> Outcome {
    let limit = arguments.number("disk", 64 << 20);
    let most = (limit / 256).min(20_000);
    let mut made = 0;
    let deadline = Deadline::start();
    while made < most && !deadline.is_over() {
        let name = format!("{made:0>250}");
        if let Err(error) = std::os::unix::fs::symlink("x", format!("/workspace/{name}")) {
            return Outcome::Held(format!("no more than {made} names: {error}"));
        }
        made += 1;
    }
    hold(format!("{made} long names in one folder"), ())
}
