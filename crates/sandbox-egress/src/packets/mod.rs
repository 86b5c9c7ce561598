//! For sandboxes whose connections the kernel cannot redirect: what they send to anywhere comes to us packet by packet, and
//! a TCP/IP stack of ours makes connections of it, which end in the same engine as all others.
//!
//! Only TCP and UDP are looked at. Every connection is taken, as with a listener, and decided on afterwards; questions for
//! names are answered; other datagrams are refused at once (port unreachable). The rest is dropped, and nothing passes.

mod packet;
mod stack;
mod stream;

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{net::unix::pipe, sync::Notify};

use self::{
    stack::{Arrival, Stack},
    stream::Stream,
};
use crate::Engine;

/// Packets that are taken in before what was made of them goes out.
const TURN: usize = 32;
/// Looking after connections that wait for nothing but their time to pass.
const SELDOM: Duration = Duration::from_secs(60);

/// A tunnel's end outside.
pub struct Packets {
    /// Not a pipe, but this is how the runtime takes a descriptor that is read from as one is.
    incoming: pipe::Receiver,
    stack: Stack,
}

/// What the connections have in common with whoever moves packets.
struct Shared {
    stack: Mutex<Stack>,
    /// A connection has something to send, or room for more.
    work: Notify,
}

impl Shared {
    fn stack(&self) -> MutexGuard<'_, Stack> {
        self.stack.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Packets {
    /// Must be called within a tokio runtime; the descriptor does not block.
    pub(crate) fn new(tunnel: OwnedFd) -> io::Result<Self> {
        let stack = Stack::new(tunnel.try_clone()?);
        Ok(Self { incoming: pipe::Receiver::from_owned_fd_unchecked(tunnel)?, stack })
    }

    /// Serves until the tunnel is gone.
    pub(crate) async fn serve(self, engine: Arc<Engine>) {
        let Self { incoming, stack } = self;
        let shared = Arc::new(Shared { stack: Mutex::new(stack), work: Notify::new() });
        loop {
            let due = shared.stack().send().unwrap_or(SELDOM);
            let arrived = tokio::select! {
                ready = incoming.readable() => ready.and_then(|()| take_in(&shared, &incoming, &engine)),
                () = shared.work.notified() => Ok(()),
                () = tokio::time::sleep(due) => Ok(()),
            };
            if arrived.is_err() {
                return;
            }
        }
    }
}

/// Takes in what there is, but not so much that nothing goes out meanwhile.
fn take_in(shared: &Arc<Shared>, incoming: &pipe::Receiver, engine: &Arc<Engine>) -> io::Result<()> {
    for _ in 0..TURN {
        let mut stack = shared.stack();
        let full = stack.is_full();
        match incoming.try_read(stack.space()) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                let admit = |wanted| match full {
                    true => {
                        engine.record_too_many(wanted);
                        None
                    }
                    false => engine.place_for(wanted),
                };
                if let Some(arrival) = stack.take_in(length, admit, |question| engine.answer_dns(question)) {
                    drop(stack);
                    serve(shared, engine, arrival);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn serve(shared: &Arc<Shared>, engine: &Arc<Engine>, arrival: Arrival) {
    let Arrival { handle, wanted, place } = arrival;
    let (stream, engine) = (Stream::new(Arc::clone(shared), handle), Arc::clone(engine));
    tokio::spawn(async move {
        let _place = place;
        engine.serve_connection(stream, wanted).await;
    });
}
