//! More memory than the limit, in each form that the kernel has.

use std::{
    fs,
    io::{self, Write},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use super::{hold_breach, mib, wait_for_watchers};
use crate::{
    Attack,
    arguments::Arguments,
    outcome::Outcome,
    sys::{self, Argument, Mapping, call, n},
};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("memory_private", |arguments| pieces(arguments, || filled(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1))),
    ("memory_shared", |arguments| pieces(arguments, || filled(libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1))),
    ("memory_of_zero_device", zero_device),
    ("memory_file", |arguments| pieces(arguments, memory_file)),
    ("memory_of_children", children),
    ("memory_segments", |arguments| pieces(arguments, segment)),
    ("memory_in_dev_shm", |arguments| in_folder(arguments, "/dev/shm")),
    ("memory_in_tmp", |arguments| in_folder(arguments, "/tmp")),
    ("tmp_beyond_its_size", tmp_beyond_its_size),
    ("memory_in_pipes", pipes),
    ("memory_spliced_into_pipes", spliced),
    ("memory_in_sockets", sockets),
    ("memory_in_page_tables", page_tables),
    ("memory_locked", locked),
];

const PIECE: usize = 4 << 20;

/// Takes pieces until there is twice as much as allowed, and then waits whether somebody minds.
fn pieces<T>(arguments: &Arguments, mut piece: impl FnMut() -> io::Result<T>) -> Outcome {
    let limit = arguments.number("limit", 64 << 20);
    let mut kept = Vec::new();
    while (kept.len() * PIECE) as u64 <= 2 * limit {
        match piece() {
            Ok(piece) => kept.push(piece),
            Err(error) => return Outcome::Held(format!("no more after {}: {error}", mib((kept.len() * PIECE) as u64))),
        }
    }
    wait_for_watchers(2500);
    hold_breach(format!("{} were held, {} are allowed", mib((kept.len() * PIECE) as u64), mib(limit)), kept)
}

fn filled(flags: i32, descriptor: i32) -> io::Result<Mapping> {
    let mapping = Mapping::new(PIECE, flags, descriptor)?;
    mapping.write_every(4096);
    Ok(mapping)
}

fn zero_device(arguments: &Arguments) -> Outcome {
    match fs::OpenOptions::new().read(true).write(true).open("/dev/zero") {
        Ok(device) => pieces(arguments, || filled(libc::MAP_SHARED, device.as_raw_fd())),
        Err(error) => Outcome::Held(format!("/dev/zero: {error}")),
    }
}

/// Written, never mapped: no process shows it.
fn memory_file() -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("attack", rustix::fs::MemfdFlags::empty())?;
    rustix::io::write(&file, &vec![1; PIECE])?;
    Ok(file)
}

/// Many processes, each well below the limit.
fn children(arguments: &Arguments) -> Outcome {
    let limit = arguments.number("limit", 64 << 20);
    let each = (limit / 6) as usize;
    let mut children = Vec::new();
    for _ in 0..12 {
        let child = sys::fork(|| match Mapping::new(each, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1) {
            Ok(mapping) => {
                mapping.write_every(4096);
                wait_for_watchers(20_000);
                0
            }
            Err(_) => 1,
        });
        match child {
            Ok(child) => children.push(child),
            Err(error) => return Outcome::Held(format!("no more children: {error}")),
        }
    }
    wait_for_watchers(2000);
    let alive = children.iter().filter(|child| resident(**child) >= each as u64 * 9 / 10).count();
    let total = alive as u64 * each as u64;
    let outcome = if total > limit * 3 / 2 {
        Outcome::BrokeThrough(format!("{alive} children hold {} together, {} are allowed", mib(total), mib(limit)))
    } else {
        Outcome::Held(format!("{alive} of 12 children are left"))
    };
    children.into_iter().for_each(sys::kill);
    outcome
}

fn resident(child: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default() << 10
}

/// A System V segment that nobody is attached to any more.
fn segment() -> io::Result<()> {
    let private = 0;
    let id = call(libc::SYS_shmget, [n(private), n(PIECE as i64), n(0o1600)])?;
    let attached = Mapping::segment(id as i32, PIECE)?;
    attached.write_every(4096);
    Ok(())
}

/// Files in a folder in memory. The limit is the sandbox's memory, whatever size the folder has.
fn in_folder(arguments: &Arguments, folder: &str) -> Outcome {
    let mut number = 0;
    pieces(arguments, || {
        number += 1;
        let path = format!("{folder}/attack-{number}");
        let mut file = fs::File::create(&path)?;
        file.write_all(&vec![1; PIECE])?;
        // Without a name it still takes its room.
        fs::remove_file(&path)?;
        Ok(file)
    })
}

