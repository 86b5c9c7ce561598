//! The whole boundary between a server and the executor in a sandbox. Both sides read this file and nothing else.
//!
//! A connection can do one thing: open flows. A flow is a stream of bytes both ways, made of frames; its first frame
//! is one [`Request`]. Two carriers bring the same flows: descriptors over a local socket, and a multiplexed stream
//! (see [`crate::carrier`]). The first message on a connection, each way, is a [`Hello`].
//!
//! Messages are MessagePack maps with named fields, so a newer side may add a field without losing an older one.

use std::time::Duration;

use sandbox_core::{
    JobId,
    exec::{Ending, Exec, Exit, Job, TerminalSize},
};
use serde::{Deserialize, Serialize};

/// The version that this program speaks. What each added: 2 [`Request::Connect`].
pub const VERSION: u16 = 2;
/// The oldest version that it still understands: persistent sandboxes outlive upgrades.
pub const OLDEST_VERSION: u16 = 1;
/// The first version that knows [`Request::Connect`]. An older executor would answer that it does not understand it.
pub const CONNECTS_SINCE: u16 = 2;

/// A frame is a kind, a length (4 bytes, big endian) and so many bytes.
pub const FRAME_HEADER: usize = 5;
/// No frame is longer, whoever sends it.
pub const MAX_FRAME: usize = 1 << 20;
/// Bulk data is cut into frames of this size.
pub const DATA_FRAME: usize = 256 << 10;
/// What a connection to a port carries is cut smaller: many are open at once, and each holds about one frame.
pub const PORT_FRAME: usize = 64 << 10;

/// Ports inside that belong to the sandbox's way out. Whoever listens there is on the host's side, so nobody is
/// connected to them from outside: that would be a way from this machine through the sandbox's rules and secrets.
pub const WAY_OUT_PORTS: [u16; 3] = [3128, 3129, 3153];

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// A [`Request`] from the opener, or a [`Reply`] to it.
    Message = 0,
    /// Bytes that a job wrote to standard output.
    Stdout = 1,
    /// Bytes that a job wrote to standard error.
    Stderr = 2,
    /// Content of a file, input for a job, or what a connection carries.
    Data = 3,
    /// A hole in a file: its length as 8 bytes, big endian.
    Hole = 4,
    /// The file, the input, or one direction of a connection ends here.
    End = 5,
}

impl FrameKind {
    /// The kind with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Message, Self::Stdout, Self::Stderr, Self::Data, Self::Hole, Self::End].get(usize::from(number)).copied()
    }
}

/// The first message on a connection, each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The newest version that the sender speaks.
    pub version: u16,
    /// The oldest one.
    pub oldest: u16,
}

impl Hello {
    /// What this program says.
    pub const OURS: Self = Self { version: VERSION, oldest: OLDEST_VERSION };

    /// The version that both speak.
    pub fn agree(self, other: Self) -> Option<u16> {
        let version = self.version.min(other.version);
        (version >= self.oldest && version >= other.oldest).then_some(version)
    }
}

/// A path inside the sandbox. Names are bytes: not every one is text.
///
/// Relative ones start at the workspace. Absolute ones must lie in one of the sandbox's places for files.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Path(#[serde(with = "serde_bytes")] pub Vec<u8>);

impl<T: AsRef<[u8]> + ?Sized> From<&T> for Path {
    fn from(path: &T) -> Self {
        Self(path.as_ref().to_vec())
    }
}

