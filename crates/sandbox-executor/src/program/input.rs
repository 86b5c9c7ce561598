//! A job's input: a bounded queue, and a task that writes it as fast as the job reads.

use std::{cell::RefCell, io, os::fd::OwnedFd};

use sandbox_executor::{
    carrier::FlowReader,
    frame::FrameError,
    protocol::{Failure, FrameKind, Reason},
};
use tokio::{io::AsyncWriteExt, net::unix::pipe, sync::mpsc};

use super::failure::failed;

/// Pieces that wait to be read by the job; each is at most a frame.
const WAITING_PIECES: usize = 4;
/// What a terminal takes for the end of input.
const END_OF_TRANSMISSION: u8 = 4;

/// How a job's input ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A pipe that is closed.
    Pipe,
    /// A terminal, which stays open.
    Terminal,
}

/// Where a job's input goes.
pub struct Input {
    queue: RefCell<Option<mpsc::Sender<Vec<u8>>>>,
    kind: Kind,
}

impl Input {
    /// Writes to this descriptor from now on.
    pub fn new(descriptor: OwnedFd, kind: Kind) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        let mut sink = pipe::Sender::from_owned_fd_unchecked(descriptor)?;
        let (queue, mut pieces) = mpsc::channel::<Vec<u8>>(WAITING_PIECES);
        tokio::task::spawn_local(async move {
            while let Some(piece) = pieces.recv().await {
                if sink.write_all(&piece).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self { queue: RefCell::new(Some(queue)), kind })
    }

    /// Takes a piece, waiting while the job does not read.
    pub async fn send(&self, piece: Vec<u8>) -> Result<(), Failure> {
        let gone = || failed(Reason::WrongKind, "the job's input is closed: nothing more can be sent to it");
        let queue = self.queue.borrow().clone().ok_or_else(gone)?;
        queue.send(piece).await.map_err(|_| gone())
    }

    /// The job reads end of file.
    pub async fn close(&self) {
        match self.kind {
            Kind::Terminal => drop(self.send(vec![END_OF_TRANSMISSION]).await),
            Kind::Pipe => drop(self.queue.take()),
        }
    }
}

/// Gives what comes on a flow to a job, until the flow ends.
pub async fn feed(input: Option<&Input>, reader: &mut FlowReader) -> Result<(), Failure> {
    loop {
        let frame = match reader.next().await {
            Ok(Some(frame)) => frame,
            Ok(None) | Err(FrameError::Io(_)) => return Ok(()),
            Err(error) => return Err(failed(Reason::Invalid, error.to_string())),
        };
        let Some(input) = input else {
            return Err(failed(Reason::WrongKind, "the job was started without input: start it with input piped"));
        };
        match frame.kind {
            FrameKind::Data => input.send(frame.body).await?,
            FrameKind::End => input.close().await,
            other => return Err(failed(Reason::Invalid, FrameError::Unexpected(other).to_string())),
        }
    }
}
