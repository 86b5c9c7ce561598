//! Commands that an agent runs. Each is admitted by the policy first, and killed with the worker.

use std::time::Duration;

use sandbox_core::{
    Denial, JobId,
    exec::{Exec, Exit, Stream},
};
use sandbox_executor::protocol::Target;

use super::{Note, WorkError, Worker};
use crate::sandboxes::{Following, InputEnd, JobEvent, SandboxesError, access::Refused, patience};

/// A command that was started and is followed.
pub struct Command<'w> {
    worker: &'w Worker<'w>,
    following: Following,
}

/// What a command does next.
#[derive(Debug)]
pub enum Progress {
    /// It printed something.
    Output {
        /// Where to.
        stream: Stream,
        /// What.
        data: Vec<u8>,
    },
    /// It has ended.
    Ended {
        /// How.
        exit: Exit,
        /// After how long.
        elapsed: Duration,
        /// What was refused to it.
        denials: Vec<Denial>,
    },
}

/// A command that ran to its end.
#[derive(Debug)]
pub struct Ran {
    /// How it ended.
    pub exit: Exit,
    /// After how long.
    pub elapsed: Duration,
    /// What it printed, the middle left out where that is too much.
    pub output: String,
    /// What was refused to it.
    pub denials: Vec<Denial>,
}

impl<'a> Worker<'a> {
    /// Starts a command. It is killed when the worker is dropped, unless it was left to itself.
    pub async fn start(&self, exec: Exec) -> Result<Command<'_>, WorkError> {
        let admitted = match self.session.admit(exec, self.person).await {
            Err(Refused::Denied(denials)) => {
                denials.iter().for_each(|denial| self.denied(denial.clone()));
                return Err(Refused::Denied(denials).into());
            }
            admitted => admitted?,
        };
        let following = self.session.start(admitted).await?;
        self.running().push(following.job());
        Ok(Command { worker: self, following })
    }

    /// Runs a command to its end and keeps so many bytes of what it printed; whoever watches sees all of it.
    pub async fn run_keeping(&self, exec: Exec, most: usize) -> Result<Ran, WorkError> {
        let mut command = self.start(exec).await?;
        let mut kept = Kept::of(most);
        loop {
            match command.next().await? {
                Progress::Output { stream, data } => {
                    kept.push(&data);
                    self.note(Note::Output { stream, data }).await;
                }
                Progress::Ended { exit, elapsed, denials } => {
                    return Ok(Ran { exit, elapsed, output: kept.text(), denials });
                }
            }
        }
    }
}

impl Command<'_> {
    /// Which job.
    pub fn job(&self) -> JobId {
        self.following.job()
    }

    /// What it does next. An error if the sandbox was frozen: it would never end by itself.
    pub async fn next(&mut self) -> Result<Progress, WorkError> {
        let Self { worker, following } = self;
        loop {
            let event = tokio::select! {
                event = following.next() => event?,
                why = worker.session.until_frozen() => {
                    return Err(SandboxesError::Frozen { id: worker.session.id().clone(), why }.into());
                }
            };
            match event {
                JobEvent::Output { stream, data, .. } => return Ok(Progress::Output { stream, data }),
                JobEvent::Exited { exit, elapsed } => {
                    let job = following.job();
                    worker.running().retain(|running| *running != job);
                    let mut denials = worker.session.take_refused(exit).await;
                    if let Exit::Limit(control) = exit {
                        denials.push(worker.session.ended_by(control, elapsed, &following.ending()));
                    }
                    denials.iter().for_each(|denial| worker.denied(denial.clone()));
                    return Ok(Progress::Ended { exit, elapsed, denials });
                }
                JobEvent::Gap { .. } | JobEvent::Current => {}
            }
        }
    }

    /// Sends it input, and with [`InputEnd::Close`] nothing after that.
    pub async fn input(&self, data: &[u8], end: InputEnd) -> Result<(), WorkError> {
        let client = self.worker.session.client().await?;
        Ok(patience::in_time(client.input(self.job(), data, end)).await?)
    }

    /// Signals all its processes.
    pub async fn signal(&self, signal: i32) -> Result<(), WorkError> {
        let client = self.worker.session.client().await?;
        Ok(patience::soon(client.signal(Target::Job(self.job()), signal)).await?)
    }

    /// Lets it go on by itself, for as long as the sandbox lives.
    pub fn leave(self) -> JobId {
        let job = self.job();
        self.worker.running().retain(|running| *running != job);
        job
    }
}

/// The beginning and the end of an output.
struct Kept {
    first: Vec<u8>,
    last: std::collections::VecDeque<u8>,
    left_out: u64,
    most: usize,
}

impl Kept {
    fn of(most: usize) -> Self {
        Self { first: Vec::new(), last: Default::default(), left_out: 0, most }
    }

    fn push(&mut self, data: &[u8]) {
        let half = self.most / 2;
        let (begins, rest) = data.split_at(data.len().min(half.saturating_sub(self.first.len())));
        self.first.extend_from_slice(begins);
        self.last.extend(rest);
        let over = self.last.len().saturating_sub(half);
        self.last.drain(..over);
        self.left_out += over as u64;
    }

    fn text(mut self) -> String {
        if self.left_out > 0 {
            let said = format!("\n[… {} bytes left out …]\n", self.left_out);
            self.first.extend_from_slice(said.as_bytes());
        }
        self.first.extend(self.last);
        String::from_utf8_lossy(&self.first).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_output_the_beginning_and_the_end_are_kept() {
        let mut kept = Kept::of(10);
        b"0123456789abcdef".chunks(3).for_each(|piece| kept.push(piece));
        assert_eq!(kept.text(), "01234\n[… 6 bytes left out …]\nbcdef");
        let mut short = Kept::of(100);
        short.push(b"all of it");
        assert_eq!(short.text(), "all of it");
    }
}
