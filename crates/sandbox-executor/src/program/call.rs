//! Connecting to whoever looks after this sandbox, where nobody outside can connect to us.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with};
use sandbox_core::Channel;
use sandbox_executor::boot::Carries;
use tokio::{io::Interest, net::UnixStream};

use super::Executor;

/// Between two attempts: first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];

/// A connection on which somebody has begun to speak. As long as nobody does, it waits where it was accepted.
pub async fn wait_for_somebody(executor: &Executor, path: &str, carries: Carries) -> Channel {
    let [mut pause, most] = PAUSES;
    loop {
        if let Ok(socket) = executor.as_ourselves(|| dial(path, carries, &executor.boot.itself.token))
            && let Ok(socket) = spoken_to(socket).await
        {
            match (carries, UnixStream::from_std(socket.into())) {
                (Carries::Bytes, Ok(stream)) => return Channel::Stream(Box::new(stream)),
                (Carries::Descriptors, Ok(stream)) => {
                    if let Ok(socket) = stream.into_std() {
                        return Channel::Local(socket.into());
                    }
                }
                (_, Err(_)) => {}
            }
        }
        // Nobody listens now: whoever did may come back.
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(most);
    }
}

fn dial(path: &str, carries: Carries, word: &[u8]) -> io::Result<OwnedFd> {
    let kind = match carries {
        Carries::Descriptors => SocketType::SEQPACKET,
        Carries::Bytes => SocketType::STREAM,
    };
    // Connecting to a local socket waits only where its queue is full, and then somebody is about to look at it.
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    // A command may have found the socket too, where it has our user; but not the word.
    if !word.is_empty() && rustix::io::write(&socket, word)? != word.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

/// Returns when there is something to read, and fails when the other side has gone.
async fn spoken_to(socket: OwnedFd) -> io::Result<OwnedFd> {
    let socket = UnixStream::from_std(socket.into())?;
    let mut first = [0; 1];
    let look = || Ok(recv(socket.as_fd(), &mut first[..], RecvFlags::PEEK)?);
    let (_, length) = socket.async_io(Interest::READABLE, look).await?;
    if length == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(socket.into_std()?.into())
}
