//! A connection between a server and an executor, and the flows on it, whichever way the bytes go.
//!
//! Over a local socket a flow is a socket of its own, passed as a descriptor. Over a plain stream it is a stream of a
//! multiplexer. Whoever has a [`Flow`] sees no difference.

use std::{
    io::{self, IoSlice},
    os::fd::{BorrowedFd, OwnedFd},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use sandbox_core::Channel;
use serde::Serialize;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, Interest, ReadBuf, ReadHalf, WriteHalf},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::OwnedSemaphorePermit,
};

use crate::{
    frame::{self, FrameError, FrameReader},
    multiplexed::{Multiplexed, MultiplexedFlow},
    passage::Passage,
    protocol::{FRAME_HEADER, FrameKind, Hello},
    socket::Socket,
};

/// Longest encoded [`Hello`].
const MAX_HELLO: usize = 256;
/// A side that does not even greet is not waited for.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The server's.
    Server,
    /// The executor's.
    Executor,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum CarrierError {
    /// The other side greets wrongly.
    #[error("the other side did not greet as it must: {0}")]
    Greeting(String),
    /// No version that both speak.
    #[error("the other side speaks versions {theirs_oldest} to {theirs_newest} of the protocol, this one {} to {}", Hello::OURS.oldest, Hello::OURS.version)]
    Version {
        /// Their oldest.
        theirs_oldest: u16,
        /// Their newest.
        theirs_newest: u16,
    },
    /// The other side said nothing.
    #[error("the other side did not greet within {} seconds", HELLO_PATIENCE.as_secs())]
    Silent,
    /// The carrier broke.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// One connection.
pub struct Connection {
    carrier: Carrier,
    version: u16,
}

enum Carrier {
    /// Descriptors over a local socket.
    Local(Socket),
    /// Flows over one stream.
    Stream(Multiplexed),
}

impl Connection {
    /// Greets the other side. Must be called inside a tokio runtime.
    pub async fn establish(channel: Channel, side: Side) -> Result<Self, CarrierError> {
        let greeting = async {
            match channel {
                Channel::Local(socket) => {
                    let socket = Socket::new(socket)?;
                    let ours = frame::encode(&Hello::OURS).map_err(greeting)?;
                    socket.send(&ours, &[]).await?;
                    let hello = socket.receive_packet::<MAX_HELLO>().await?;
                    let version = agreed(hello.get(FRAME_HEADER..).unwrap_or_default())?;
                    Ok(Self { carrier: Carrier::Local(socket), version })
                }
                Channel::Stream(mut stream) => {
                    stream.write_all(&frame::encode(&Hello::OURS).map_err(greeting)?).await?;
                    stream.flush().await?;
                    let mut reader = FrameReader::with_longest(stream, MAX_HELLO);
                    let hello = reader.next().await.map_err(greeting)?;
                    let version = agreed(&hello.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?.body)?;
                    let carrier = Carrier::Stream(Multiplexed::start(reader.into_source(), side));
                    Ok(Self { carrier, version })
                }
            }
        };
        tokio::time::timeout(HELLO_PATIENCE, greeting).await.unwrap_or(Err(CarrierError::Silent))
    }

    /// The version that both sides speak.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Opens a flow whose first frame is this message. Descriptors can only go along on a local socket.
    pub async fn open<T: Serialize>(&self, first: &T, descriptors: &[BorrowedFd<'_>]) -> Result<Flow, FrameError> {
        let first = frame::encode(first)?;
        match &self.carrier {
            Carrier::Local(socket) => {
                let (stream, written) = socket.open(&first, descriptors).await?;
                let mut flow = Flow::local(UnixStream::from_std(stream)?);
                flow.writer.write_all(&first[written..]).await?;
                Ok(flow)
            }
            Carrier::Stream(_) if !descriptors.is_empty() => Err(io::Error::from(io::ErrorKind::Unsupported).into()),
            Carrier::Stream(multiplexed) => {
                let (stream, place) = multiplexed.open().await?;
                let mut flow = Flow::multiplexed(stream);
                flow.writer.place = Some(place);
                flow.writer.write_all(&first).await?;
                Ok(flow)
            }
        }
    }

    /// The next flow that the other side opens, with the descriptors that came along; nothing when it is gone.
    pub async fn accept(&self) -> io::Result<Option<(Flow, Vec<OwnedFd>)>> {
        match &self.carrier {
            Carrier::Local(socket) => match socket.accept().await? {
                Some((stream, descriptors)) => Ok(Some((Flow::local(UnixStream::from_std(stream)?), descriptors))),
                None => Ok(None),
            },
            Carrier::Stream(multiplexed) => {
                Ok(multiplexed.accept().await.map(|flow| (Flow::multiplexed(flow), Vec::new())))
            }
        }
    }

    /// Whether the other side is gone.
    pub fn is_closed(&self) -> bool {
        match &self.carrier {
            Carrier::Local(socket) => socket.is_closed(),
            Carrier::Stream(multiplexed) => multiplexed.is_closed(),
        }
    }
}

fn greeting(error: FrameError) -> CarrierError {
    CarrierError::Greeting(error.to_string())
}

fn agreed(hello: &[u8]) -> Result<u16, CarrierError> {
    let theirs: Hello = frame::decode(hello).map_err(greeting)?;
    let none = CarrierError::Version { theirs_oldest: theirs.oldest, theirs_newest: theirs.version };
    Hello::OURS.agree(theirs).ok_or(none)
}

/// A stream of frames both ways.
pub struct Flow {
    /// What the other side sends.
    pub reader: FlowReader,
    /// What we send.
    pub writer: FlowWriter,
}

impl Flow {
    fn local(stream: UnixStream) -> Self {
        let (read, write) = stream.into_split();
        Self::new(FlowSource::Local(read), FlowSink::Local(write))
    }

    fn multiplexed(stream: MultiplexedFlow) -> Self {
        let (read, write) = tokio::io::split(stream);
        Self::new(FlowSource::Multiplexed(read), FlowSink::Multiplexed(write))
    }

    fn new(source: FlowSource, sink: FlowSink) -> Self {
        Self { reader: FrameReader::new(source), writer: FlowWriter { sink, unfinished: false, place: None } }
    }
}

/// The receiving half of a flow.
pub type FlowReader = FrameReader<FlowSource>;

/// The sending half of a flow.
pub struct FlowWriter {
    sink: FlowSink,
    /// A frame was begun and its sender cancelled: nothing sensible can follow it.
    unfinished: bool,
    /// Given back when the flow ends.
    place: Option<OwnedSemaphorePermit>,
}

impl FlowWriter {
    /// Sends a message.
    pub async fn message<T: Serialize>(&mut self, message: &T) -> Result<(), FrameError> {
        let bytes = frame::encode(message)?;
        Ok(self.write_all(&bytes).await?)
    }

    /// Sends a frame.
    pub async fn frame(&mut self, kind: FrameKind, body: &[u8]) -> Result<(), FrameError> {
        let header = frame::header(kind, body.len())?;
        self.begin()?;
        let mut sent = 0;
        while sent < FRAME_HEADER {
            let pieces = [IoSlice::new(&header[sent..]), IoSlice::new(body)];
            sent += at_least_one(self.sink.write_vectored(&pieces).await?)?;
        }
        self.sink.write_all(&body[sent - FRAME_HEADER..]).await?;
        self.sink.flush().await?;
        self.unfinished = false;
        Ok(())
    }

    /// Sends a frame from a buffer whose first [`FRAME_HEADER`] bytes are free for its header.
    pub async fn prepared(&mut self, kind: FrameKind, buffer: &mut [u8]) -> Result<(), FrameError> {
        let header = frame::header(kind, buffer.len().saturating_sub(FRAME_HEADER))?;
        let Some(place) = buffer.get_mut(..FRAME_HEADER) else { return Err(FrameError::CutOff) };
        place.copy_from_slice(&header);
        Ok(self.write_all(buffer).await?)
    }

    /// Whether [`Self::passed`] works.
    pub fn takes_pages(&self) -> bool {
        matches!(self.sink, FlowSink::Local(_))
    }

    /// Sends everything in a passage as one frame. Only on a local socket.
    pub async fn passed(&mut self, kind: FrameKind, passage: &mut Passage) -> Result<(), FrameError> {
        let header = frame::header(kind, passage.holds())?;
        self.write_all(&header).await?;
        self.begin()?;
        let FlowSink::Local(half) = &self.sink else { return Err(io::Error::from(io::ErrorKind::Unsupported).into()) };
        let socket: &UnixStream = half.as_ref();
        while passage.holds() > 0 {
            at_least_one(socket.async_io(Interest::WRITABLE, || passage.empty_into_socket(socket)).await?)?;
        }
        self.unfinished = false;
        Ok(())
    }

    /// Says that nothing more comes. The other direction stays open.
    pub async fn finish(&mut self) -> io::Result<()> {
        self.sink.shutdown().await
    }

    /// Sends some of the bytes of frames that somebody else cuts and keeps whole.
    pub(crate) fn poll_bytes(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.sink).poll_write(cx, bytes)
    }

    /// Sees to it that what was sent so far is on its way.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.sink).poll_flush(cx)
    }

    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.begin()?;
        self.sink.write_all(bytes).await?;
        self.sink.flush().await?;
        self.unfinished = false;
        Ok(())
    }

    fn begin(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.unfinished, true) {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "an earlier frame was cut off by cancelling"));
        }
        Ok(())
    }
}

