//! The server's side: everything that can be asked of an executor, as plain functions.
//!
//! What an executor answers is hostile data. Every length and count is checked, nonsense is
//! [`ClientError::Protocol`], and no answer takes more memory than its caller allowed. Waiting is the caller's to bound.

mod job;
mod port;

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

pub use job::{Attached, Follow, Handed, JobEvent, JobInput};
pub use port::PortStream;
use sandbox_core::{
    Channel, JobId,
    exec::{Exec, Job, TerminalSize},
};

use crate::{
    carrier::{CarrierError, Connection, Flow, Side},
    frame::{Frame, FrameError},
    protocol::{
        CONNECTS_SINCE, DATA_FRAME, Failure, FileInfo, FrameKind, Output, Path, Reason, Reply, Request, Target,
    },
    transfer::{FileReader, FileWriter},
};

/// Longest path in an answer.
const MAX_PATH: usize = 8 << 10;

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The executor said no.
    #[error(transparent)]
    Refused(#[from] Failure),
    /// The executor is gone: its sandbox has ended.
    #[error("the connection to the sandbox is closed: it has ended, or its executor was killed")]
    Closed,
    /// The other side broke the protocol.
    #[error("the sandbox's executor answered with nonsense ({0}); remove the sandbox and create a new one")]
    Protocol(String),
    /// What was asked is larger than any message may be.
    #[error("the request is too large: {0}. Send less at once, or put the data into a file")]
    TooLarge(String),
    /// The operating system said no.
    #[error("talking with the sandbox failed: {0}")]
    Io(#[source] io::Error),
}

impl From<FrameError> for ClientError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Io(error) => error.into(),
            other => Self::Protocol(other.to_string()),
        }
    }
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::BrokenPipe | Kind::ConnectionReset | Kind::UnexpectedEof | Kind::NotConnected | Kind::WriteZero => {
                Self::Closed
            }
            _ => Self::Io(error),
        }
    }
}

impl From<CarrierError> for ClientError {
    fn from(error: CarrierError) -> Self {
        match error {
            CarrierError::Io(error) => error.into(),
            other => Self::Protocol(other.to_string()),
        }
    }
}

/// One connection to an executor; many things can be asked on it at once.
#[derive(Clone)]
pub struct Client {
    connection: Arc<Connection>,
}

/// How long to follow a job's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Until the job has ended.
    Exit,
    /// What is there now.
    Now,
}

/// What becomes of a job's input after some was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputEnd {
    /// More may come.
    Keep,
    /// The job reads end of file.
    Close,
}

/// What is in a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// What was found, folder by folder.
    pub entries: Vec<FileInfo>,
    /// Whether there is more than was asked for.
    pub truncated: bool,
}

/// What runs inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// Processes, the executor left out.
    pub processes: u32,
    /// Jobs that have not ended.
    pub jobs: u32,
    /// Bytes of files that the sandbox keeps, where the executor measures them itself.
    pub kept: Option<u64>,
}

impl Client {
    /// Greets the executor. Must be called inside a tokio runtime with time and I/O.
    pub async fn connect(channel: Channel) -> Result<Self, ClientError> {
        let connection = Connection::establish(channel, Side::Server).await?;
        Ok(Self { connection: Arc::new(connection) })
    }

    /// Starts a job whose output is kept; it outlives this call, the connection and the server.
    pub async fn spawn(&self, exec: &Exec) -> Result<Follow, ClientError> {
        let (job, flow) = self.start(exec, Output::Kept, &[]).await?;
        Ok(Follow::new(self.clone(), job, flow, 0))
    }

    /// Starts a job whose output is all sent here, as fast as it is taken, and is not kept. It ends with the flow.
    pub async fn spawn_attached(&self, exec: &Exec) -> Result<Attached, ClientError> {
        let (job, flow) = self.start(exec, Output::Attached, &[]).await?;
        Ok(Attached::new(self.clone(), job, flow))
    }

