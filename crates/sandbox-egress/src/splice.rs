//! Bytes from one socket to another that stay in the kernel (splice(2)), for connections that carry much.
//!
//! It takes a pipe, which is two descriptors and some room in the kernel. So only so many connections have one at the same
//! time, and only for as long as bytes keep coming; the others are carried as well, only with more work.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use rustix::{
    io::Errno,
    pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice},
};
use tokio::{io::Interest, net::TcpStream};

/// Pipes at the same time, in the whole process.
const MOST: usize = 32;
/// Room of a pipe: the most that anybody may ask for, for the kernel counts each small piece in it as a page.
const ROOM: usize = 1 << 20;
/// Time without a byte after which a pipe is given back.
const PAUSE: Duration = Duration::from_millis(200);

static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Carries bytes until none come for a while, or no more at all: whoever reads next finds out. Carries none if this is
/// not to be had.
pub(crate) async fn carry(from: &TcpStream, to: &TcpStream, count: &AtomicU64) -> io::Result<()> {
    let Some(pipe) = Pipe::take() else { return Ok(()) };
    loop {
        let filling = from.async_io(Interest::READABLE, || pass(from, &pipe.writer, ROOM));
        let length = match tokio::time::timeout(PAUSE, filling).await {
            Ok(Ok(0)) | Err(_) => return Ok(()),
            // Not with these sockets; but nothing was taken from them.
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => return Ok(()),
            Ok(length) => length?,
        };
        let mut left = length;
        while left > 0 {
            left -= to.async_io(Interest::WRITABLE, || pass(&pipe.reader, to, left)).await?;
        }
        count.fetch_add(length as u64, Ordering::Relaxed);
    }
}

fn pass(from: impl AsFd, to: impl AsFd, length: usize) -> io::Result<usize> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    loop {
        match splice(&from, None, &to, None, length, flags) {
            Err(Errno::INTR) => {}
            passed => return Ok(passed?),
        }
    }
}

struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    _turn: Turn,
}

/// One of the pipes that may be there.
struct Turn;

impl Pipe {
    fn take() -> Option<Self> {
        let more = |taken| Some(taken + 1).filter(|taken| *taken <= MOST);
        TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        let turn = Turn;
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // A user has only so much; then it is a small one.
        let _ = fcntl_setpipe_size(&writer, ROOM);
        Some(Self { reader, writer, _turn: turn })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TAKEN.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let (ours, theirs) = tokio::join!(TcpStream::connect(listener.local_addr().expect("bound")), listener.accept());
        (ours.expect("connected"), theirs.expect("accepted").0)
    }

    #[tokio::test]
    async fn every_byte_arrives_in_its_order_and_the_end_is_left_to_whoever_reads_next() {
        let ((mut near, from), (to, mut far)) = (pair().await, pair().await);
        let bytes: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
        let expected = bytes.clone();
        let count = AtomicU64::new(0);
        let says = async {
            near.write_all(&bytes).await.expect("said");
            near.shutdown().await.expect("ended");
        };
        let carries = async {
            carry(&from, &to, &count).await.expect("carried");
            drop(to);
        };
        let mut heard = Vec::new();
        let (_, _, length) = tokio::join!(says, carries, far.read_to_end(&mut heard));
        assert!(length.expect("heard") == expected.len() && heard == expected);
        assert_eq!(count.load(Ordering::Relaxed), expected.len() as u64);
    }

    #[tokio::test]
    async fn who_says_nothing_keeps_no_pipe() {
        let ((_near, from), (to, _far)) = (pair().await, pair().await);
        tokio::time::timeout(PAUSE * 20, carry(&from, &to, &AtomicU64::new(0)))
            .await
            .expect("in time")
            .expect("carried");
    }
}
