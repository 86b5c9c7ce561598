//! The doors of a sandbox's way out are handed to whoever looks after it: to the server that made it with the launcher's
//! answer, and to one that adopts it later over a socket of that launcher. The sandbox never has them.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt},
};
use sandbox_core::Door;

use crate::wire;

/// Whoever asks does it at once, and is answered at once.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where a launcher hands doors over.
pub struct Counter {
    path: PathBuf,
    /// Readable when somebody asks.
    pub socket: OwnedFd,
}

impl Counter {
    /// Opens that of this process.
    pub fn open(state: &Path) -> io::Result<Self> {
        let folder = state.join("launchers");
        fs::create_dir_all(&folder)?;
        remove_abandoned(&folder);
        let name = std::process::id().to_string();
        let path = folder.join(&name);
        let _ = fs::remove_file(&path);
        let socket = socket()?;
        rustix::net::bind(&socket, &address(open_folder(&folder)?.as_fd(), &name)?)?;
        rustix::net::listen(&socket, 16)?;
        Ok(Self { path, socket })
    }

    /// Answers whoever asks now; `doors` has those of a sandbox by its name.
    pub fn serve<'a>(&self, doors: impl FnOnce(&str) -> &'a [(Door, OwnedFd)]) -> io::Result<()> {
        let asking = rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC)?;
        for timeout in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&asking, timeout, Some(PATIENCE))?;
        }
        let mut name = [0; 256];
        let (length, _) = wire::receive(asking.as_fd(), &mut name)?;
        let doors = doors(std::str::from_utf8(&name[..length]).unwrap_or_default());
        let (kinds, sockets): (Vec<Door>, Vec<BorrowedFd<'_>>) =
            doors.iter().map(|(door, socket)| (*door, socket.as_fd())).unzip();
        wire::send_value(asking.as_fd(), &kinds, &sockets)
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Asks a launcher for the doors of a sandbox that it made.
pub fn ask(state: &Path, launcher: u64, name: &str) -> io::Result<Vec<(Door, OwnedFd)>> {
    let socket = socket()?;
    let folder = open_folder(&state.join("launchers"))?;
    for timeout in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(&socket, timeout, Some(PATIENCE))?;
    }
    rustix::net::connect(&socket, &address(folder.as_fd(), &launcher.to_string())?)?;
    wire::send(socket.as_fd(), name.as_bytes(), &[])?;
    let mut buffer = [0; 256];
    let (kinds, sockets) = wire::receive_value::<Vec<Door>>(socket.as_fd(), &mut buffer)?
        .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    pair(kinds, sockets)
}

/// Doors with their sockets.
pub fn pair(kinds: Vec<Door>, sockets: Vec<OwnedFd>) -> io::Result<Vec<(Door, OwnedFd)>> {
    if kinds.len() != sockets.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "doors of the way out are missing"));
    }
    Ok(kinds.into_iter().zip(sockets).collect())
}

fn socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

fn open_folder(folder: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Through the folder's descriptor: a path may be longer than a socket's address.
fn address(folder: BorrowedFd<'_>, name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()))?)
}

/// Sockets of launchers that were killed.
fn remove_abandoned(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let number = entry.file_name().to_string_lossy().parse::<u32>();
        if number.is_ok_and(|number| !Path::new("/proc").join(number.to_string()).exists()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doors_are_handed_over_to_whoever_knows_the_name() {
        let state = tempfile::tempdir().expect("a folder");
        let counter = Counter::open(state.path()).expect("a counter");
        let own = u64::from(std::process::id());
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let doors = [(Door::Proxy, socket().expect("one")), (Door::Names, socket().expect("two"))];
                let of = |name: &str| if name == "known" { &doors[..] } else { &[] };
                counter.serve(of).and_then(|()| counter.serve(of))
            });
            let found = ask(state.path(), own, "known").expect("an answer");
            assert_eq!(found.iter().map(|(door, _)| *door).collect::<Vec<_>>(), [Door::Proxy, Door::Names]);
            assert_eq!(ask(state.path(), own, "unknown").expect("an answer").len(), 0);
            serving.join().expect("no panic").expect("served");
        });
        drop(counter);
        assert!(ask(state.path(), own, "known").is_err(), "nobody is there");
    }
}