fn tmp_beyond_its_size(arguments: &Arguments) -> Outcome {
    let limit = arguments.number("tmp", 16 << 20);
    let mut written = 0;
    let mut file = match fs::File::create("/tmp/attack-full") {
        Ok(file) => file,
        Err(error) => return Outcome::Held(format!("/tmp: {error}")),
    };
    while written <= limit + (limit >> 2) {
        match file.write(&vec![1; 1 << 20]) {
            Ok(length) => written += length as u64,
            Err(error) => return Outcome::Held(format!("/tmp is full after {}: {error}", mib(written))),
        }
    }
    hold_breach(format!("/tmp took {}, {} are allowed", mib(written), mib(limit)), file)
}

/// What is in the buffers of pipes belongs to no process.
/// One byte of a huge page keeps all of it. Where the kernel has to look long for huge pages, it is as good as without.
fn spliced(arguments: &Arguments) -> Outcome {
    const LONGEST: Duration = Duration::from_secs(20);
    let limit = arguments.number("limit", 64 << 20);
    let mut kept: Vec<(OwnedFd, OwnedFd)> = Vec::new();
    let (mut total, start) = (0u64, Instant::now());
    while total <= 2 * limit && kept.len() < 200 && start.elapsed() < LONGEST {
        let added = kept.last().map(|(_, writer)| sys::splice_huge_page(writer.as_fd()));
        match added {
            Some(Ok(kept)) => total += kept,
            Some(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => {
                return Outcome::Held(format!("no more after {}: {error}", mib(total)));
            }
            _ => match rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK) {
                Ok(pipe) => kept.push(pipe),
                Err(error) => return Outcome::Held(format!("no more pipes after {}: {error}", mib(total))),
            },
        }
    }
    if total <= 2 * limit {
        return Outcome::Held(format!("{} pipes keep {}", kept.len(), mib(total)));
    }
    wait_for_watchers(2500);
    hold_breach(format!("pipes keep {}, {} are allowed", mib(total), mib(limit)), kept)
}

fn pipes(arguments: &Arguments) -> Outcome {
    let limit = arguments.number("limit", 64 << 20);
    let mut kept = Vec::new();
    let mut total = 0u64;
    while total <= 2 * limit {
        let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK);
        let (reader, writer) = match pipe {
            Ok(pipe) => pipe,
            // Fewer than asked for, and yet too many.
            Err(_) if total > limit => break,
            Err(error) => return Outcome::Held(format!("no more pipes after {}: {error}", mib(total))),
        };
        let _ = call(libc::SYS_fcntl, [n(writer.as_raw_fd()), n(libc::F_SETPIPE_SZ), n(1 << 20)]);
        while let Ok(length) = rustix::io::write(&writer, &[1; 65_536]) {
            total += length as u64;
        }
        kept.push((reader, writer));
    }
    wait_for_watchers(2500);
    hold_breach(format!("pipes hold {}, {} are allowed", mib(total), mib(limit)), kept)
}

fn sockets(arguments: &Arguments) -> Outcome {
    let limit = arguments.number("limit", 64 << 20);
    let mut kept = Vec::new();
    let mut total = 0u64;
    while total <= 2 * limit {
        let pair = UnixStream::pair().and_then(|pair| pair.0.set_nonblocking(true).map(|()| pair));
        let (mut writer, reader) = match pair {
            Ok(pair) => pair,
            Err(_) if total > limit => break,
            Err(error) => return Outcome::Held(format!("no more sockets after {}: {error}", mib(total))),
        };
        let _ = call(
            libc::SYS_setsockopt,
            [
                n(writer.as_raw_fd()),
                n(libc::SOL_SOCKET),
                n(libc::SO_SNDBUF),
                Argument::Bytes(&(8i32 << 20).to_ne_bytes()),
                n(4),
            ],
        );
        while let Ok(length) = writer.write(&[1; 65_536]) {
            total += length as u64;
        }
        kept.push((writer, reader));
    }
    wait_for_watchers(2500);
    hold_breach(format!("sockets hold {}, {} are allowed", mib(total), mib(limit)), kept)
}

/// One page of zeros read every 2 MiB: the memory is the kernel's shared page, its tables are ours.
fn page_tables(arguments: &Arguments) -> Outcome {
    const SPAN: usize = 8 << 30;
    let limit = arguments.number("limit", 64 << 20);
    let mut kept = Vec::new();
    loop {
        let tables = own_tables();
        if tables > 2 * limit {
            wait_for_watchers(2500);
            return hold_breach(format!("page tables take {}, {} are allowed", mib(tables), mib(limit)), kept);
        }
        match Mapping::new(SPAN, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1) {
            Ok(mapping) => {
                mapping.read_every(2 << 20);
                kept.push(mapping);
            }
            Err(error) => return Outcome::Held(format!("no more addresses with {} of tables: {error}", mib(tables))),
        }
    }
}

fn own_tables() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default() << 10
}

fn locked(arguments: &Arguments) -> Outcome {
    let everything_from_now_on = 2;
    let _ = call(libc::SYS_mlockall, [n(everything_from_now_on)]);
    pieces(arguments, || filled(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1))
}
