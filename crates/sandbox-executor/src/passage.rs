//! A pipe through which file content goes by reference: pages from a file to a socket, or from a socket to a file, without
//! a copy on the way (splice(2)).
//!
//! Nobody looks at what is inside, so it does not matter that whoever owns the pages may still change them.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    io::{Errno, retry_on_intr},
    pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice},
};

/// Content of fewer bytes is copied sooner than a pipe is made.
pub const WORTH_A_PASSAGE: u64 = 64 << 10;
/// Memory for content where a file takes no pages.
const BUFFER: usize = 64 << 10;

/// The pipe, and how much is in it.
pub struct Passage {
    entry: OwnedFd,
    exit: OwnedFd,
    holds: usize,
}

impl Passage {
    /// An empty one with room for so many bytes. An error means that content has to be copied: users have few large pipes.
    pub fn open(room: usize) -> io::Result<Self> {
        let (exit, entry) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        fcntl_setpipe_size(&entry, room)?;
        Ok(Self { entry, exit, holds: 0 })
    }

    /// Bytes inside.
    pub fn holds(&self) -> usize {
        self.holds
    }

    /// Takes at most so many bytes of a file from this offset on. Zero is its end.
    pub fn fill_from_file(&mut self, file: impl AsFd, mut offset: u64, most: usize) -> Result<usize, Errno> {
        self.fill(|entry| splice(file.as_fd(), Some(&mut offset), entry, None, most, SpliceFlags::NONBLOCK))
    }

    /// Takes at most so many bytes of what a socket has. Zero is its end; it would block also where there is no room.
    pub(crate) fn fill_from_socket(&mut self, socket: impl AsFd, most: usize) -> Result<usize, Errno> {
        self.fill(|entry| splice(socket.as_fd(), None, entry, None, most, SpliceFlags::NONBLOCK))
    }

    /// Gives a socket what it takes now.
    pub(crate) fn empty_into_socket(&mut self, socket: impl AsFd) -> io::Result<usize> {
        Ok(self.empty(|exit, holds| splice(exit, None, socket.as_fd(), None, holds, SpliceFlags::NONBLOCK))?)
    }

    /// Writes everything inside to a file, where it stands. Blocks as long as the file's disk does.
    pub fn empty_into_file(&mut self, file: &File) -> io::Result<()> {
        while self.holds > 0 {
            match self.empty(|exit, holds| splice(exit, None, file, None, holds, SpliceFlags::empty())) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                // Not every file system takes pages.
                Err(Errno::INVAL) => return self.copy_into(file),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn copy_into(&mut self, mut file: &File) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        while self.holds > 0 {
            let count = self.empty(|exit, _| rustix::io::read(exit, &mut buffer))?;
            file.write_all(buffer.get(..count).filter(|data| !data.is_empty()).ok_or(io::ErrorKind::UnexpectedEof)?)?;
        }
        Ok(())
    }

    fn fill(&mut self, mut step: impl FnMut(&OwnedFd) -> Result<usize, Errno>) -> Result<usize, Errno> {
        let count = retry_on_intr(|| step(&self.entry))?;
        self.holds += count;
        Ok(count)
    }

    fn empty(&mut self, mut step: impl FnMut(&OwnedFd, usize) -> Result<usize, Errno>) -> Result<usize, Errno> {
        let count = retry_on_intr(|| step(&self.exit, self.holds))?;
        self.holds = self.holds.saturating_sub(count);
        Ok(count)
    }
}
