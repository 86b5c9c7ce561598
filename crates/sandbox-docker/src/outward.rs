//! The way out where no descriptor can come: connections inside come as flows over a bridge of their own, and go on as
//! connections of this machine that nobody else can make.

use std::{
    io,
    net::Ipv4Addr,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use bollard::Docker;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sandbox_core::{Channel, Door};
use sandbox_executor::{
    client::{Client, Outward},
    socket::Socket,
};
use tokio::net::{TcpListener, TcpStream};

use crate::streams::Line;

/// Loopback answers at once.
const PATIENCE: Duration = Duration::from_secs(5);
/// What a packet that passes a connection holds: something, because an empty packet looks like the end.
const PACKET: [u8; 1] = [b'T'];

/// A door on which those connections come.
pub async fn door(line: &Line, docker: &Docker) -> io::Result<Vec<(Door, OwnedFd)>> {
    let other = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
    let bridge = line.bridge(docker).await.map_err(|error| other(&error))?;
    let client = Client::connect(Channel::Stream(bridge)).await.map_err(|error| other(&error))?;
    let outward = client.outward().await.map_err(|error| other(&error))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    tokio::spawn(pass(outward, Socket::new(ours)?, listener));
    Ok(vec![(Door::Handed, theirs)])
}

/// Until the executor, or who takes them, is gone.
async fn pass(mut outward: Outward, taker: Socket, listener: TcpListener) {
    while let Some(mut inside) = outward.next().await {
        let Ok((mut near, far)) = pair(&listener).await else { continue };
        let Ok(far) = far.into_std() else { continue };
        if taker.send(&PACKET, &[far.as_fd()]).await.is_err() {
            return;
        }
        tokio::spawn(async move {
            // Who breaks a connection off breaks off both.
            drop(tokio::io::copy_bidirectional_with_sizes(&mut inside, &mut near, 64 << 10, 64 << 10).await);
        });
    }
}

/// Both ends of a connection. Whoever else connects meanwhile is not let in.
async fn pair(listener: &TcpListener) -> io::Result<(TcpStream, TcpStream)> {
    let connect = async {
        let near = TcpStream::connect(listener.local_addr()?).await?;
        let ours = near.local_addr()?;
        loop {
            let (far, from) = listener.accept().await?;
            if from == ours {
                near.set_nodelay(true)?;
                far.set_nodelay(true)?;
                return Ok((near, far));
            }
        }
    };
    tokio::time::timeout(PATIENCE, connect).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