/// Everything that can be asked of an executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Starts a job. Answer: [`Reply::Started`], then what [`Output`] says, then [`Reply::Exited`].
    ///
    /// While the flow is open, `Data` frames sent on it are the job's input and `End` closes that input.
    Spawn {
        /// What to start.
        exec: Exec,
        /// Where its output goes.
        output: Output,
    },
    /// A job's output from an offset on: [`Reply::Attached`], output frames, and [`Reply::Exited`] once it has ended
    /// and all was sent. Without `follow` the flow ends with [`Reply::Done`] where the output ends now.
    Attach {
        /// Which job.
        job: JobId,
        /// From where; what is no longer kept is skipped with [`Reply::Gap`].
        offset: u64,
        /// Whether to wait for more.
        follow: bool,
    },
    /// Input for a job from another flow: `Data` frames, then `End` to close it, or just the flow's end.
    Input {
        /// Which job.
        job: JobId,
    },
    /// A new size for a job's terminal. Answer: [`Reply::Done`].
    Resize {
        /// Which job.
        job: JobId,
        /// The new size.
        size: TerminalSize,
    },
    /// A signal for whole process trees. Answer: [`Reply::Done`] when it was sent.
    Signal {
        /// Which processes.
        target: Target,
        /// The signal's number.
        signal: i32,
    },
    /// All jobs. Answer: [`Reply::Jobs`].
    Jobs,
    /// Drops what is kept of a job that has ended. Answer: [`Reply::Done`].
    Forget {
        /// Which job.
        job: JobId,
    },
    /// Content of a regular file: [`Reply::File`], `Data` and `Hole` frames, `End`.
    Read {
        /// Which file.
        path: Path,
        /// Where to start.
        offset: u64,
        /// How much; to the end if not said.
        length: Option<u64>,
    },
    /// Writes files, one after the other. For each: the opener sends one message, a [`NewFile`], then `Data` and
    /// `Hole` frames, then `End`; then comes [`Reply::Done`] or [`Reply::Failed`] for that file. The flow's end ends it.
    /// A file appears under its name only when it is whole.
    Write,
    /// What is in a folder: [`Reply::Entries`] as often as needed, then [`Reply::Done`].
    List {
        /// Which folder.
        path: Path,
        /// How deep: 1 is the folder itself.
        depth: u32,
        /// At most so many entries; [`Reply::Truncated`] comes before [`Reply::Done`] if there are more.
        limit: u32,
    },
    /// One file or folder, links not followed: [`Reply::File`].
    Stat {
        /// Which one.
        path: Path,
    },
    /// Removes a file, or a folder with all in it. Answer: [`Reply::Done`].
    Remove {
        /// Which one.
        path: Path,
    },
    /// Renames within one place. Answer: [`Reply::Done`].
    Rename {
        /// The old name.
        from: Path,
        /// The new name.
        to: Path,
    },
    /// Makes a folder and those above it. Answer: [`Reply::Done`], also if it is there.
    MakeFolder {
        /// Which one.
        path: Path,
    },
    /// A connection to a TCP port of the sandbox's own loopback. Answer: [`Reply::Done`] when it stands;
    /// [`Reason::NotFound`] where nobody listens, [`Reason::Denied`] for [`WAY_OUT_PORTS`].
    ///
    /// Then both sides send `Data` frames of at most [`PORT_FRAME`] bytes, none empty, and one `End` when nothing more
    /// comes from them; the other direction stays open. The flow stays open until both have said `End`: where it ends
    /// earlier the connection broke, or its opener does not want it any more.
    Connect {
        /// Which port.
        port: u16,
    },
    /// What runs inside, as the executor sees it. Answer: [`Reply::Usage`].
    Usage,
    /// Ends every process and then the executor. Answer: [`Reply::Done`] before it does.
    Shutdown,
}

/// Where a job's output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output {
    /// Kept with a bounded history that can be read by offset, and sent on this flow as it comes. The job outlives
    /// the flow.
    Kept,
    /// Sent on this flow only, as fast as the other side takes it; nothing is lost and nothing is kept. The job's
    /// processes get SIGHUP, then SIGKILL, when the flow ends.
    Attached,
    /// Three descriptors came with the request and are the job's own. Local carrier only; otherwise as `Attached`.
    Handed,
}

/// Which processes a signal is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// All that a job started, also what left its process group or session.
    Job(JobId),
    /// Everything but the executor.
    All,
}

/// A file to be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewFile {
    /// Where. Folders above it are made.
    pub path: Path,
    /// Its permission bits (at most 0o777); 0o644 if not said.
    pub mode: Option<u32>,
}

/// What an executor answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// It was done.
    Done,
    /// It could not be done; the flow ends, except in [`Request::Write`].
    Failed(Failure),
    /// A job was started.
    Started {
        /// Its id.
        job: JobId,
    },
    /// Output follows from this offset.
    Attached {
        /// The offset of the next output frame's first byte.
        offset: u64,
    },
    /// Output up to this offset is no longer kept; the next frame starts there.
    Gap {
        /// The offset of the next output frame's first byte.
        offset: u64,
    },
    /// The job has ended and all its output was sent.
    Exited {
        /// How.
        exit: Exit,
        /// How long it ran.
        elapsed: Duration,
        /// What else is known about its end.
        #[serde(default)]
        ending: Ending,
    },
    /// All jobs.
    Jobs(Vec<Job>),
    /// A file or folder.
    File(FileInfo),
    /// Some of what is in a folder.
    Entries(Vec<FileInfo>),
    /// There is more than was asked for.
    Truncated,
    /// What runs inside.
    Usage {
        /// Processes, the executor left out.
        processes: u32,
        /// Jobs that have not ended.
        running_jobs: u32,
        /// Bytes of files that the sandbox keeps, where the executor measures them itself.
        #[serde(default)]
        kept: Option<u64>,
    },
}

/// A file or folder as the executor saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// Its absolute path, or in a listing the path beneath the listed folder.
    pub path: Path,
    /// What it is.
    pub kind: FileKind,
    /// Length in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Time of the last change of its content, in nanoseconds since 1970.
    pub modified: i64,
    /// Time of the last change of anything about it: a program cannot set it back.
    pub changed: i64,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum FileKind {
    File,
    Folder,
    Link,
    Other,
}

/// Why something could not be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{what}")]
pub struct Failure {
    /// The kind of reason.
    pub reason: Reason,
    /// In words, with the path or program that it is about.
    pub what: String,
}

/// Kinds of reasons, for programs to act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// No such file, folder, program or job; nobody who listens.
    NotFound,
    /// The sandbox's user may not.
    Denied,
    /// A path that leads outside the places for files: `..`, a link that points out, another root.
    OutsidePlaces,
    /// Not a regular file, not a folder, or otherwise the wrong kind of thing.
    WrongKind,
    /// The disk or the limit of a place is full.
    Full,
    /// Too many processes, files or jobs.
    TooMany,
    /// The request makes no sense.
    Invalid,
    /// Anything else that the system said.
    System,
}
