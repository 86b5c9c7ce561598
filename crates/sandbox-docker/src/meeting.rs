//! Where an executor on this machine meets its servers: a socket of ours in a folder that is mounted read-only in its container.
//!
//! The executor dials it, and is passed connections over it; whoever else of this user wants one asks at a second socket, which
//! no container sees. Only one process at a time listens. What a container says is hostile: only its first process is heard.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags},
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
        socketpair, sockopt,
    },
};
use sandbox_executor::{
    boot::{BootReport, PACKET_BOOT, PACKET_CONNECTION, PACKET_LINE},
    socket::Socket,
};
use sandbox_linux::watched;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
    task::JoinHandle,
};

/// The folder that a container sees, in a sandbox's folder; and the socket in it.
pub const FOLDER: &str = "meeting";
pub const SOCKET: &str = "socket";
/// Where others of this user ask for connections, in a sandbox's folder.
const FRONT: &str = "executor.sock";
/// Locked by who listens, in a sandbox's folder.
const LOCK: &str = "meeting.lock";
/// Those who wait to be accepted.
const BACKLOG: i32 = 128;
/// An executor without a server looks for one every 300 ms.
const REDIAL: Duration = Duration::from_secs(10);
/// Somebody who was accepted says at once who it is.
const GREETING: Duration = Duration::from_secs(5);
/// Longest report of an executor.
const REPORT: usize = 4096;

/// Both sockets, listening.
pub struct Meeting {
    dialled: AsyncFd<OwnedFd>,
    front: AsyncFd<OwnedFd>,
    /// Held as long as we listen.
    _lock: fs::File,
}

/// Who may open the socket, beside us.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Guests {
    /// Root inside is our user.
    OurUser,
    /// Root inside is somebody else, and so are we to it.
    Anybody,
}

impl Meeting {
    /// Listens for a sandbox; nothing if somebody does already. Must be called inside a tokio runtime.
    pub fn open(folder: &Path, guests: Guests) -> io::Result<Option<Self>> {
        let lock = fs::File::options().create(true).truncate(false).write(true).open(folder.join(LOCK))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            other => other?,
        }
        let inner = folder.join(FOLDER);
        if !inner.exists() {
            fs::create_dir(&inner)?;
        }
        let (of_folder, of_socket) = match guests {
            Guests::OurUser => (0o700, 0o600),
            Guests::Anybody => (0o755, 0o666),
        };
        fs::set_permissions(&inner, fs::Permissions::from_mode(of_folder))?;
        let dialled = listening(&inner, SOCKET, of_socket)?;
        let front = listening(folder, FRONT, 0o600)?;
        Ok(Some(Self {
            dialled: watched(dialled, Interest::READABLE)?,
            front: watched(front, Interest::READABLE)?,
            _lock: lock,
        }))
    }

    /// Puts the executor's program beside the socket: one folder is all that a container sees of us.
    pub fn bring(folder: &Path, program: &Path) -> io::Result<PathBuf> {
        let inner = folder.join(FOLDER);
        let inside = inner.join(crate::plan::PROGRAM);
        match fs::hard_link(program, &inside) {
            // The cache may be on another file system.
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => fs::copy(program, &inside).map(drop)?,
            other => other?,
        }
        Ok(inner)
    }

    /// Waits for the executor whose process this is.
    pub async fn first(&self, pid: i32) -> io::Result<Socket> {
        loop {
            let socket = accept(&self.dialled).await?;
            if is_process(&socket, pid) {
                return Socket::new(socket);
            }
        }
    }

    /// Passes connections from now on.
    pub fn host(self, pid: i32, executor: Option<Arrived>) -> Host {
        let (arrived, _) = watch::channel(executor.map(Arc::new));
        let shared = Arc::new(Shared { arrived, pid });
        let serving = tokio::spawn(serve(Arc::clone(&shared), self));
        Host { shared, serving }
    }
}

/// An executor that has dialled and is ready.
pub struct Arrived {
    socket: Socket,
    door: Mutex<Option<OwnedFd>>,
}

impl Arrived {
    /// Tells it what to do, and waits until it is ready. `more` goes along as its letters say.
    pub async fn boot(socket: Socket, boot: &OwnedFd, more: &[(u8, OwnedFd)]) -> io::Result<Self> {
        let letters: Vec<u8> = [PACKET_BOOT].into_iter().chain(more.iter().map(|(letter, _)| *letter)).collect();
        let descriptors: Vec<_> = [boot.as_fd()].into_iter().chain(more.iter().map(|(_, fd)| fd.as_fd())).collect();
        socket.send(&letters, &descriptors).await?;
        Self::ready(socket).await
    }

