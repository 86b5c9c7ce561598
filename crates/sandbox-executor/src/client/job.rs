//! A started job as its flow shows it: its output, its input, its end.

use std::time::Duration;

use sandbox_core::{
    JobId,
    exec::{Ending, Exit, Stream, TerminalSize},
};

use super::{Client, ClientError, unexpected};
use crate::{
    carrier::{Flow, FlowReader, FlowWriter},
    protocol::{DATA_FRAME, FrameKind, Reply},
};

/// Something that happened to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEvent {
    /// It wrote something.
    Output {
        /// Where to.
        stream: Stream,
        /// The offset of the first byte, counted over both streams.
        offset: u64,
        /// What.
        data: Vec<u8>,
    },
    /// This part of its output is no longer kept.
    Gap {
        /// The first lost byte.
        from: u64,
        /// The first byte that is kept.
        to: u64,
    },
    /// It has ended and all its output was handed out.
    Exited {
        /// How.
        exit: Exit,
        /// How long it ran.
        elapsed: Duration,
    },
    /// All output up to now was handed out, and the job goes on. Only with [`super::Until::Now`].
    Current,
}

/// One job's output. Dropping it does not touch the job.
pub struct Follow {
    events: Events,
    /// Held because a flow that is closed one way looks closed to the other side.
    _writer: FlowWriter,
}

impl Follow {
    pub(super) fn new(client: Client, job: JobId, flow: Flow, offset: u64) -> Self {
        Self { events: Events::new(client, job, flow.reader, offset), _writer: flow.writer }
    }

    /// Which job.
    pub fn job(&self) -> JobId {
        self.events.job
    }

    /// What else is known about its end, once that was told.
    pub fn ending(&self) -> Ending {
        self.events.ending
    }

    /// The next event; [`ClientError::Closed`] after the last. Cancel-safe.
    pub async fn next(&mut self) -> Result<JobEvent, ClientError> {
        self.events.next().await
    }
}

/// A job whose output goes only here. Dropping it ends the job.
pub struct Attached {
    events: Events,
    input: JobInput,
}

impl Attached {
    pub(super) fn new(client: Client, job: JobId, flow: Flow) -> Self {
        let input = JobInput { client: client.clone(), job, writer: flow.writer };
        Self { events: Events::new(client, job, flow.reader, 0), input }
    }

    /// Which job.
    pub fn job(&self) -> JobId {
        self.events.job
    }

    /// What else is known about its end, once that was told.
    pub fn ending(&self) -> Ending {
        self.events.ending
    }

    /// The next event. Cancel-safe.
    pub async fn next(&mut self) -> Result<JobEvent, ClientError> {
        self.events.next().await
    }

    /// Sends input.
    pub async fn input(&mut self, data: &[u8]) -> Result<(), ClientError> {
        self.input.send(data).await
    }

    /// Closes the input.
    pub async fn close_input(&mut self) -> Result<(), ClientError> {
        self.input.close().await
    }

    /// Gives the terminal a new size.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), ClientError> {
        self.input.resize(size).await
    }

    /// Output and input apart, for two tasks. The job ends when either is dropped.
    pub fn split(self) -> (AttachedOutput, JobInput) {
        (AttachedOutput(self.events), self.input)
    }
}

/// The output of an attached job.
pub struct AttachedOutput(Events);

impl AttachedOutput {
    /// The next event. Cancel-safe.
    pub async fn next(&mut self) -> Result<JobEvent, ClientError> {
        self.0.next().await
    }
}

/// The input of an attached job.
pub struct JobInput {
    client: Client,
    job: JobId,
    writer: FlowWriter,
}

impl JobInput {
    /// Sends input, waiting where the job does not read.
    pub async fn send(&mut self, data: &[u8]) -> Result<(), ClientError> {
        for piece in data.chunks(DATA_FRAME) {
            self.writer.frame(FrameKind::Data, piece).await?;
        }
        Ok(())
    }

    /// The job reads end of file.
    pub async fn close(&mut self) -> Result<(), ClientError> {
        Ok(self.writer.frame(FrameKind::End, &[]).await?)
    }

    /// Gives the terminal a new size.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), ClientError> {
        self.client.resize(self.job, size).await
    }
}

/// A job that has the caller's own descriptors. Dropping it ends the job.
pub struct Handed {
    events: Events,
    _writer: FlowWriter,
}

impl Handed {
    pub(super) fn new(client: Client, job: JobId, flow: Flow) -> Self {
        Self { events: Events::new(client, job, flow.reader, 0), _writer: flow.writer }
    }

    /// Which job.
    pub fn job(&self) -> JobId {
        self.events.job
    }

    /// What else is known about its end, once that was told.
    pub fn ending(&self) -> Ending {
        self.events.ending
    }

    /// Waits for its end. Cancel-safe.
    pub async fn wait(&mut self) -> Result<(Exit, Duration), ClientError> {
        match self.events.next().await? {
            JobEvent::Exited { exit, elapsed } => Ok((exit, elapsed)),
            _ => Err(ClientError::Protocol("output of a job that has its own descriptors".to_owned())),
        }
    }
}

/// Turns frames into events and keeps count of the offset.
struct Events {
    /// A connection lives as long as anything on it.
    _client: Client,
    job: JobId,
    reader: FlowReader,
    offset: u64,
    ended: bool,
    ending: Ending,
}

impl Events {
    fn new(client: Client, job: JobId, reader: FlowReader, offset: u64) -> Self {
        Self { _client: client, job, reader, offset, ended: false, ending: Ending::default() }
    }

    async fn next(&mut self) -> Result<JobEvent, ClientError> {
        if self.ended {
            return Err(ClientError::Closed);
        }
        let event = self.read().await;
        self.ended = !matches!(event, Ok(JobEvent::Output { .. } | JobEvent::Gap { .. }));
        event
    }

    async fn read(&mut self) -> Result<JobEvent, ClientError> {
        let frame = self.reader.next().await?.ok_or(ClientError::Closed)?;
        let stream = match frame.kind {
            FrameKind::Stdout => Stream::Stdout,
            FrameKind::Stderr => Stream::Stderr,
            _ => return self.reply(frame.message()?),
        };
        let offset = self.offset;
        self.offset = offset.checked_add(frame.body.len() as u64).ok_or_else(impossible)?;
        if frame.body.is_empty() {
            Err(impossible())
        } else {
            Ok(JobEvent::Output { stream, offset, data: frame.body })
        }
    }

    fn reply(&mut self, reply: Reply) -> Result<JobEvent, ClientError> {
        match reply {
            Reply::Gap { offset } if offset > self.offset => {
                let from = std::mem::replace(&mut self.offset, offset);
                Ok(JobEvent::Gap { from, to: offset })
            }
            Reply::Exited { exit, elapsed, ending } => {
                self.ending = ending;
                Ok(JobEvent::Exited { exit, elapsed })
            }
            Reply::Done => Ok(JobEvent::Current),
            Reply::Failed(failure) => Err(ClientError::Refused(failure)),
            other => Err(unexpected(&other)),
        }
    }
}

fn impossible() -> ClientError {
    ClientError::Protocol("output of no length or at an impossible offset".to_owned())
}
