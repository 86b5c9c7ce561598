//! The program that attacks from inside, carried in this library.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::fs::{MemfdFlags, Mode, OFlags};

/// Built by `build.rs`.
pub(crate) static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sandbox-attack"));

/// A file in memory that holds the program, for starting it on the host's side.
pub fn unpack() -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("sandbox-attack", MemfdFlags::CLOEXEC)?;
    let mut rest = PROGRAM;
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&file, rest)?..];
    }
    // A file that is open for writing cannot be executed (ETXTBSY), so it is opened again.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// A command that starts it on the host's side: for the canary, and for looking whether the host is well.
pub fn on_host(program: &OwnedFd) -> tokio::process::Command {
    tokio::process::Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
}
