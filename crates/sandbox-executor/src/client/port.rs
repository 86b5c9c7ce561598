//! A connection to a port inside, as a stream of bytes both ways.
//!
//! What comes is hostile data: a frame is taken only if it is one that may come and no longer than it may be, so that
//! a connection holds about one frame each way, whatever the other side does.

use std::{
    io,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    carrier::{Flow, FlowReader},
    client::Client,
    frame::{self, Frame, FrameError},
    protocol::{FRAME_HEADER, FrameKind, PORT_FRAME},
};

/// A connection to a port. Shutting it down ends only our direction; dropping it breaks it off.
///
/// Where the other side breaks it off, reading fails with [`io::ErrorKind::ConnectionReset`]: an end that was not said
/// is not taken for the end of the data.
pub struct PortStream {
    _client: Client,
    flow: Flow,
    /// Received, and not yet taken from `taken` on.
    received: Vec<u8>,
    taken: usize,
    /// The other side has said that nothing more comes.
    ended: bool,
    /// Cut into frames, and not yet sent from `sent` on.
    leaving: Vec<u8>,
    sent: usize,
    direction: Direction,
}

/// Our direction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Open,
    /// The last frame is on its way.
    Ending,
}

impl PortStream {
    pub(crate) fn new(client: Client, flow: Flow) -> Self {
        let (received, leaving) = (Vec::new(), Vec::new());
        Self { _client: client, flow, received, taken: 0, ended: false, leaving, sent: 0, direction: Direction::Open }
    }

    /// Takes the next frame. Ready with nothing to take means the end.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flow.reader.recycle(std::mem::take(&mut self.received));
        self.taken = 0;
        // Reading frames goes on where it was cut short, so a future for each turn is enough.
        let frame = ready!(pin!(next(&mut self.flow.reader)).poll(cx)).map_err(broken)?;
        match frame {
            Some(Frame { kind: FrameKind::Data, body }) if !body.is_empty() => self.received = body,
            Some(Frame { kind: FrameKind::End, body }) if body.is_empty() => self.ended = true,
            Some(frame) => return Poll::Ready(Err(broken(FrameError::Unexpected(frame.kind)))),
            None => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
        Poll::Ready(Ok(()))
    }

    /// Sends what waits to be sent.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.leaving.len() {
            let count = ready!(self.flow.writer.poll_bytes(cx, &self.leaving[self.sent..]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += count;
        }
        self.leaving.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    fn put(&mut self, kind: FrameKind, body: &[u8]) -> io::Result<()> {
        let header: [u8; FRAME_HEADER] = frame::header(kind, body.len()).map_err(broken)?;
        self.leaving.extend_from_slice(&header);
        self.leaving.extend_from_slice(body);
        Ok(())
    }
}

/// The next frame, none that is too long. Cancel-safe.
async fn next(reader: &mut FlowReader) -> Result<Option<Frame>, FrameError> {
    match reader.open().await? {
        Some((_, length)) if length > PORT_FRAME => Err(FrameError::TooLong(length)),
        _ => reader.next().await,
    }
}

fn broken(error: FrameError) -> io::Error {
    match error {
        FrameError::Io(error) => error,
        FrameError::CutOff => io::ErrorKind::ConnectionReset.into(),
        other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
    }
}

impl AsyncRead for PortStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.taken == this.received.len() && !this.ended {
            ready!(this.poll_receive(cx))?;
        }
        let ready = &this.received[this.taken..];
        let count = ready.len().min(out.remaining());
        out.put_slice(&ready[..count]);
        this.taken += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PortStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.direction == Direction::Ending {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(this.poll_send(cx))?;
        let count = bytes.len().min(PORT_FRAME);
        if count > 0 {
            this.put(FrameKind::Data, &bytes[..count])?;
            // What does not go now goes with the next turn: the bytes are ours.
            if let Poll::Ready(sent) = this.poll_send(cx) {
                sent?;
            }
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(cx))?;
        this.flow.writer.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.direction == Direction::Open {
            this.put(FrameKind::End, &[])?;
            this.direction = Direction::Ending;
        }
        ready!(this.poll_send(cx))?;
        this.flow.writer.poll_flush(cx)
    }
}
