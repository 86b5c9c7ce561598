//! For one command in a fresh sandbox there is no server that could look after its way out, and the process that makes the
//! sandbox leaves this machine's network for good (an ordinary user may not return). So a process stays behind.
//!
//! It costs a fork. Only when something inside connects does it become a program with a runtime.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags},
    net::{AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType},
};
use sandbox_core::Door;

use crate::{
    handover::pair,
    sys::{self, Cloned},
    wire,
};

/// Said when something inside connects for the first time.
const BUSY: &[u8] = b"busy";
/// The longest account of what happened.
const LONGEST: usize = 64 << 10;
/// What is left to do at the end takes no longer.
const PATIENCE: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
/// Who wants to read at once what was written down finds it, unless the disk is slow.
const A_MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The process that stayed behind, as the one that left sees it.
pub struct Aside {
    socket: OwnedFd,
    process: OwnedFd,
}

/// The process that stayed behind, as it sees itself: told by its end that the sandbox is gone.
pub struct Leash(OwnedFd);

impl Leash {
    /// Returns when the sandbox is gone.
    pub async fn released(&self) -> io::Result<()> {
        let watched = sys::watched(self.0.try_clone()?, tokio::io::Interest::READABLE)?;
        watched.readable().await.map(drop)
    }

    /// Hands over an account of what happened: once, when the sandbox is gone.
    pub fn account(&self, account: &[u8]) -> io::Result<()> {
        wire::send(self.0.as_fd(), &account[..account.len().min(LONGEST)], &[])
    }
}

impl Aside {
    /// Divides this process, which has a single thread. The one that stays serves doors when it gets them, until its leash
    /// says that all is over; what it hands over then is what [`Aside::end`] gives.
    pub fn stay(serve: impl FnOnce(Vec<(Door, OwnedFd)>, &Leash)) -> io::Result<Self> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        match sys::clone(0, None)? {
            Cloned::Parent { pidfd, .. } => Ok(Self { socket: ours, process: pidfd }),
            Cloned::Child => {
                drop(ours);
                let _ = wait_and_serve(Leash(theirs), serve);
                sys::exit_now(0)
            }
        }
    }

    /// Hands it the doors.
    pub fn hand_over(&self, doors: &[(Door, OwnedFd)]) -> io::Result<()> {
        let (kinds, sockets): (Vec<Door>, Vec<_>) = doors.iter().map(|(door, socket)| (*door, socket.as_fd())).unzip();
        wire::send_value(self.socket.as_fd(), &kinds, &sockets)
    }

    /// The sandbox is gone. What happened, if anything did.
    pub fn end(self) -> Option<Vec<u8>> {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
        let mut account = vec![0; LONGEST];
        let busy = rustix::net::recv(&self.socket, &mut account[..], RecvFlags::DONTWAIT);
        // Nobody waits for one who had nothing to do.
        if !busy.is_ok_and(|(length, _)| account[..length] == *BUSY) {
            return None;
        }
        poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&PATIENCE)).ok()?;
        let (length, _) = rustix::net::recv(&self.socket, &mut account[..], RecvFlags::DONTWAIT).ok()?;
        account.truncate(length);
        // What it writes down may take longer than anybody should wait for.
        poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(&A_MOMENT)).ok()?;
        let _ = sys::ended(&self.process);
        Some(account)
    }
}

fn wait_and_serve(leash: Leash, serve: impl FnOnce(Vec<(Door, OwnedFd)>, &Leash)) -> io::Result<()> {
    // Ctrl-C is for the command; and whoever reads what it prints must not wait for us.
    rustix::process::setpgid(None, None)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    let mut buffer = [0; 256];
    let Some((kinds, sockets)) = wire::receive_value(leash.0.as_fd(), &mut buffer)? else { return Ok(()) };
    let doors = pair(kinds, sockets)?;
    if !knocked(&doors, &leash)? {
        return Ok(());
    }
    wire::send(leash.0.as_fd(), BUSY, &[])?;
    serve(doors, &leash);
    Ok(())
}

/// Waits until somebody is at a door; false if that never comes.
fn knocked(doors: &[(Door, OwnedFd)], leash: &Leash) -> io::Result<bool> {
    let mut watched: Vec<_> = doors.iter().map(|(_, socket)| PollFd::new(socket, PollFlags::IN)).collect();
    watched.push(PollFd::new(&leash.0, PollFlags::IN));
    while let Err(error) = poll(&mut watched, None) {
        if error != rustix::io::Errno::INTR {
            return Err(error.into());
        }
    }
    Ok(watched.last().is_some_and(|leash| leash.revents().is_empty()))
}