fn at_least_one(count: usize) -> io::Result<usize> {
    if count == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(count) }
}

/// Where a flow's bytes come from.
pub enum FlowSource {
    /// A socket of its own.
    Local(OwnedReadHalf),
    /// A stream of the multiplexer.
    Multiplexed(ReadHalf<MultiplexedFlow>),
}

impl FlowSource {
    /// The socket, if it has one of its own.
    pub(crate) fn socket(&self) -> Option<&UnixStream> {
        match self {
            Self::Local(half) => Some(half.as_ref()),
            Self::Multiplexed(_) => None,
        }
    }
}

impl AsyncRead for FlowSource {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let result = match self.get_mut() {
            Self::Local(half) => Pin::new(half).poll_read(cx, out),
            Self::Multiplexed(half) => Pin::new(half).poll_read(cx, out),
        };
        // A side that closes a local socket with something unread in it resets it: for us it is simply gone.
        match result {
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => Poll::Ready(Ok(())),
            other => other,
        }
    }
}

/// Where a flow's bytes go.
enum FlowSink {
    Local(OwnedWriteHalf),
    Multiplexed(WriteHalf<MultiplexedFlow>),
}

impl AsyncWrite for FlowSink {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Local(half) => Pin::new(half).poll_write(cx, bytes),
            Self::Multiplexed(half) => Pin::new(half).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Local(half) => Pin::new(half).poll_write_vectored(cx, pieces),
            Self::Multiplexed(half) => Pin::new(half).poll_write_vectored(cx, pieces),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Local(half) => Pin::new(half).poll_flush(cx),
            Self::Multiplexed(half) => Pin::new(half).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Local(half) => Pin::new(half).poll_shutdown(cx),
            Self::Multiplexed(half) => Pin::new(half).poll_shutdown(cx),
        }
    }
}