    /// Starts a job with these standard streams. Only where descriptors can be passed.
    pub async fn spawn_handed(&self, exec: &Exec, stdio: [OwnedFd; 3]) -> Result<Handed, ClientError> {
        let (job, flow) = self.start(exec, Output::Handed, &stdio).await?;
        Ok(Handed::new(self.clone(), job, flow))
    }

    /// A job's output from an offset on.
    pub async fn attach(&self, job: JobId, offset: u64, until: Until) -> Result<Follow, ClientError> {
        let mut flow = self.open(&Request::Attach { job, offset, follow: until == Until::Exit }).await?;
        match reply(&mut flow).await? {
            Reply::Attached { offset } => Ok(Follow::new(self.clone(), job, flow, offset)),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends input to a job. Returns when the executor has taken it, which is not yet when the job has read it.
    pub async fn input(&self, job: JobId, data: &[u8], end: InputEnd) -> Result<(), ClientError> {
        let Flow { mut reader, mut writer } = self.open(&Request::Input { job }).await?;
        let send = async {
            for piece in data.chunks(DATA_FRAME) {
                writer.frame(FrameKind::Data, piece).await?;
            }
            if end == InputEnd::Close {
                writer.frame(FrameKind::End, &[]).await?;
            }
            Ok::<_, FrameError>(writer.finish().await?)
        };
        // A refusal comes while we are still sending, and says more than a broken flow.
        let sent = send.await;
        match read_reply(reader.next().await)? {
            Reply::Done => Ok(sent?),
            other => Err(unexpected(&other)),
        }
    }

    /// Gives a job's terminal a new size.
    pub async fn resize(&self, job: JobId, size: TerminalSize) -> Result<(), ClientError> {
        self.done(&Request::Resize { job, size }).await
    }

    /// Signals whole process trees.
    pub async fn signal(&self, target: Target, signal: i32) -> Result<(), ClientError> {
        self.done(&Request::Signal { target, signal }).await
    }

    /// All jobs that are still known.
    pub async fn jobs(&self) -> Result<Vec<Job>, ClientError> {
        match self.ask(&Request::Jobs).await? {
            Reply::Jobs(jobs) => Ok(jobs),
            other => Err(unexpected(&other)),
        }
    }

    /// Drops what is kept of a job that has ended.
    pub async fn forget(&self, job: JobId) -> Result<(), ClientError> {
        self.done(&Request::Forget { job }).await
    }

    /// Content of a regular file.
    pub async fn read(&self, path: &Path, offset: u64, length: Option<u64>) -> Result<FileReader, ClientError> {
        let mut flow = self.open(&Request::Read { path: path.clone(), offset, length }).await?;
        match reply(&mut flow).await? {
            Reply::File(info) => Ok(FileReader::new(self.clone(), flow, checked(info)?, length)),
            other => Err(unexpected(&other)),
        }
    }

    /// Writes files, one after the other.
    pub async fn write(&self) -> Result<FileWriter, ClientError> {
        Ok(FileWriter::new(self.clone(), self.open(&Request::Write).await?))
    }

    /// What is in a folder, at most `limit` entries.
    pub async fn list(&self, path: &Path, depth: u32, limit: u32) -> Result<Listing, ClientError> {
        let mut flow = self.open(&Request::List { path: path.clone(), depth, limit }).await?;
        let mut listing = Listing::default();
        loop {
            match reply(&mut flow).await? {
                Reply::Entries(entries) => {
                    let count = listing.entries.len() + entries.len();
                    if entries.is_empty() || count > limit as usize {
                        return Err(ClientError::Protocol("a listing with more entries than allowed".to_owned()));
                    }
                    for entry in entries {
                        listing.entries.push(checked(entry)?);
                    }
                }
                Reply::Truncated if !listing.truncated => listing.truncated = true,
                Reply::Done => return Ok(listing),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// One file or folder, links not followed.
    pub async fn stat(&self, path: &Path) -> Result<FileInfo, ClientError> {
        match self.ask(&Request::Stat { path: path.clone() }).await? {
            Reply::File(info) => checked(info),
            other => Err(unexpected(&other)),
        }
    }

    /// Removes a file, or a folder with all in it.
    pub async fn remove(&self, path: &Path) -> Result<(), ClientError> {
        self.done(&Request::Remove { path: path.clone() }).await
    }

    /// Renames within one place.
    pub async fn rename(&self, from: &Path, to: &Path) -> Result<(), ClientError> {
        self.done(&Request::Rename { from: from.clone(), to: to.clone() }).await
    }

    /// Makes a folder and those above it.
    pub async fn make_folder(&self, path: &Path) -> Result<(), ClientError> {
        self.done(&Request::MakeFolder { path: path.clone() }).await
    }

    /// A connection to a TCP port of the sandbox's own loopback.
    pub async fn connect_to_port(&self, port: u16) -> Result<PortStream, ClientError> {
        if self.connection.version() < CONNECTS_SINCE {
            let what = "the sandbox was made by an older version of this program, which cannot reach ports inside. \
                        Create a new sandbox";
            return Err(Failure { reason: Reason::Invalid, what: what.to_owned() }.into());
        }
        let mut flow = self.open(&Request::Connect { port }).await?;
        match reply(&mut flow).await? {
            Reply::Done => Ok(PortStream::new(self.clone(), flow)),
            other => Err(unexpected(&other)),
        }
    }

    /// What runs inside, as the executor sees it.
    pub async fn usage(&self) -> Result<Running, ClientError> {
        match self.ask(&Request::Usage).await? {
            Reply::Usage { processes, running_jobs, kept } => Ok(Running { processes, jobs: running_jobs, kept }),
            other => Err(unexpected(&other)),
        }
    }

    /// Ends every process and then the executor.
    pub async fn shutdown(&self) -> Result<(), ClientError> {
        self.done(&Request::Shutdown).await
    }

    /// Whether the executor is gone.
    pub fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    async fn start(&self, exec: &Exec, output: Output, stdio: &[OwnedFd]) -> Result<(JobId, Flow), ClientError> {
        let request = Request::Spawn { exec: exec.clone(), output };
        let descriptors: Vec<_> = stdio.iter().map(AsFd::as_fd).collect();
        let mut flow = self.connection.open(&request, &descriptors).await.map_err(opening)?;
        match reply(&mut flow).await? {
            Reply::Started { job } => Ok((job, flow)),
            other => Err(unexpected(&other)),
        }
    }

    async fn open(&self, request: &Request) -> Result<Flow, ClientError> {
        self.connection.open(request, &[]).await.map_err(opening)
    }

    async fn ask(&self, request: &Request) -> Result<Reply, ClientError> {
        reply(&mut self.open(request).await?).await
    }

    async fn done(&self, request: &Request) -> Result<(), ClientError> {
        match self.ask(request).await? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

/// The next message, where a refusal is an error.
pub(crate) async fn reply(flow: &mut Flow) -> Result<Reply, ClientError> {
    read_reply(flow.reader.next().await)
}

/// The message in what was read.
pub(crate) fn read_reply(frame: Result<Option<Frame>, FrameError>) -> Result<Reply, ClientError> {
    match frame?.ok_or(ClientError::Closed)?.message()? {
        Reply::Failed(failure) => Err(ClientError::Refused(failure)),
        other => Ok(other),
    }
}

/// An answer to another question.
pub(crate) fn unexpected(reply: &Reply) -> ClientError {
    let name = format!("{reply:?}");
    let name = name.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    ClientError::Protocol(format!("`{name}` where it makes no sense"))
}

fn opening(error: FrameError) -> ClientError {
    match error {
        FrameError::TooLong(_) | FrameError::Garbled(_) => ClientError::TooLarge(error.to_string()),
        other => other.into(),
    }
}

fn checked(info: FileInfo) -> Result<FileInfo, ClientError> {
    if info.path.0.len() > MAX_PATH || info.mode > 0o7777 {
        return Err(ClientError::Protocol("a file with an impossible path or mode".to_owned()));
    }
    Ok(info)
}
