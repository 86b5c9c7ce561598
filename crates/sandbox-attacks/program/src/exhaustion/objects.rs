//! Things of which the kernel has a fixed number for a user or for the whole machine. Inside they may run out; outside
//! they must not, which the suite tries while they are held here.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::{fs::OpenOptionsExt, net::UnixStream},
    },
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::{Deadline, hold, hold_breach};
use crate::{
    Attack,
    arguments::Arguments,
    outcome::Outcome,
    sys::{Argument, call, n},
};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("open_files", open_files),
    ("inotify_instances", |_| many("inotify instances", 4000, || call(libc::SYS_inotify_init1, [n(0)]))),
    ("inotify_watches", inotify_watches),
    ("terminals", |_| many("terminals", 4000, terminal)),
    ("queued_signals", queued_signals),
    ("message_queues", message_queues),
    ("aio_contexts", aio_contexts),
    ("timers", |_| {
        many("timers", 200_000, || call(libc::SYS_timer_create, [n(0), n(0), Argument::Buffer(&mut [0; 8])]))
    }),
    ("epoll_watches", epoll_watches),
    ("event_descriptors", |_| many("event descriptors", 60_000, || call(libc::SYS_eventfd2, [n(0), n(0)]))),
    ("file_locks", file_locks),
    ("descriptors_on_their_way", descriptors_on_their_way),
    ("semaphores", |_| many("semaphore sets", 40_000, || call(libc::SYS_semget, [n(0), n(64), n(0o1600)]))),
    ("pipe_buffers", pipe_buffers),
];

/// Makes as many as it can, and holds them.
fn many<T>(what: &str, most: usize, mut make: impl FnMut() -> io::Result<T>) -> Outcome {
    raise_open_files();
    let mut kept = Vec::new();
    let deadline = Deadline::start();
    while kept.len() < most {
        if deadline.is_over() {
            return hold(format!("{} {what} in the time that there was", kept.len()), kept);
        }
        match make() {
            Ok(one) => kept.push(one),
            Err(error) => return hold(format!("{} {what}, then {error}", kept.len()), kept),
        }
    }
    hold(format!("{most} {what}"), kept)
}

fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let most = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
}

fn open_files(_: &Arguments) -> Outcome {
    raise_open_files();
    let mut kept = Vec::new();
    let ended = loop {
        match fs::File::open("/dev/null") {
            Ok(file) if kept.len() < 200_000 => kept.push(file),
            Ok(_) => break None,
            Err(error) => break Some(error),
        }
    };
    match ended {
        Some(error) => hold(format!("{} open files, then {error}", kept.len()), kept),
        None => hold_breach(format!("{} open files in one process, and no end", kept.len()), kept),
    }
}

fn inotify_watches(_: &Arguments) -> Outcome {
    let instance = match call(libc::SYS_inotify_init1, [n(0)]) {
        Ok(instance) => instance,
        Err(error) => return Outcome::Held(format!("inotify: {error}")),
    };
    // One watch for each file; hard links are one file.
    let mut made = 0;
    many("inotify watches", 20_000, || {
        made += 1;
        let path = format!("/dev/shm/watched-{made}");
        fs::File::create(&path)?;
        let name = std::ffi::CString::new(path).map_err(io::Error::other)?;
        call(libc::SYS_inotify_add_watch, [n(instance), Argument::Text(&name), n(2)])
    })
}

fn terminal() -> io::Result<fs::File> {
    fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open("/dev/ptmx")
}

/// A real-time signal that is blocked is queued as often as it is sent.
fn queued_signals(_: &Arguments) -> Outcome {
    let all = [0xffu8; 8];
    let _ = call(libc::SYS_rt_sigprocmask, [n(0), Argument::Bytes(&all), n(0), n(8)]);
    let own = i64::from(std::process::id());
    let mut information = [0u8; 128];
    information[0] = 40;
    information[8..12].copy_from_slice(&(-1i32).to_ne_bytes());
    many("queued signals", 300_000, || call(libc::SYS_rt_sigqueueinfo, [n(own), n(40), Argument::Bytes(&information)]))
}

