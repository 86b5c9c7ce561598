//! Bridges: an engine that gives us nothing but the standard streams of a process lets one be started beside the executor, and
//! that one carries bytes between a server and the executor. Whoever comes that way must know a token.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, OwnedFd},
    rc::Rc,
    time::Duration,
};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen as listen_on, socket_with,
};
use sandbox_core::Channel;
use sandbox_executor::boot::{BRIDGE_NAME, TOKEN};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
};

use super::{
    Executor, hide, itself,
    serve::{Presence, joined, welcome},
};

/// Whoever comes says soon what it knows.
const PATIENCE: Duration = Duration::from_secs(5);
/// Those who wait to be accepted.
const BACKLOG: i32 = 64;

/// Waits for bridges, if there is a token.
pub fn listen(token: &[u8]) -> io::Result<Option<UnixListener>> {
    if token.len() != TOKEN {
        return Ok(None);
    }
    let socket = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(BRIDGE_NAME)?)?;
    listen_on(&socket, BACKLOG)?;
    UnixListener::from_std(socket.into()).map(Some)
}

fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Accepts them for ever.
pub async fn accept(executor: &Rc<Executor>, presence: &Rc<Presence>, listener: &UnixListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // The token alone decides: who is at the other end gVisor cannot say.
        let (executor, presence) = (Rc::clone(executor), Rc::clone(presence));
        tokio::task::spawn_local(async move {
            if let Some(stream) = admitted(stream, &executor.boot.itself.token).await {
                welcome(&executor, &presence, Channel::Stream(Box::new(stream)));
            }
        });
    }
}

async fn admitted(mut stream: UnixStream, token: &[u8]) -> Option<UnixStream> {
    let mut said = [0; TOKEN];
    let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut said)).await;
    read.ok()?.ok()?;
    // All bytes are looked at, so that time tells nothing.
    let differs = said.iter().zip(token).fold(0, |sum, (one, other)| sum | (one ^ other));
    (differs == 0).then_some(stream)
}

/// Carries bytes between our standard streams and the executor, until either is gone.
pub fn cross() -> io::Result<()> {
    // Where that is needed and allowed, see there. Others who are here are neither.
    let _ = itself::cover_ourselves();
    // An engine starts it with all that a container has, of which it needs nothing.
    itself::give_up_all_but(0).map_err(io::Error::other)?;
    let _ = hide();
    let mut token = [0; TOKEN];
    // Not a byte more than that: what follows is for the executor.
    File::from(io::stdin().as_fd().try_clone_to_owned()?).read_exact(&mut token)?;
    let executor = socket(SocketFlags::CLOEXEC)?;
    connect(&executor, &SocketAddrUnix::new_abstract_name(BRIDGE_NAME)?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let executor = std::os::unix::net::UnixStream::from(executor);
        executor.set_nonblocking(true)?;
        let mut executor = UnixStream::from_std(executor)?;
        executor.write_all(&token).await?;
        let [input, output] = [io::stdin().as_fd().try_clone_to_owned()?, io::stdout().as_fd().try_clone_to_owned()?];
        let mut server = joined(input, output)?;
        tokio::io::copy_bidirectional_with_sizes(&mut server, &mut executor, 64 << 10, 64 << 10).await?;
        Ok(())
    })
}
