//! One connection of a sandbox, as the engine uses it.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use smoltcp::{
    iface::SocketHandle,
    socket::tcp::{RecvError, Socket, State},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Shared;
use crate::{Engine, engine::Opened, transparent::Inside, tunnel::Carried};

/// Its socket is in the stack, and leaves it some time after this has ended.
pub(super) struct Stream {
    shared: Arc<Shared>,
    handle: SocketHandle,
}

impl Stream {
    pub fn new(shared: Arc<Shared>, handle: SocketHandle) -> Self {
        Self { shared, handle }
    }

    /// Does something with the socket, which the stack then has to look at.
    fn with<T>(&self, act: impl FnOnce(&mut Socket<'static>) -> T) -> T {
        let done = act(self.shared.stack().socket(self.handle));
        self.shared.work.notify_one();
        done
    }
}

impl Inside for Stream {
    fn reset(&self) {
        self.with(Socket::abort);
    }

    async fn carried_by(&mut self, engine: &Engine, opened: Opened) -> Carried {
        engine.carry(self, opened, Vec::new()).await
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.stack().leave(self.handle);
        self.shared.work.notify_one();
    }
}

/// The first packet has come, but the connection does not stand yet.
fn is_opening(socket: &Socket<'_>) -> bool {
    matches!(socket.state(), State::Listen | State::SynReceived)
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut stack = self.shared.stack();
        let socket = stack.socket(self.handle);
        match socket.recv_slice(buffer.initialize_unfilled()) {
            Ok(0) if buffer.remaining() > 0 => {}
            Ok(length) => {
                buffer.advance(length);
                self.shared.work.notify_one();
                return Poll::Ready(Ok(()));
            }
            Err(RecvError::Finished) => return Poll::Ready(Ok(())),
            Err(RecvError::InvalidState) if is_opening(socket) => {}
            Err(RecvError::InvalidState) => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
        socket.register_recv_waker(context.waker());
        Poll::Pending
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut stack = self.shared.stack();
        let socket = stack.socket(self.handle);
        match socket.send_slice(bytes) {
            Ok(0) if !bytes.is_empty() => {}
            Ok(length) => {
                self.shared.work.notify_one();
                return Poll::Ready(Ok(length));
            }
            Err(_) if is_opening(socket) => {}
            Err(_) => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
        socket.register_send_waker(context.waker());
        Poll::Pending
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // What was written before still goes out.
        self.with(Socket::close);
        Poll::Ready(Ok(()))
    }
}