fn message_queues(_: &Arguments) -> Outcome {
    let mut made = 0;
    many("message queues", 2000, || {
        made += 1;
        let name = std::ffi::CString::new(format!("attack-{made}")).map_err(io::Error::other)?;
        call(libc::SYS_mq_open, [Argument::Text(&name), n(libc::O_CREAT | libc::O_RDWR), n(0o600), n(0)])
    })
}

/// The machine has 65,536 events for all of its users together.
fn aio_contexts(_: &Arguments) -> Outcome {
    let mut size = 32_768;
    let mut total = 0;
    let mut rounds = 0;
    while size > 0 && rounds < 4096 {
        rounds += 1;
        match call(libc::SYS_io_setup, [n(size), Argument::Buffer(&mut [0; 8])]) {
            Ok(_) => total += size,
            Err(_) => size /= 2,
        }
    }
    hold(format!("{total} events of asynchronous I/O"), ())
}

fn epoll_watches(_: &Arguments) -> Outcome {
    raise_open_files();
    let instances: Vec<i64> = (0..500).filter_map(|_| call(libc::SYS_epoll_create1, [n(0)]).ok()).collect();
    let pairs: Vec<_> = (0..500).filter_map(|_| UnixStream::pair().ok()).collect();
    let event = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut made = 0;
    for instance in &instances {
        for (here, _) in &pairs {
            if let Err(error) =
                call(libc::SYS_epoll_ctl, [n(*instance), n(1), n(here.as_raw_fd()), Argument::Bytes(&event)])
            {
                return hold(format!("{made} epoll watches, then {error}"), pairs);
            }
            made += 1;
        }
    }
    hold(format!("{made} epoll watches"), pairs)
}

fn file_locks(_: &Arguments) -> Outcome {
    let file = match fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open("/workspace/locked")
    {
        Ok(file) => file,
        Err(error) => return Outcome::NotApplicable(format!("no file: {error}")),
    };
    let mut made = 0i64;
    // Single bytes with gaps, because neighbours become one lock.
    let outcome = many("file locks", 8000, || {
        made += 2;
        let mut lock = [0u8; 32];
        lock[0] = libc::F_WRLCK as u8;
        lock[8..16].copy_from_slice(&made.to_ne_bytes());
        lock[16..24].copy_from_slice(&1i64.to_ne_bytes());
        call(libc::SYS_fcntl, [n(file.as_raw_fd()), n(libc::F_OFD_SETLK), Argument::Bytes(&lock)])
    });
    drop(file);
    outcome
}

/// Descriptors that were sent and not received count for the user who sent them, and other senders of that user fail.
fn descriptors_on_their_way(_: &Arguments) -> Outcome {
    raise_open_files();
    let mut made = 0;
    let mut kept = Vec::new();
    let mut refused = None;
    'all: for _ in 0..4000 {
        let Ok((here, there)) = UnixStream::pair() else { break };
        let _ = here.set_nonblocking(true);
        for _ in 0..64 {
            let passed = [there.as_fd(); 200];
            let mut space = [std::mem::MaybeUninit::uninit(); 1024];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&passed));
            match rustix::net::sendmsg(&here, &[io::IoSlice::new(b"x")], &mut control, SendFlags::empty()) {
                Ok(_) => made += 200,
                Err(rustix::io::Errno::AGAIN) => break,
                Err(error) => {
                    refused = Some(error);
                    kept.push((here, there));
                    break 'all;
                }
            }
        }
        kept.push((here, there));
    }
    match refused {
        Some(error) => hold(format!("{made} descriptors on their way, then {error}"), kept),
        None => hold(format!("{made} descriptors on their way"), kept),
    }
}

/// Above a number of pages the kernel gives all pipes of the user a single page.
fn pipe_buffers(_: &Arguments) -> Outcome {
    many("pipes of a megabyte", 300, || {
        let pipe = rustix::pipe::pipe()?;
        call(libc::SYS_fcntl, [n(pipe.1.as_raw_fd()), n(libc::F_SETPIPE_SZ), n(1 << 20)])?;
        Ok(pipe)
    })
}
