//! The stream carrier: many flows over one stream of bytes, each with its own back-pressure.

use std::{
    future::poll_fn,
    io,
    sync::Arc,
    task::{Context, Poll},
};

use sandbox_core::Duplex;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};
use yamux::{Config, Mode};

use crate::carrier::Side;

/// Streams at once on one connection. One more would end the connection, so fewer flows are opened.
const MAX_STREAMS: usize = 256;
/// Flows that one side has open at once; who wants one more waits.
const MAX_FLOWS: usize = 192;
/// Bytes that the other side may send before somebody takes them, over all flows.
const RECEIVE_WINDOW: usize = 128 << 20;
/// Payload of one of the multiplexer's own frames.
const SEND_SIZE: usize = 64 << 10;
/// Flows that somebody here wants and the connection has not opened yet.
const WAITING_FLOWS: usize = 16;

/// One flow.
pub type MultiplexedFlow = Compat<yamux::Stream>;

type Opening = oneshot::Sender<io::Result<MultiplexedFlow>>;

/// The connection. It ends when this is dropped.
pub struct Multiplexed {
    open: mpsc::Sender<Opening>,
    opened: Mutex<mpsc::Receiver<MultiplexedFlow>>,
    room: Arc<Semaphore>,
}

impl Multiplexed {
    /// Drives the connection in a task of its own.
    pub(crate) fn start(stream: Box<dyn Duplex>, side: Side) -> Self {
        let mut config = Config::default();
        config.set_max_num_streams(MAX_STREAMS);
        config.set_max_connection_receive_window(Some(RECEIVE_WINDOW));
        config.set_split_send_size(SEND_SIZE);
        let mode = match side {
            Side::Server => Mode::Client,
            Side::Executor => Mode::Server,
        };
        let connection = yamux::Connection::new(stream.compat(), config, mode);
        let (open, openings) = mpsc::channel(WAITING_FLOWS);
        // All that the other side may open: whoever opens many at once is not refused for being quick.
        let (inbound, opened) = mpsc::channel(MAX_STREAMS);
        let mut driver = Driver { connection, openings, next: None, inbound, closing: false };
        tokio::spawn(async move { poll_fn(|cx| driver.poll(cx)).await });
        Self { open, opened: Mutex::new(opened), room: Arc::new(Semaphore::new(MAX_FLOWS)) }
    }

    /// A flow, with its place among those that may be open.
    pub(crate) async fn open(&self) -> io::Result<(MultiplexedFlow, OwnedSemaphorePermit)> {
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        let place = Arc::clone(&self.room).acquire_owned().await.map_err(|_| gone())?;
        let (answer, opened) = oneshot::channel();
        self.open.send(answer).await.map_err(|_| gone())?;
        let flow = opened.await.unwrap_or_else(|_| Err(gone()))?;
        Ok((flow, place))
    }

    pub(crate) async fn accept(&self) -> Option<MultiplexedFlow> {
        self.opened.lock().await.recv().await
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.open.is_closed()
    }
}

struct Driver {
    connection: yamux::Connection<Compat<Box<dyn Duplex>>>,
    openings: mpsc::Receiver<Opening>,
    next: Option<Opening>,
    inbound: mpsc::Sender<MultiplexedFlow>,
    closing: bool,
}

impl Driver {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.closing {
            self.closing = self.poll_openings(cx).is_ready();
        }
        if self.closing {
            return self.connection.poll_close(cx).map(drop);
        }
        loop {
            match self.connection.poll_next_inbound(cx) {
                // Where nobody takes flows, or too slowly, dropping one refuses it.
                Poll::Ready(Some(Ok(stream))) => drop(self.inbound.try_send(stream.compat())),
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Ready when nobody can ask for flows any more.
    fn poll_openings(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.next.is_none() {
                match self.openings.poll_recv(cx) {
                    Poll::Ready(Some(opening)) => self.next = Some(opening),
                    Poll::Ready(None) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
            let Poll::Ready(stream) = self.connection.poll_new_outbound(cx) else { return Poll::Pending };
            if let Some(opening) = self.next.take() {
                drop(opening.send(stream.map(FuturesAsyncReadCompatExt::compat).map_err(io::Error::other)));
            }
        }
    }
}
