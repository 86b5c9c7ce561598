//! The line to one executor, whichever way it goes.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bollard::Docker;
use sandbox_core::{Channel, Door, Duplex};

use crate::{
    meeting::{self, Guests, Host, Meeting},
    record::{self, Record},
    streams,
};

/// Tries to reach whoever listens, while that changes hands.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// Who is asked for an engine, where one is needed.
#[async_trait]
pub trait Asked: Send + Sync {
    /// The engine.
    async fn docker(&self) -> io::Result<&Docker>;
}

/// How an executor is reached.
pub enum Line {
    /// It dials us.
    Socket(Meetings),
    /// Through its engine.
    Streams(streams::Line),
}

/// The meetings of one executor: ours, or those of another process of this user.
pub struct Meetings {
    folder: PathBuf,
    pid: i32,
    guests: Guests,
    host: Mutex<Option<Arc<Host>>>,
}

impl Line {
    /// To an executor that others started.
    pub fn to(folder: &Path, record: &Record) -> Self {
        match &record.line {
            record::Line::Socket { pid, our_user } => {
                let guests = if *our_user { Guests::OurUser } else { Guests::Anybody };
                Self::Socket(Meetings { folder: folder.to_owned(), pid: *pid, guests, host: Mutex::default() })
            }
            record::Line::Streams { token } => {
                Self::Streams(streams::Line::new(record.container.clone(), token.clone(), None))
            }
        }
    }

    /// With whom it met already.
    pub fn with_host(self, host: Host) -> Self {
        if let Self::Socket(meetings) = &self {
            *meetings.host.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(host));
        }
        self
    }

    /// With its own streams.
    pub fn with_stream(self, record: &Record, stream: Box<dyn Duplex>) -> Self {
        match &record.line {
            record::Line::Streams { token } => {
                Self::Streams(streams::Line::new(record.container.clone(), token.clone(), Some(stream)))
            }
            record::Line::Socket { .. } => self,
        }
    }

    /// A new connection.
    pub async fn connect(&self, asked: &dyn Asked) -> io::Result<Channel> {
        match self {
            Self::Socket(meetings) => meetings.connect().await.map(Channel::Local),
            Self::Streams(line) => {
                let docker = asked.docker().await?;
                let stream = line.connect(docker).await.map_err(|error| io::Error::other(error.to_string()))?;
                Ok(Channel::Stream(stream))
            }
        }
    }

    /// The doors that the executor made.
    pub async fn doors(&self, asked: &dyn Asked) -> io::Result<Vec<(Door, OwnedFd)>> {
        match self {
            Self::Socket(meetings) => Ok(vec![(Door::Proxy, meetings.door().await?)]),
            Self::Streams(line) => crate::outward::door(line, asked.docker().await?).await,
        }
    }

    /// Nobody comes here any more.
    pub fn hang_up(&self) {
        if let Self::Socket(meetings) = self {
            meetings.host.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }
}

impl Meetings {
    async fn connect(&self) -> io::Result<OwnedFd> {
        for _ in 0..TRIES {
            if let Some(host) = self.ours()? {
                return host.connect().await;
            }
            if let Some(connection) = meeting::ask(&self.folder)? {
                return Ok(connection);
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    async fn door(&self) -> io::Result<OwnedFd> {
        for _ in 0..TRIES {
            if let Some(host) = self.ours()? {
                return host.door().await;
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(io::Error::new(io::ErrorKind::WouldBlock, "another process of this user has it"))
    }

    /// We listen, if nobody else does.
    fn ours(&self) -> io::Result<Option<Arc<Host>>> {
        let mut host = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        if host.is_none() {
            *host = Meeting::open(&self.folder, self.guests)?.map(|meeting| Arc::new(meeting.host(self.pid, None)));
        }
        Ok(host.clone())
    }
}
