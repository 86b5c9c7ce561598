//! The executor's program, carried inside this library and started from memory: nothing is written to any image.

use std::{io, os::fd::OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};

/// Built by `build.rs`.
static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/executor"));

/// A sealed file in memory that holds the program. All sandboxes of a launcher share its pages.
pub fn load() -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("executor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut rest = PROGRAM;
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&file, rest)?..];
    }
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    // A file that is open for writing cannot be executed (ETXTBSY), so it is opened again.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}