    /// Waits until it says that it is ready.
    async fn ready(socket: Socket) -> io::Result<Self> {
        let mut packet = [0; REPORT];
        let (length, descriptors) = socket.receive(&mut packet).await?;
        if length == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the executor ended before it was ready"));
        }
        let report: BootReport = rmp_serde::from_slice(&packet[..length]).map_err(io::Error::other)?;
        if let BootReport::Failed(why) = report {
            return Err(io::Error::other(why));
        }
        // Whatever was passed that is not the proxy's listener is nothing to us.
        let door = descriptors.into_iter().next().and_then(|door| sandbox_linux::way_out::checked_door(door).ok());
        Ok(Self { socket: without_a_name(socket).await?, door: Mutex::new(door) })
    }
}

/// Our end of what was dialled shows its name in the container's table of sockets, so another pair is used from now on.
async fn without_a_name(dialled: Socket) -> io::Result<Socket> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    dialled.send(&[PACKET_LINE], &[theirs.as_fd()]).await?;
    Socket::new(ours)
}

/// Who listens for one sandbox, until it is dropped.
pub struct Host {
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

struct Shared {
    arrived: watch::Sender<Option<Arc<Arrived>>>,
    pid: i32,
}

impl Host {
    /// A new connection to the executor.
    pub async fn connect(&self) -> io::Result<OwnedFd> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        self.shared.pass(&theirs).await?;
        Ok(ours)
    }

    /// The listener of the way out's proxy, which the executor made.
    pub async fn door(&self) -> io::Result<OwnedFd> {
        let arrived = self.shared.arrived().await?;
        let door = arrived.door.lock().unwrap_or_else(PoisonError::into_inner);
        door.as_ref().ok_or(io::ErrorKind::NotFound)?.try_clone()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Shared {
    /// The executor, once it is there.
    async fn arrived(&self) -> io::Result<Arc<Arrived>> {
        let mut changes = self.arrived.subscribe();
        let wait = async {
            loop {
                let found = changes.borrow_and_update().clone();
                match found {
                    Some(arrived) if !arrived.socket.is_closed() => return Ok(arrived),
                    _ => changes.changed().await.map_err(|_| io::ErrorKind::NotConnected)?,
                }
            }
        };
        let gone = |_| io::Error::new(io::ErrorKind::TimedOut, "its executor does not come back");
        tokio::time::timeout(REDIAL, wait).await.map_err(gone)?
    }

    async fn pass(&self, connection: &OwnedFd) -> io::Result<()> {
        let arrived = self.arrived().await?;
        let passed = [connection.as_fd()];
        let sent = arrived.socket.send(&[PACKET_CONNECTION], &passed);
        tokio::time::timeout(GREETING, sent).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}

async fn serve(shared: Arc<Shared>, meeting: Meeting) {
    loop {
        tokio::select! {
            dialled = accept(&meeting.dialled) => match dialled {
                Ok(socket) if is_process(&socket, shared.pid) => {
                    let shared = Arc::clone(&shared);
                    tokio::spawn(async move {
                        let Ok(socket) = Socket::new(socket) else { return };
                        if let Ok(Ok(arrived)) = tokio::time::timeout(GREETING, Arrived::ready(socket)).await {
                            shared.arrived.send_replace(Some(Arc::new(arrived)));
                        }
                    });
                }
                Ok(_) => {}
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
            asked = accept(&meeting.front) => match asked {
                Ok(connection) => {
                    let shared = Arc::clone(&shared);
                    tokio::spawn(async move { shared.pass(&connection).await });
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
        }
    }
}

/// A connection through another process of this user that listens; nothing if none does.
pub fn ask(folder: &Path) -> io::Result<Option<OwnedFd>> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let opened = open_folder(folder)?;
    match connect(&socket, &address(&opened, FRONT)?) {
        Ok(()) => Ok(Some(socket)),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::CONNREFUSED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn open_folder(folder: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Through the open folder: the name of a socket may only be 107 bytes long.
fn address(folder: &OwnedFd, name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()))?)
}

fn listening(folder: &Path, name: &str, mode: u32) -> io::Result<OwnedFd> {
    let path = folder.join(name);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let opened = open_folder(folder)?;
    bind(&socket, &address(&opened, name)?)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

async fn accept(listener: &AsyncFd<OwnedFd>) -> io::Result<OwnedFd> {
    loop {
        let mut ready = listener.readable().await?;
        let accepted = ready.try_io(|listener| {
            accept_with(listener.get_ref(), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map_err(io::Error::from)
        });
        if let Ok(accepted) = accepted {
            return accepted;
        }
    }
}

/// Whether the other end was opened by this very process, as this machine counts.
fn is_process(socket: &OwnedFd, pid: i32) -> bool {
    sockopt::socket_peercred(socket).is_ok_and(|peer| peer.pid.as_raw_nonzero().get() == pid)
}
