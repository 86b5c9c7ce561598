//! An agent's hands: it writes files and runs commands in one sandbox, and somebody may watch.
//!
//! Dropping it kills what it started: stopping a task is dropping its future.

use std::sync::{Arc, Mutex, PoisonError};

use sandbox_core::{
    Denial, JobId, SessionId,
    exec::{Exec, Exit, Stream},
};
use sandbox_executor::protocol::{NewFile, Target};
use tokio::sync::mpsc;

use crate::sandboxes::{
    ClientError, JobEvent, SandboxesError, Session,
    access::{Person, Refused},
    patience,
    way_out::WayOut,
};

/// Refusals that a task's answer names.
const KEPT_DENIALS: usize = 50;

/// Something to show while the work goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The work happens in this sandbox.
    Sandbox(SessionId),
    /// What is being done.
    Step(String),
    /// What a command printed.
    Output {
        /// Where to.
        stream: Stream,
        /// What.
        data: Vec<u8>,
    },
}

/// Why an agent could not finish.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The sandbox did not do what was asked.
    #[error(transparent)]
    Sandbox(#[from] SandboxesError),
    /// The policy did not let a command run.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A command that had to work did not.
    #[error("the command `{command}` failed: {exit:?}")]
    Command {
        /// What was run.
        command: String,
        /// How it ended.
        exit: Exit,
    },
}

impl From<ClientError> for WorkError {
    fn from(error: ClientError) -> Self {
        Self::Sandbox(error.into())
    }
}

/// Works in one sandbox.
pub(super) struct Worker<'a> {
    session: Arc<Session>,
    notes: Option<&'a mpsc::Sender<Note>>,
    person: &'a dyn Person,
    denials: Mutex<Vec<Denial>>,
    /// Started and not seen to end.
    running: Mutex<Vec<JobId>>,
}

impl<'a> Worker<'a> {
    pub fn new(session: Arc<Session>, notes: Option<&'a mpsc::Sender<Note>>, person: &'a dyn Person) -> Self {
        Self { session, notes, person, denials: Mutex::default(), running: Mutex::default() }
    }

    /// What was refused so far.
    pub fn denials(&self) -> Vec<Denial> {
        self.denials.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells whoever watches what is being done.
    pub async fn say(&self, step: &str) {
        self.note(Note::Step(step.to_owned())).await;
    }

    /// Tells whoever watches. A watcher that has gone away is not missed.
    pub async fn note(&self, note: Note) {
        if let Some(notes) = self.notes {
            let _ = notes.send(note).await;
        }
    }

    /// Writes a file.
    pub async fn write(&self, path: &str, content: &[u8]) -> Result<(), WorkError> {
        let mut writer = self.session.client().await?.write().await?;
        writer.begin(&NewFile { path: path.into(), mode: None }).await?;
        writer.data(content).await?;
        Ok(writer.finish().await?)
    }

    /// Runs a command to its end; whoever watches sees its output.
    pub async fn run(&self, exec: Exec) -> Result<Exit, WorkError> {
        let admitted = match self.session.admit(exec, self.person).await {
            Err(Refused::Denied(denials)) => {
                denials.iter().for_each(|denial| self.denied(denial.clone()));
                return Err(Refused::Denied(denials).into());
            }
            admitted => admitted?,
        };
        let mut following = self.session.start(admitted).await?;
        let job = following.job();
        self.running().push(job);
        let mut frozen = std::pin::pin!(self.session.until_frozen());
        loop {
            let event = tokio::select! {
                event = following.next() => event?,
                // It will never end by itself.
                why = &mut frozen => {
                    return Err(SandboxesError::Frozen { id: self.session.id().clone(), why }.into());
                }
            };
            match event {
                JobEvent::Output { stream, data, .. } => self.note(Note::Output { stream, data }).await,
                JobEvent::Exited { exit, elapsed } => {
                    self.running().retain(|running| *running != job);
                    let refused = self.session.way_out().map(WayOut::take_refused).unwrap_or_default();
                    refused.into_iter().for_each(|denial| self.denied(denial));
                    if let Exit::Limit(control) = exit {
                        self.denied(self.session.ended_by(control, elapsed, &following.ending()));
                    }
                    return Ok(exit);
                }
                JobEvent::Gap { .. } | JobEvent::Current => {}
            }
        }
    }

    /// The newest are kept.
    fn denied(&self, denial: Denial) {
        let mut denials = self.denials.lock().unwrap_or_else(PoisonError::into_inner);
        if denials.len() == KEPT_DENIALS {
            denials.remove(0);
        }
        denials.push(denial);
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Vec<JobId>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        let left = std::mem::take(&mut *self.running());
        if left.is_empty() {
            return;
        }
        let session = self.session.clone();
        let kill = async move {
            let Ok(client) = session.client().await else { return };
            for job in left {
                if let Err(error) = patience::soon(client.signal(Target::Job(job), 9)).await {
                    tracing::debug!("{job} of {} could not be killed: {error}", session.id());
                }
            }
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(kill);
        }
    }
}
