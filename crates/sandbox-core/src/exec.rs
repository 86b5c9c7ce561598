//! What can be started in a sandbox, and how it can end.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{Bytes, Control, JobId};

/// A command to be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// What to run.
    pub program: Program,
    /// Variables on top of the sandbox's own.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Where to start; the sandbox's workspace if not said.
    #[serde(default)]
    pub cwd: Option<String>,
    /// A terminal of this size instead of pipes.
    #[serde(default)]
    pub terminal: Option<TerminalSize>,
    /// Whether input will be sent; otherwise the command reads end of file at once.
    #[serde(default)]
    pub stdin: Stdin,
    /// Stop it after this long.
    #[serde(default)]
    pub timeout: Option<Duration>,
    /// Limits for this command alone, on top of the sandbox's.
    #[serde(default)]
    pub limits: ExecLimits,
}

impl Exec {
    /// A shell command with everything else as usual.
    pub fn shell(script: impl Into<String>) -> Self {
        Self::new(Program::Shell(script.into()))
    }

    /// A program with its arguments, no shell between.
    pub fn argv<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self::new(Program::Argv(argv.into_iter().map(Into::into).collect()))
    }

    fn new(program: Program) -> Self {
        Self {
            program,
            env: BTreeMap::new(),
            cwd: None,
            terminal: None,
            stdin: Stdin::Empty,
            timeout: None,
            limits: ExecLimits::default(),
        }
    }
}

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// A script for the sandbox's `sh`.
    Shell(String),
    /// A program and its arguments.
    Argv(Vec<String>),
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shell(script) => f.write_str(script),
            Self::Argv(argv) => f.write_str(&argv.join(" ")),
        }
    }
}

/// What a command reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// End of file.
    #[default]
    Empty,
    /// What is sent to it.
    Piped,
}

/// Rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

/// Limits for one command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecLimits {
    /// Largest file that it may write, in bytes.
    #[serde(default)]
    pub file_size: Option<u64>,
    /// Open files.
    #[serde(default)]
    pub open_files: Option<u64>,
    /// Processor seconds of each process.
    #[serde(default)]
    pub cpu_seconds: Option<u64>,
}

/// Which of a command's outputs. A terminal has only the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Stream {
    Stdout,
    Stderr,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It returned this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// A limit of the sandbox ended it.
    Limit(Control),
}

/// More about a command's end than [`Exit`] says, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// What the sandbox used of the thing whose limit ended the command, when it was seen to be over.
    #[serde(default)]
    pub used: Option<Bytes>,
    /// Why the sandbox's files ended it, where it was not their size.
    #[serde(default)]
    pub disk: Option<DiskTrouble>,
    /// Processes that could not be started while it ran, because there were as many as may be.
    #[serde(default)]
    pub refused_processes: u64,
    /// The time that it had, where that ended it.
    #[serde(default)]
    pub time: Option<Duration>,
}

/// Why a sandbox has to stop because of its files although they are not too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskTrouble {
    /// Folders are nested too deep to be measured.
    TooDeep,
    /// More files are open or mapped than can be looked at.
    TooManyOpen,
    /// Something in them could not be read.
    Unreadable,
    /// The machine's disk is nearly full, and this sandbox holds the most of it.
    DiskFull,
}

/// One job as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its id in this sandbox.
    pub id: JobId,
    /// What was started, shortened.
    pub command: String,
    /// How it ended, if it has.
    pub exit: Option<Exit>,
    /// How long it has run, or ran.
    pub elapsed: Duration,
    /// Offset of the oldest output that is still kept.
    pub first_offset: u64,
    /// Offset after the newest output.
    pub next_offset: u64,
}
