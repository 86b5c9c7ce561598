//! The executor's program, carried inside this library: nothing is written to any image.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, StatVfsMountFlags};

/// Built by `build.rs`.
static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/executor"));

/// A sealed file in memory that holds the program. All sandboxes of a launcher share its pages.
pub fn load() -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("executor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    write(&file)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    // A file that is open for writing cannot be executed (ETXTBSY), so it is opened again.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// The same from a file in the state's cache, for a process that makes one sandbox only: filling a file in memory would
/// be a tenth of its time. No path inside a sandbox leads to it. Where it cannot be had, a file in memory is.
pub fn load_cached(cache: &Path) -> io::Result<OwnedFd> {
    let path = cache.join(concat!("executor-", env!("EXECUTOR_HASH")));
    let cached = open_cached(&path).or_else(|_| {
        store(&path)?;
        open_cached(&path)
    });
    cached.or_else(|_| load())
}

/// The program, for who brings it to another machine.
pub fn program() -> &'static [u8] {
    PROGRAM
}

/// A name for this very program.
pub const HASH: &str = env!("EXECUTOR_HASH");

/// The path of the program in the state's cache, for engines that mount it. Made where it is missing.
pub fn cached(cache: &Path) -> io::Result<PathBuf> {
    let path = cache.join(concat!("executor-", env!("EXECUTOR_HASH")));
    if open_cached(&path).is_err() {
        store(&path)?;
        open_cached(&path)?;
    }
    Ok(path)
}

fn open_cached(path: &Path) -> io::Result<OwnedFd> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = rustix::fs::fstat(&file)?;
    let ours = found.st_uid == rustix::process::geteuid().as_raw() && found.st_mode & 0o7777 == 0o555;
    let whole = found.st_size as u64 == PROGRAM.len() as u64;
    let runs = !rustix::fs::fstatvfs(&file)?.f_flag.contains(StatVfsMountFlags::NOEXEC);
    if ours && whole && runs { Ok(file) } else { Err(io::ErrorKind::InvalidData.into()) }
}

fn store(path: &Path) -> io::Result<()> {
    let draft = path.with_extension(std::process::id().to_string());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let stored = rustix::fs::open(&draft, flags, Mode::empty()).map_err(io::Error::from).and_then(|file| {
        write(&file)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o555))?;
        // The name must not outlive a crash that the content does not.
        rustix::fs::fsync(&file)?;
        fs::rename(&draft, path)
    });
    stored.inspect_err(|_| drop(fs::remove_file(&draft)))?;
    remove_others(path);
    Ok(())
}

/// Those of earlier versions, and what is left of copies that were cut short.
fn remove_others(path: &Path) {
    for entry in path.parent().into_iter().filter_map(|cache| fs::read_dir(cache).ok()).flatten().flatten() {
        if entry.path() != path && entry.file_name().to_string_lossy().starts_with("executor-") {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn write(file: impl AsFd) -> io::Result<()> {
    let mut rest = PROGRAM;
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&file, rest)?..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_copy_in_the_cache_is_replaced() {
        let cache = tempfile::tempdir().expect("a folder");
        let content = |file: OwnedFd| {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut fs::File::from(file), &mut bytes).expect("readable");
            bytes
        };
        assert!(content(load_cached(cache.path()).expect("a program")) == PROGRAM);
        let copy = fs::read_dir(cache.path()).expect("the cache").next().expect("a copy").expect("a copy").path();
        for damage in [&b""[..], &PROGRAM[1..]] {
            fs::remove_file(&copy).expect("removed");
            fs::write(&copy, damage).expect("written");
            assert!(content(load_cached(cache.path()).expect("a program")) == PROGRAM);
        }
        fs::rename(&copy, cache.path().join("executor-of-an-earlier-version")).expect("renamed");
        load_cached(cache.path()).expect("a program");
        assert_eq!(fs::read_dir(cache.path()).expect("the cache").count(), 1);
    }
}
