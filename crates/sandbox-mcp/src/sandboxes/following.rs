//! A started command whose end goes into the journal, also when nobody follows it to the end.

use std::{sync::Arc, time::Duration};

use sandbox_core::{
    JobId,
    exec::{Ending, Exit},
};

use super::{Client, ClientError, Follow, JobEvent, Session, patience};

/// One job's output, as [`Follow`] hands it out. Dropping it does not touch the job.
pub struct Following {
    follow: Follow,
    /// Taken when the end has been recorded.
    watch: Option<Watch>,
    timeout: Allowed,
}

/// How long a command may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// So long.
    pub timeout: Duration,
    /// What was asked for, where that was more.
    pub lowered_from: Option<Duration>,
}

/// What is needed to record the end of a job.
pub(super) struct Watch {
    pub client: Client,
    pub session: Arc<Session>,
    pub job: JobId,
}

impl Following {
    pub(super) fn new(follow: Follow, watch: Watch, timeout: Allowed) -> Self {
        Self { follow, watch: Some(watch), timeout }
    }

    /// Which job.
    pub fn job(&self) -> JobId {
        self.follow.job()
    }

    /// What else is known about its end, once that was told.
    pub fn ending(&self) -> Ending {
        self.follow.ending()
    }

    /// How long it may run.
    pub fn allowed(&self) -> Allowed {
        self.timeout
    }

    /// The next event; an error after the last. Cancel-safe.
    pub async fn next(&mut self) -> Result<JobEvent, ClientError> {
        let event = self.follow.next().await?;
        if let JobEvent::Exited { exit, elapsed } = &event
            && let Some(watch) = self.watch.take()
        {
            watch.finished(*exit, *elapsed, &self.follow.ending());
        }
        Ok(event)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        if let Some(watch) = self.watch.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(watch.until_end());
        }
    }
}

impl Watch {
    fn finished(&self, exit: Exit, elapsed: Duration, ending: &Ending) {
        self.session.record_end(self.job, exit, elapsed, ending);
    }

    /// Asks now and then instead of following: the output may be gigabytes that nobody wants.
    async fn until_end(self) {
        let mut pause = Duration::from_millis(100);
        loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
            let Ok(jobs) = patience::soon(self.client.jobs()).await else { return };
            let Some(job) = jobs.into_iter().find(|job| job.id == self.job) else { return };
            if let Some(exit) = job.exit {
                return self.finished(exit, job.elapsed, &job.ending);
            }
        }
    }
}
