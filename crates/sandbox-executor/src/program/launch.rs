//! A command between its process and its program. Whatever holds it up there, nothing else waits for it.

use std::{io, os::fd::OwnedFd, time::Duration};

use sandbox_executor::protocol::{Failure, Reason};
use tokio::net::unix::pipe;

use super::{
    failure::failed,
    spawn::Subject,
    sys::{self, REPORT_SIZE, Step},
};

/// Longest way from the process to its program. Other commands of the same user can stop it on that way.
const DEADLINE: Duration = Duration::from_secs(5);

/// A process that is or will become a command.
pub enum Launch {
    /// Its program runs.
    Runs,
    /// It says on this pipe why it fails; the pipe closes when its program runs, or when it was killed before.
    OnItsWay(OwnedFd, Subject),
}

impl Launch {
    /// Waits until the program runs. After a failure the process may still be there.
    pub async fn outcome(self) -> Result<(), Failure> {
        let Self::OnItsWay(report, subject) = self else { return Ok(()) };
        match tokio::time::timeout(DEADLINE, heard(report)).await {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some((step, error)))) => Err(subject.explain(step, &error)),
            Ok(Err(error)) => {
                let what = format!("`{}` was not started: its process could not be heard: {error}", subject.name);
                Err(failed(Reason::System, what))
            }
            Err(_) => Err(failed(
                Reason::System,
                format!(
                    "`{}` was not started within {} s: another command in this sandbox stopped its process, or the \
                     machine is overloaded; end what stops processes, then try again",
                    subject.name,
                    DEADLINE.as_secs()
                ),
            )),
        }
    }
}

async fn heard(report: OwnedFd) -> io::Result<Option<(Step, io::Error)>> {
    let report = pipe::Receiver::from_owned_fd_unchecked(report)?;
    let mut bytes = [0; REPORT_SIZE];
    loop {
        report.readable().await?;
        match report.try_read(&mut bytes) {
            Ok(REPORT_SIZE) => return Ok(Some(sys::read_report(bytes))),
            // Reports are written at once, so there are no parts of them.
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
