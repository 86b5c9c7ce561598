//! Follows a job for as long as a caller is willing to wait, and no longer.

use std::time::Duration;

use rmcp::{RoleServer, service::RequestContext};
use sandbox_core::{
    JobId,
    exec::{Ending, Exit},
};
use sandbox_executor::{
    client::{Client, ClientError, Follow, JobEvent},
    protocol::Target,
};
use tokio::time::Instant;

use super::{error::ToolError, output::Transcript, progress::Progress};
use crate::sandboxes::{Following, Session, patience};

/// How long a call waits where the client shows progress.
const WITH_PROGRESS: Duration = Duration::from_secs(50);
/// How long it waits where it does not: nobody knows that client's patience.
const WITHOUT_PROGRESS: Duration = Duration::from_secs(8);
/// Kills at once; no process can ignore it.
const SIGKILL: i32 = 9;

/// How a job stands after it was followed.
pub struct Followed {
    /// How it ended and after how long, if it has.
    pub exit: Option<(Exit, Duration)>,
    /// What else is known about its end.
    pub ending: Ending,
    /// Its output.
    pub transcript: Transcript,
}

/// Where events of a job come from.
pub trait Events {
    /// The next one. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Result<JobEvent, ClientError>> + Send;

    /// What else is known about its end, once that was told.
    fn ending(&self) -> Ending;
}

impl Events for Follow {
    async fn next(&mut self) -> Result<JobEvent, ClientError> {
        Self::next(self).await
    }

    fn ending(&self) -> Ending {
        Self::ending(self)
    }
}

impl Events for Following {
    async fn next(&mut self) -> Result<JobEvent, ClientError> {
        Self::next(self).await
    }

    fn ending(&self) -> Ending {
        Self::ending(self)
    }
}

/// How long this call may wait.
pub fn patience(progress: &Progress, asked: Option<u64>, longest: Duration) -> Duration {
    let asked = asked.map(Duration::from_secs);
    if progress.is_wanted() {
        asked.unwrap_or(WITH_PROGRESS).min(longest)
    } else {
        asked.unwrap_or(WITHOUT_PROGRESS).min(WITHOUT_PROGRESS)
    }
}

/// Collects output until the job has ended, the page is full, the patience is over, the sandbox is frozen, or the call was
/// cancelled.
pub async fn follow(
    mut job: impl Events,
    mut transcript: Transcript,
    patience: Duration,
    session: &Session,
    context: &RequestContext<RoleServer>,
    mut progress: Progress,
) -> Result<Followed, ToolError> {
    let deadline = Instant::now() + patience;
    let mut frozen = std::pin::pin!(session.until_frozen());
    let exit = loop {
        if transcript.is_full() {
            break None;
        }
        tokio::select! {
            // Output comes last but for the deadline: a job that never stops printing must not silence the rest.
            biased;
            () = context.ct.cancelled() => return Err(ToolError::Cancelled),
            () = progress.due() => progress.tell(word(&transcript, progress.elapsed())),
            event = job.next() => match event? {
                JobEvent::Output { stream, offset, data } => transcript.push(stream, offset, data),
                JobEvent::Gap { to, .. } => transcript.skip_to(to),
                JobEvent::Exited { exit, elapsed } => break Some((exit, elapsed)),
                JobEvent::Current => break None,
            },
            () = tokio::time::sleep_until(deadline) => break None,
            _ = &mut frozen => break None,
        }
        if Instant::now() >= deadline {
            break None;
        }
    };
    progress.finish().await;
    Ok(Followed { exit, ending: job.ending(), transcript })
}

/// Ends everything that a job has started.
pub async fn kill(client: &Client, job: JobId) {
    if let Err(error) = patience::soon(client.signal(Target::Job(job), SIGKILL)).await {
        tracing::debug!(%error, %job, "a cancelled job could not be killed");
    }
}

fn word(transcript: &Transcript, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    match transcript.last_line() {
        Some(line) => line,
        None => format!("running for {seconds} s, no output yet"),
    }
}
