//! A job's output on its way from its pipes: into the history, to followers, or straight to one flow.

use std::{cell::Cell, io, os::fd::OwnedFd, rc::Rc, time::Duration};

use sandbox_core::exec::Stream;
use sandbox_executor::{
    carrier::FlowWriter,
    frame::FrameError,
    protocol::{FRAME_HEADER, FrameKind, Reply},
};
use tokio::{net::unix::pipe, time::Instant};

use super::{Executor, jobs::Job};

/// After a job's first process has ended, what else holds its output open is waited for so long.
const GRACE: Duration = Duration::from_millis(100);
/// Output that is read at once.
const READ_SIZE: usize = 128 << 10;
/// More than a pipe can hold: what was in it when the first process ended is read before the end is told.
const PIPE_HOLDS: usize = 1 << 20;
/// Bytes of a history that are sent at once.
const FOLLOW_SIZE: usize = 128 << 10;

/// One stream of a job's output.
pub struct Source {
    stream: Stream,
    pipe: pipe::Receiver,
    open: Cell<bool>,
}

/// What reading a source gave.
enum Read {
    Some(usize),
    NothingNow,
    End,
}

impl Source {
    /// Output of this stream comes from this descriptor: a pipe, or our end of a terminal.
    pub fn new(stream: Stream, descriptor: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        Ok(Self { stream, pipe: pipe::Receiver::from_owned_fd_unchecked(descriptor)?, open: Cell::new(true) })
    }

    fn read(&self, buffer: &mut [u8]) -> Read {
        if !self.open.get() {
            return Read::End;
        }
        match self.pipe.try_read(buffer) {
            Ok(count) if count > 0 => Read::Some(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Read::NothingNow,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Read::NothingNow,
            // A terminal says EIO when its last user is gone.
            Ok(_) | Err(_) => {
                self.open.set(false);
                Read::End
            }
        }
    }

    async fn readable(&self) {
        if !self.open.get() || self.pipe.readable().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Reads one stream into the history until it ends, whoever still holds it.
pub async fn keep(executor: Rc<Executor>, job: Rc<Job>, source: Rc<Source>) {
    loop {
        match executor.with_scratch(READ_SIZE, |scratch| keep_some(&executor, &job, &source, scratch)) {
            Read::Some(_) => tokio::task::yield_now().await,
            Read::NothingNow => source.readable().await,
            Read::End => return job.touch(),
        }
    }
}

fn keep_some(executor: &Executor, job: &Job, source: &Source, scratch: &mut [u8]) -> Read {
    let read = source.read(scratch);
    if let Read::Some(count) = read {
        executor.jobs.push(job, source.stream, &scratch[..count]);
    }
    read
}

/// Tells the end of a job whose output is kept, once all that its first process wrote is in the history.
pub async fn complete(executor: Rc<Executor>, job: Rc<Job>, sources: Vec<Rc<Source>>) {
    job.ended().await;
    drain(&executor, &job, &sources);
    if sources.iter().any(|source| source.open.get()) {
        let closed = async {
            while sources.iter().any(|source| source.open.get()) {
                job.changed().await;
            }
        };
        drop(tokio::time::timeout(GRACE, closed).await);
        drain(&executor, &job, &sources);
    }
    job.complete();
}

fn drain(executor: &Executor, job: &Job, sources: &[Rc<Source>]) {
    for source in sources {
        let mut total = 0;
        while total < PIPE_HOLDS {
            match executor.with_scratch(READ_SIZE, |scratch| keep_some(executor, job, source, scratch)) {
                Read::Some(count) => total += count,
                Read::NothingNow | Read::End => break,
            }
        }
    }
}

/// How long to follow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// To the job's end.
    Exit,
    /// To where its output ends now.
    Now,
}

/// Sends a job's history from an offset on, and what is added to it.
pub async fn follow(job: &Job, mut offset: u64, until: Until, writer: &mut FlowWriter) -> Result<(), FrameError> {
    let mut buffer = Vec::new();
    loop {
        let changed = job.changed();
        let part = job.with_history(|history| {
            history.read(offset, FOLLOW_SIZE).map(|part| {
                buffer.clear();
                buffer.resize(FRAME_HEADER, 0);
                buffer.extend_from_slice(part.data.0);
                buffer.extend_from_slice(part.data.1);
                (part.stream, part.offset)
            })
        });
        match part.flatten() {
            Some((stream, start)) => {
                if start > offset {
                    writer.message(&Reply::Gap { offset: start }).await?;
                }
                writer.prepared(kind_of(stream), &mut buffer).await?;
                offset = start + (buffer.len() - FRAME_HEADER) as u64;
            }
            None => {
                if let (Some((exit, elapsed)), true) = (job.exit(), job.is_complete()) {
                    return writer.message(&Reply::Exited { exit, elapsed, ending: job.ending() }).await;
                }
                if until == Until::Now {
                    return writer.message(&Reply::Done).await;
                }
                changed.await;
            }
        }
    }
}

/// Sends all output of a job straight on, as fast as it is taken, then its end.
pub async fn forward(job: &Job, sources: &[Source], writer: &mut FlowWriter) -> Result<(), FrameError> {
    let mut buffer = vec![0; FRAME_HEADER + READ_SIZE];
    let mut deadline = None;
    let mut late = 0;
    loop {
        let changed = job.changed();
        let mut sent = 0;
        for source in sources {
            if let Read::Some(count) = source.read(&mut buffer[FRAME_HEADER..]) {
                writer.prepared(kind_of(source.stream), &mut buffer[..FRAME_HEADER + count]).await?;
                sent += count;
            }
        }
        if let Some((exit, elapsed)) = job.exit() {
            let end = *deadline.get_or_insert_with(|| Instant::now() + GRACE);
            let closed = sources.iter().all(|source| !source.open.get());
            late += if Instant::now() > end { sent } else { 0 };
            if closed || (Instant::now() > end && (sent == 0 || late > 2 * PIPE_HOLDS)) {
                return writer.message(&Reply::Exited { exit, elapsed, ending: job.ending() }).await;
            }
        }
        if sent > 0 {
            tokio::task::yield_now().await;
            continue;
        }
        let readable = |index: usize| async move {
            match sources.get(index) {
                Some(source) => source.readable().await,
                None => std::future::pending().await,
            }
        };
        let late_enough = async {
            match deadline {
                Some(end) => tokio::time::sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = readable(0) => {}
            () = readable(1) => {}
            () = late_enough => {}
            () = changed => {}
        }
    }
}

fn kind_of(stream: Stream) -> FrameKind {
    match stream {
        Stream::Stdout => FrameKind::Stdout,
        Stream::Stderr => FrameKind::Stderr,
    }
}
