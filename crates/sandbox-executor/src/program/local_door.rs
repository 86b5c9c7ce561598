//! The way out where the sandbox's network is one of its own kernel's: connections to the proxy's port are carried to a socket
//! behind which somebody outside decides. Nothing is looked at here.

use std::{
    io,
    net::{Ipv4Addr, TcpListener as StdListener},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use sandbox_executor::boot::Outward;
use tokio::{
    io::copy_bidirectional_with_sizes,
    net::{TcpListener, TcpStream, UnixStream},
    sync::Semaphore,
};

use super::Executor;

/// Connections at once; one more is reset. The policy has a limit of its own, and whoever holds it was called before and
/// has told.
const MOST: usize = 1024;
const BUFFER: usize = 64 << 10;
/// Time for what keeps us from accepting to pass.
const BREATH: Duration = Duration::from_millis(50);

/// Listens for programs, before any runs.
pub fn listen(outward: &Outward) -> io::Result<TcpListener> {
    let listener = StdListener::bind((Ipv4Addr::LOCALHOST, outward.port))?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Carries for ever.
pub async fn carry(executor: Rc<Executor>, listener: TcpListener, path: String) {
    let room = Arc::new(Semaphore::new(MOST));
    loop {
        let Ok((inside, _)) = listener.accept().await else {
            tokio::time::sleep(BREATH).await;
            continue;
        };
        let Ok(outside) = executor.as_ourselves(|| call(&path)) else { continue };
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            let _ = inside.set_zero_linger();
            continue;
        };
        tokio::task::spawn_local(async move {
            let _ = between(inside, outside).await;
            drop(place);
        });
    }
}

async fn between(mut inside: TcpStream, mut outside: UnixStream) -> io::Result<()> {
    let _ = inside.set_nodelay(true);
    copy_bidirectional_with_sizes(&mut inside, &mut outside, BUFFER, BUFFER).await.map(drop)
}

fn call(path: &str) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    UnixStream::from_std(socket.into())
}
