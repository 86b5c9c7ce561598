//! Run on the host's side while a sandbox uses up what it can: is there still enough for everybody else?

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::{fs::OpenOptionsExt, net::UnixStream},
    },
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::{
    Attack,
    arguments::Arguments,
    outcome::Outcome,
    sys::{self, Argument, call, n},
};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("host_resources", host_resources),
    ("still_here", |_| Outcome::Held("alive".to_owned())),
    ("stay", |_| {
        std::thread::sleep(std::time::Duration::from_secs(60));
        Outcome::Held("it stayed".to_owned())
    }),
];

/// Takes one of something.
type Check = fn() -> io::Result<()>;

fn host_resources(_: &Arguments) -> Outcome {
    let checks: [(&str, Check); 9] = [
        ("no process can be started", || sys::fork(|| 0).and_then(sys::wait).map(drop)),
        ("no inotify instance can be made", || call(libc::SYS_inotify_init1, [n(0)]).map(drop)),
        ("no inotify watch can be added", watch),
        ("no asynchronous I/O can be set up", || {
            call(libc::SYS_io_setup, [n(64), Argument::Buffer(&mut [0; 8])]).map(drop)
        }),
        ("no terminal can be opened", terminal),
        ("no signal can be queued", queue_signal),
        ("no descriptor can be passed", pass_descriptor),
        ("no descriptor can be watched", epoll),
        ("no pipe of the usual size can be made", pipe),
    ];
    let gone = checks.into_iter().filter_map(|(what, check)| check().err().map(|error| format!("{what} ({error})")));
    Outcome::of_list("outside the sandbox", gone.collect())
}

fn watch() -> io::Result<()> {
    let instance = call(libc::SYS_inotify_init1, [n(0)])?;
    let everything = 0xfff;
    call(libc::SYS_inotify_add_watch, [n(instance), Argument::Text(c"/"), n(everything)]).map(drop)
}

fn terminal() -> io::Result<()> {
    fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open("/dev/ptmx").map(drop)
}

/// A timer needs room for its signal.
fn queue_signal() -> io::Result<()> {
    call(libc::SYS_timer_create, [n(0), n(0), Argument::Buffer(&mut [0; 8])]).map(drop)
}

fn pass_descriptor() -> io::Result<()> {
    let (here, there) = UnixStream::pair()?;
    let passed = [here.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); 64];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&passed));
    rustix::net::sendmsg(&there, &[io::IoSlice::new(b"x")], &mut control, SendFlags::empty())?;
    Ok(())
}

fn epoll() -> io::Result<()> {
    let instance = call(libc::SYS_epoll_create1, [n(0)])?;
    let (here, _there) = UnixStream::pair()?;
    call(
        libc::SYS_epoll_ctl,
        [n(instance), n(1), n(here.as_raw_fd()), Argument::Bytes(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])],
    )
    .map(drop)
}

fn pipe() -> io::Result<()> {
    let mut ends = [0u8; 8];
    call(libc::SYS_pipe2, [Argument::Buffer(&mut ends), n(0)])?;
    let end = i32::from_ne_bytes(ends[..4].try_into().unwrap_or_default());
    let size = call(libc::SYS_fcntl, [n(end), n(libc::F_GETPIPE_SZ)])?;
    if size >= 65_536 { Ok(()) } else { Err(io::Error::other(format!("only {size} bytes"))) }
}
