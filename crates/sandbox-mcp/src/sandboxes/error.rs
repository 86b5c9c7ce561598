//! What can go wrong with a sandbox, as a caller sees it. Every message says what to do next.

use sandbox_core::{Bytes, InvalidId, SessionId};

use super::ClientError;

/// Something that was asked of the centre did not happen.
#[derive(Debug, thiserror::Error)]
pub enum SandboxesError {
    /// The id names no sandbox of this caller. Never answered with a new one.
    #[error(
        "there is no sandbox {0}: it was cleaned up, never existed, or belongs to somebody else. \
         Create a new one, or list those that exist (get_sandbox_status; at a terminal `sandbox-mcp list`)"
    )]
    NotFound(SessionId),
    /// What was given as an id is none.
    #[error("{0}")]
    InvalidId(#[from] InvalidId),
    /// The caller has as many sandboxes as it may.
    #[error(
        "you have {count} sandboxes, under all user_id labels together, and may have {limit}. End one that is no longer needed (cleanup_session, \
         `sandbox-mcp rm SESSION`), or raise max_sandboxes_per_user"
    )]
    UserQuota {
        /// How many there are.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
    /// The machine has as many sandboxes as it may.
    #[error(
        "there are {count} sandboxes on this machine and there may be {limit}. End some (`sandbox-mcp list`, \
         `sandbox-mcp rm`), or raise max_sandboxes"
    )]
    TotalQuota {
        /// How many there are.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
    /// The machine has too little memory left.
    #[error(
        "this machine has only {available} of memory left, and {floor} must stay free. End a sandbox that is no longer \
         needed, stop other programs, or lower memory_floor"
    )]
    MemoryFloor {
        /// What is left.
        available: Bytes,
        /// What must stay.
        floor: Bytes,
    },
    /// A port that cannot be opened.
    #[error(
        "port {0} cannot be opened: ports are 1 to 65535, without 3128, 3129 and 3153, which belong to the sandbox's own \
         way out. Let the program inside listen on another one, such as 8000"
    )]
    ReservedPort(u16),
    /// As many ports are open as may be.
    #[error(
        "the sandbox has {} open ports ({}) and may have {limit}. Let the program inside listen on one of these, or use \
         another sandbox",
        open.len(),
        open.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
    )]
    TooManyPorts {
        /// Which are open.
        open: Vec<u16>,
        /// How many there may be.
        limit: usize,
    },
    /// Nothing is started in it any more.
    #[error(
        "the sandbox {id} is frozen: {why}. Nothing runs in it any more and it reaches nothing; its files can be taken \
         (get_files), and cleanup_session or `sandbox-mcp rm` ends it"
    )]
    Frozen {
        /// Which one.
        id: SessionId,
        /// What it did.
        why: String,
    },
    /// This program was opened only to look, not to make sandboxes.
    #[error("no sandbox can be made here: this command only reaches those that exist")]
    NoBackend,
    /// The backend said no.
    #[error(transparent)]
    Backend(#[from] sandbox_core::Error),
    /// The executor in the sandbox said no, or could not be reached.
    #[error(transparent)]
    Executor(#[from] ClientError),
    /// The file system said no.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// Its answer.
        source: std::io::Error,
    },
    /// The history could not be read.
    #[error("the history in {file} cannot be read: {source}. If it is damaged, move it away: a new one is started")]
    History {
        /// The database.
        file: std::path::PathBuf,
        /// Its answer.
        source: rusqlite::Error,
    },
}

impl SandboxesError {
    /// An I/O error with what was being done.
    pub(super) fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}
