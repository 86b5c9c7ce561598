//! A task in plain words and what came of it, as every door says it. [`super::execute`] does the work.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use sandbox_core::{Denial, Image, SessionId};
use sandbox_executor::protocol::Path;
use serde::{Serialize, Serializer};

use super::{Bill, Mailbox, TaskId, UnknownAgent};
use crate::{
    config::ConfigError,
    sandboxes::{Allowed, ChangedFile, Changes, Lifetime, SandboxesError},
};

/// Longest task text.
pub(super) const MAX_TASK: usize = 256 << 10;

/// What is to be done.
pub struct TaskRequest {
    /// In plain words.
    pub task: String,
    /// What it needs, put into /workspace first.
    pub files: Vec<TaskFile>,
    /// Who works on it, by name; the operator's default, if not said.
    pub agent: Option<String>,
    /// The model to use; the operator's, if not said.
    pub model: Option<String>,
    /// What it may cost, in US dollars; never more than the operator allows.
    pub budget_usd: Option<f64>,
    /// How often the model may be asked; never more than the operator allows.
    pub max_turns: Option<u32>,
    /// In which sandbox.
    pub place: TaskPlace,
    /// How long it may take; as long as the policy allows, if not said.
    pub timeout: Option<Duration>,
    /// What is said to the agent while it works.
    pub mailbox: Mailbox,
}

impl TaskRequest {
    /// A task with nothing else said.
    pub fn new(task: impl Into<String>, place: TaskPlace) -> Self {
        Self {
            task: task.into(),
            files: Vec::new(),
            agent: None,
            model: None,
            budget_usd: None,
            max_turns: None,
            place,
            timeout: None,
            mailbox: Mailbox::default(),
        }
    }
}

/// Where a task is worked on.
#[derive(Debug)]
pub enum TaskPlace {
    /// In a new sandbox.
    New {
        /// Where it runs; where the operator wants sandboxes, if not said.
        backend: Option<String>,
        /// How much the agent may do by itself, 1 to 4; 3 if not said.
        level: Option<u8>,
        /// The operator's default if not said.
        image: Option<Image>,
        /// Whether the sandbox is kept.
        lifetime: Lifetime,
        /// Variables of its commands.
        env: BTreeMap<String, String>,
    },
    /// In a sandbox that exists.
    Existing {
        /// Which one.
        session_id: SessionId,
        /// If said, it must be the level that the sandbox was made with.
        level: Option<u8>,
    },
}

/// A file that a task needs.
#[derive(Debug)]
pub struct TaskFile {
    /// Where: beneath /workspace, or absolute in one of the sandbox's places for files.
    pub path: String,
    /// What is in it.
    pub content: Content,
    /// Its permission bits.
    pub mode: Option<u32>,
}

/// What is in a file.
#[derive(Debug)]
pub enum Content {
    /// These bytes.
    Bytes(Vec<u8>),
    /// What can be read from here; never held in memory as a whole.
    File(std::fs::File),
    /// What is in this file of the caller's own, opened when it is its turn.
    Path(PathBuf),
}

/// How the work on a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum TaskStatus {
    Completed,
    Failed,
    Timeout,
    Cancelled,
    /// The program that worked on it was killed.
    Interrupted,
    Running,
}

impl TaskStatus {
    /// As callers read it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
            Self::Running => "running",
        }
    }
}

/// What came of a task.
#[derive(Debug, Serialize)]
pub struct TaskResult {
    /// Its name, for `task show`.
    pub task_id: TaskId,
    /// Who worked on it.
    pub agent: String,
    /// Why it was this agent.
    pub agent_why: String,
    /// Where the files are.
    pub session_id: SessionId,
    /// How it ended.
    pub status: TaskStatus,
    /// What the agent says.
    pub output: String,
    /// What happened to files in /workspace.
    #[serde(flatten, serialize_with = "changes")]
    pub changes: Changes,
    /// Why that is not known, where nobody could look.
    #[serde(skip)]
    pub unlisted: Option<String>,
    /// Measured.
    pub duration_seconds: f64,
    /// What went wrong.
    pub error: Option<String>,
    /// What the policy refused.
    pub denials: Vec<Denial>,
    /// What it cost.
    pub cost: Bill,
    /// How each limit and wall was held: by the kernel, supervised, or by nobody.
    pub enforced: BTreeMap<String, String>,
    /// What it was given less of than was asked for, and why.
    pub lowered: Vec<String>,
    /// The page that tells all about it.
    pub receipt: Option<PathBuf>,
    /// How long it was allowed to take.
    #[serde(skip)]
    pub allowed: Allowed,
}

/// The task could not even begin.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum TaskError {
    #[error("the task is empty: say in plain words what is to be done")]
    Empty,
    #[error(
        "the task has {0} bytes, at most {MAX_TASK} are allowed: put long material into a file and name it in the task"
    )]
    TooLong(usize),
    #[error("there is no level {0}: use 1 (no network) to 4 (root inside, may change everything); the default is 3")]
    NoSuchLevel(u8),
    #[error(
        "the sandbox {session_id} was made with the policy {policy}, not with level {level}: leave the level out, or use a new sandbox"
    )]
    OtherLevel { session_id: SessionId, policy: String, level: u8 },
    #[error("no random name could be made for the task: {0}")]
    NoName(String),
    #[error(
        "tasks have a budget in dollars, and nobody knows what {model} costs: say it in the settings, `[prices.\"{model}\"]` with \
         input and output, or leave model and budget out"
    )]
    NoPrice { model: String },
    #[error("the file {path} could not be put into the sandbox: {why}")]
    File { path: String, why: String },
    #[error(
        "the task {0} still goes on in this sandbox, and two agents would work on the same files. Wait for its end, or stop it: \
         `sandbox-mcp task show {0}` says how it stands, `sandbox-mcp task stop {0}` stops it"
    )]
    GoesOn(TaskId),
    #[error(
        "another task is about to begin in the sandbox {0}, and two agents would work on the same files. Wait for its end: \
         `sandbox-mcp task list` says how it stands"
    )]
    Begins(SessionId),
    #[error("the sandbox {session} cannot be kept to one task at a time: {why}")]
    Claim { session: SessionId, why: std::io::Error },
    #[error(transparent)]
    Agent(#[from] UnknownAgent),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Sandbox(#[from] SandboxesError),
}

/// Names that are not text are shown as near as can be.
fn changes<S: Serializer>(changes: &Changes, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Named {
        path: String,
        size_bytes: u64,
    }
    #[derive(Serialize)]
    struct Shown {
        files_created: Vec<Named>,
        files_changed: Vec<Named>,
        files_deleted: Vec<String>,
        files_truncated: bool,
    }
    let text = |path: &Path| String::from_utf8_lossy(&path.0).into_owned();
    let named = |files: &[ChangedFile]| {
        files.iter().map(|file| Named { path: text(&file.path), size_bytes: file.size }).collect()
    };
    Shown {
        files_created: named(&changes.created),
        files_changed: named(&changes.changed),
        files_deleted: changes.deleted.iter().map(text).collect(),
        files_truncated: changes.truncated,
    }
    .serialize(serializer)
}
