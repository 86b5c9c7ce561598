//! What servers and a keeper say to each other: a packet each, over a local socket in the sandbox's folder.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt},
};
use sandbox_core::Usage;
use sandbox_linux::wire;
use serde::{Deserialize, Serialize};

/// Where a keeper listens, in the sandbox's folder.
pub const SOCKET: &str = "keeper.sock";
/// A keeper answers at once, but an executor may be busy.
const PATIENCE: Duration = Duration::from_secs(15);

/// What is asked of a keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// A connection to the executor.
    Connect,
    /// What the sandbox uses.
    Usage,
    /// The listener of its way out.
    Door,
    /// That the sandbox ends, and is removed.
    Remove,
}

/// What a keeper answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// The connection comes along.
    Connected,
    /// What it uses.
    Used(Usage),
    /// The listener comes along, if it has one.
    Door,
    /// It has ended; its folder is on its way out.
    Removed,
    /// Why not.
    Refused(String),
}

/// How making a sandbox went, told once by its keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// The executor waits for servers.
    Ready,
    /// Why not.
    Failed(String),
}

/// Listens in a folder.
pub fn listen(folder: &Path, name: &str, kind: SocketType) -> io::Result<OwnedFd> {
    let _ = fs::remove_file(folder.join(name));
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    rustix::net::bind(&socket, &address(open(folder)?.as_fd(), name)?)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket)
}

/// Asks the keeper of the sandbox in this folder, and waits for its answer.
pub fn ask(folder: &Path, what: Ask) -> io::Result<(Answer, Option<OwnedFd>)> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    for timeout in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(&socket, timeout, Some(PATIENCE))?;
    }
    rustix::net::connect(&socket, &address(open(folder)?.as_fd(), SOCKET)?)?;
    wire::send_value(socket.as_fd(), &what, &[])?;
    let mut buffer = [0; 4096];
    let answer = wire::receive_value(socket.as_fd(), &mut buffer)?;
    let (answer, mut descriptors) = answer.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    Ok((answer, descriptors.pop()))
}

fn open(folder: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Through the folder's descriptor: a path may be longer than a socket's address.
fn address(folder: BorrowedFd<'_>, name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()))?)
}
