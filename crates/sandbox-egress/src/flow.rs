//! Bytes in one direction, from one end to another.
//!
//! Most connections wait most of the time, so none has a buffer of its own: there is one for each thread, for whoever has
//! something to carry at the moment. Only what the other end does not take at once is kept.

use std::{
    cell::RefCell,
    future::poll_fn,
    io,
    pin::Pin,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf},
    net::{TcpStream, tcp},
};

use crate::{splice, tunnel::Carried};

/// What is carried in one go.
const PIECE: usize = 64 << 10;
/// Time without a byte after which one side is not waited for when the other has ended.
const AFTER_END: Duration = Duration::from_secs(60);

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; PIECE].into());
}

/// One of the two ends.
pub(crate) trait End {
    /// The socket, if bytes may pass it that nobody here sees.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }
}

impl<S> End for ReadHalf<S> {}

impl<S> End for WriteHalf<S> {}

impl End for tcp::ReadHalf<'_> {
    fn socket(&self) -> Option<&TcpStream> {
        Some(self.as_ref())
    }
}

impl End for tcp::WriteHalf<'_> {
    fn socket(&self) -> Option<&TcpStream> {
        Some(self.as_ref())
    }
}

impl<E: End> End for &mut E {
    fn socket(&self) -> Option<&TcpStream> {
        (**self).socket()
    }
}

/// Carries all there is, and then says that it was all. `ended` is for both directions of a connection.
pub(crate) async fn copy(
    mut from: impl AsyncRead + End + Unpin,
    mut to: impl AsyncWrite + End + Unpin,
    count: &AtomicU64,
    ended: &AtomicBool,
) -> Result<(), Carried> {
    loop {
        let mut rest = Vec::new();
        let some = poll_fn(|context| poll_some(context, &mut from, &mut to, &mut rest));
        // Looked at from time to time: the other side may end while we wait.
        let length = match tokio::time::timeout(AFTER_END, some).await {
            Ok(length) => length?,
            Err(_) if ended.load(Ordering::Relaxed) => return Err(Carried::BrokenOff),
            Err(_) => continue,
        };
        if length == 0 {
            ended.store(true, Ordering::Relaxed);
            return Ok(to.shutdown().await?);
        }
        to.write_all(&rest).await?;
        // TLS may keep something back otherwise.
        to.flush().await?;
        count.fetch_add(length as u64, Ordering::Relaxed);
        // Where so much comes at once there is more.
        if length == PIECE
            && let (Some(from), Some(to)) = (from.socket(), to.socket())
        {
            splice::carry(from, to, count).await?;
        }
    }
}

/// Reads once, and writes as much of it as goes without waiting; the rest of it goes to `rest`.
fn poll_some(
    context: &mut Context<'_>,
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    rest: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    BUFFER.with_borrow_mut(|buffer| {
        let mut buffer = ReadBuf::new(buffer);
        ready!(Pin::new(from).poll_read(context, &mut buffer))?;
        let mut left = buffer.filled();
        while !left.is_empty() {
            match Pin::new(&mut *to).poll_write(context, left) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(written) => left = &left[written?..],
                Poll::Pending => {
                    rest.extend_from_slice(left);
                    break;
                }
            }
        }
        Poll::Ready(Ok(buffer.filled().len()))
    })
}
