//! What a program finds in its home before it starts.

use super::prompt;
use crate::agent::{WorkError, Worker};

/// A file in the home of a sandbox.
pub(super) struct HomeFile {
    /// Where, inside.
    pub path: &'static str,
    /// What is in it.
    pub content: Vec<u8>,
    /// When it is written.
    pub when: When,
}

/// When a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Before each start.
    Always,
    /// Where there is none: what a program, or a person, has put there stays.
    Missing,
}

impl HomeFile {
    /// What the program is told beside the task.
    pub(super) fn prompt() -> Self {
        Self { path: prompt::FILE, content: prompt::prompt(prompt::ALONE).into_bytes(), when: When::Always }
    }
}

/// Puts the files there.
pub(super) async fn furnish(files: Vec<HomeFile>, worker: &Worker<'_>) -> Result<(), WorkError> {
    for HomeFile { path, content, when } in files {
        if when == When::Always || worker.stat(path).await.is_err() {
            worker.write(path, &content).await?;
        }
    }
    Ok(())
}
