//! The narrow waist: what a place where sandboxes run has to offer. Everything else is said to the executor.

use std::{collections::BTreeMap, os::fd::OwnedFd, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{Bytes, Enforcement, Policy, Reference, Result, SandboxSpec, SessionId};

/// A place where sandboxes run.
#[async_trait]
pub trait Backend: Send + Sync {
    /// What this host lets us do, in words, and how each of these policies would be held.
    async fn probe(&self, policies: &[Policy]) -> Probe;

    /// Sees to it that sandboxes can start from this image: fetches it where it is not there yet, and tells how far it is.
    async fn fetch(&self, image: &Reference, progress: Progress<'_>) -> Result<()>;

    /// Makes a sandbox and waits until its executor answers.
    async fn create(&self, spec: &SandboxSpec) -> Result<Created>;

    /// Looks through what an earlier server left: what is alive is handed back, what is leaked is removed.
    async fn recover(&self) -> Result<Recovered>;
}

/// A sandbox that was made.
#[async_trait]
pub trait Sandbox: Send + Sync {
    /// What is known about it for as long as it lives.
    fn facts(&self) -> &Facts;

    /// A new connection to its executor.
    async fn connect(&self) -> Result<Channel>;

    /// What it uses now, as seen from outside.
    async fn usage(&self) -> Result<Usage>;

    /// The doors of its way out, for whoever decides what it may reach; none where it has no way out.
    async fn doors(&self) -> Result<Vec<(Door, OwnedFd)>>;

    /// Returns when it has ended, with the reason.
    async fn ended(&self) -> String;

    /// Ends it and removes everything that belongs to it. Doing so twice is fine.
    async fn destroy(&self) -> Result<()>;
}

/// Takes what is told while an image is fetched.
pub type Progress<'a> = &'a (dyn Fn(Fetching) + Send + Sync);

/// How far an image is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetching {
    /// What is being done, in words.
    pub step: String,
    /// Bytes so far.
    pub done: u64,
    /// Bytes in all, where that is known.
    pub total: Option<u64>,
}

/// A fresh sandbox.
pub type Created = Arc<dyn Sandbox>;

/// What never changes while a sandbox lives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// What was asked for.
    pub spec: SandboxSpec,
    /// Where it runs.
    pub backend: String,
    /// How each limit and wall is held.
    pub enforcement: Enforcement,
}

/// A descriptor in a sandbox's network that belongs to the host's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Door {
    /// Listens for programs that know a proxy.
    Proxy,
    /// Listens for connections to anywhere, which the kernel redirects.
    Redirected,
    /// Takes questions for names, over UDP.
    Names,
    /// Gives and takes whole packets, to and from anywhere: the outer end of a tunnel, where nothing is redirected.
    Packets,
    /// A local packet socket: each packet passes one connection that a program inside made to the proxy.
    Handed,
}

/// The two ways to talk with an executor.
pub enum Channel {
    /// A local socket (`SOCK_SEQPACKET`) over which descriptors can be passed.
    Local(OwnedFd),
    /// A plain stream of bytes.
    Stream(Box<dyn Duplex>),
}

/// A stream of bytes both ways.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// What a sandbox uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Memory of all its processes.
    pub memory: Bytes,
    /// Processor time so far.
    pub cpu: Duration,
    /// Processes and threads.
    pub pids: u32,
    /// Kept files.
    pub disk: Bytes,
}

/// What a host lets a backend do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Name of the backend.
    pub backend: String,
    /// Whether sandboxes can be made at all.
    pub usable: bool,
    /// Each thing looked at.
    pub findings: Vec<Finding>,
    /// What would become of each policy that was asked about.
    pub outlooks: Vec<Outlook>,
}

/// What would become of a sandbox with this policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outlook {
    /// The policy's name.
    pub policy: String,
    /// How its limits and walls would be held; empty where there would be no sandbox.
    pub enforcement: Enforcement,
    /// Why there would be none.
    pub refused: Option<String>,
}

/// One thing that was looked at, and what follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked at.
    pub subject: String,
    /// How good it is.
    pub grade: Grade,
    /// What was found.
    pub found: String,
    /// The exact thing to do, where something can be done.
    pub fix: Option<String>,
}

/// How good a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// As it should be.
    Good,
    /// Works, but something better is possible.
    Weak,
    /// Does not work.
    Broken,
}

/// What an earlier server left behind.
#[derive(Default)]
pub struct Recovered {
    /// Still running, now ours.
    pub alive: Vec<Arc<dyn Sandbox>>,
    /// Ended; their files are kept until idle clean-up.
    pub ended: Vec<SessionId>,
    /// What was removed, by kind ("cgroup", "folder").
    pub removed: BTreeMap<String, usize>,
}
