//! A program's side of a connection, so that whatever is carried over it is counted, however it is carried.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

use crate::limits::Meter;

/// A stream whose bytes are those of a sandbox.
pub(crate) struct Metered<'a, S> {
    stream: S,
    meter: &'a Meter,
    outward: Turn,
    inward: Turn,
}

/// One direction's wait for its next bytes.
#[derive(Default)]
struct Turn(Option<Pin<Box<Sleep>>>);

impl<'a, S> Metered<'a, S> {
    pub fn new(stream: S, meter: &'a Meter) -> Self {
        Self { stream, meter, outward: Turn::default(), inward: Turn::default() }
    }
}

impl Turn {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(wait) = &mut self.0 {
            ready!(wait.as_mut().poll(context));
            self.0 = None;
        }
        Poll::Ready(())
    }

    fn next_at(&mut self, next: Option<Instant>) {
        self.0 = next.map(|next| Box::pin(tokio::time::sleep_until(next)));
    }
}

/// What was taken but not carried is given back. Waits and errors carried nothing.
fn settle(meter: &Meter, turn: &mut Turn, taken: usize, carried: &Poll<io::Result<usize>>) {
    let carried = match carried {
        Poll::Ready(Ok(length)) => *length,
        Poll::Ready(Err(_)) | Poll::Pending => 0,
    };
    meter.give_back(taken - carried.min(taken));
    if carried > 0 {
        turn.next_at(meter.carried(carried));
    }
}

fn used_up() -> io::Error {
    io::Error::new(io::ErrorKind::QuotaExceeded, "all bytes of this sandbox are used up")
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<'_, S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, meter, outward, .. } = self.get_mut();
        if !meter.is_limited() || into.remaining() == 0 {
            return Pin::new(stream).poll_read(context, into);
        }
        ready!(outward.poll(context));
        let taken = meter.take(into.remaining());
        if taken == 0 {
            return Poll::Ready(Err(used_up()));
        }
        let mut part = ReadBuf::new(into.initialize_unfilled_to(taken));
        let read = Pin::new(stream).poll_read(context, &mut part).map_ok(|()| part.filled().len());
        settle(meter, outward, taken, &read);
        into.advance(ready!(read)?);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<'_, S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { stream, meter, inward, .. } = self.get_mut();
        if !meter.is_limited() || bytes.is_empty() {
            return Pin::new(stream).poll_write(context, bytes);
        }
        ready!(inward.poll(context));
        let taken = meter.take(bytes.len());
        if taken == 0 {
            return Poll::Ready(Err(used_up()));
        }
        let written = Pin::new(stream).poll_write(context, &bytes[..taken]);
        settle(meter, inward, taken, &written);
        written
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
