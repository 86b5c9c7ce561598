//! The listeners in a sandbox's network, served from outside until the sandbox has ended.

use std::{io, os::fd::OwnedFd, sync::Arc, time::Duration};

use rustix::net::{AddressFamily, sockopt};
use sandbox_core::Door;

use tokio::{
    net::{TcpListener, TcpStream, UdpSocket, UnixListener, UnixStream},
    task::JoinSet,
};

use crate::{Engine, packets::Packets};

/// Longer questions than this are not asked over UDP.
const LONGEST_QUESTION: usize = 1500;
/// Time for what keeps a listener from accepting (out of descriptors) to pass.
const BREATH: Duration = Duration::from_millis(50);

/// Every way in which a sandbox can reach us.
#[derive(Default)]
pub struct Doors {
    /// For programs that know a proxy.
    pub proxy: Vec<TcpListener>,
    /// The same, where something inside carries connections to a local socket of ours.
    pub carried: Vec<UnixListener>,
    /// For those that do not: redirected to us, wherever they wanted to go.
    pub redirected: Vec<TcpListener>,
    /// For questions for names.
    pub dns: Vec<UdpSocket>,
    /// For whatever is sent to anywhere, packet by packet.
    pub packets: Vec<Packets>,
}

impl Doors {
    /// Those that a backend opened. Must be called within a tokio runtime.
    pub fn new(sockets: Vec<(Door, OwnedFd)>) -> io::Result<Self> {
        let mut doors = Self::default();
        for (door, socket) in sockets {
            rustix::io::ioctl_fionbio(&socket, true)?;
            match door {
                Door::Proxy if is_local(&socket) => doors.carried.push(UnixListener::from_std(socket.into())?),
                Door::Proxy => doors.proxy.push(TcpListener::from_std(socket.into())?),
                Door::Redirected => doors.redirected.push(TcpListener::from_std(socket.into())?),
                Door::Names => doors.dns.push(UdpSocket::from_std(socket.into())?),
                Door::Packets => doors.packets.push(Packets::new(socket)?),
            }
        }
        Ok(doors)
    }
}

impl Engine {
    /// Serves all doors until [`Engine::close`].
    pub async fn serve(self: Arc<Self>, doors: Doors) {
        let mut serving = JoinSet::new();
        for listener in doors.proxy {
            let engine = Arc::clone(&self);
            serving.spawn(accept(listener, move |stream| Arc::clone(&engine).serve_proxy(stream)));
        }
        for listener in doors.carried {
            let engine = Arc::clone(&self);
            serving.spawn(accept_local(listener, move |stream| Arc::clone(&engine).serve_proxy(stream)));
        }
        for listener in doors.redirected {
            let engine = Arc::clone(&self);
            serving.spawn(accept(listener, move |stream| Arc::clone(&engine).serve_redirected(stream)));
        }
        for socket in doors.dns {
            serving.spawn(answer(Arc::clone(&self), socket));
        }
        for packets in doors.packets {
            serving.spawn(packets.serve(Arc::clone(&self)));
        }
        self.until_closed().await;
        // Those who are being served end by themselves; nobody else is let in.
        serving.shutdown().await;
    }
}

async fn accept<F: Future<Output = ()> + Send + 'static>(listener: TcpListener, serve: impl Fn(TcpStream) -> F) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(serve(stream))),
            Err(_) => tokio::time::sleep(BREATH).await,
        }
    }
}

/// Bytes come and go the same way through either kind of socket.
async fn accept_local<F: Future<Output = ()> + Send + 'static>(listener: UnixListener, serve: impl Fn(TcpStream) -> F) {
    let taken = |stream: UnixStream| {
        let socket = OwnedFd::from(stream.into_std()?);
        TcpStream::from_std(std::net::TcpStream::from(socket))
    };
    loop {
        match listener.accept().await.and_then(|(stream, _)| taken(stream)) {
            Ok(stream) => drop(tokio::spawn(serve(stream))),
            Err(_) => tokio::time::sleep(BREATH).await,
        }
    }
}

fn is_local(socket: &OwnedFd) -> bool {
    sockopt::socket_domain(socket).is_ok_and(|domain| domain == AddressFamily::UNIX)
}

async fn answer(engine: Arc<Engine>, socket: UdpSocket) {
    let mut question = [0; LONGEST_QUESTION];
    loop {
        match socket.recv_from(&mut question).await {
            Ok((length, from)) => {
                if let Some(reply) = engine.answer_dns(&question[..length]) {
                    // Whoever asked and did not wait is nobody's concern.
                    let _ = socket.try_send_to(&reply, from);
                }
            }
            Err(_) => tokio::time::sleep(BREATH).await,
        }
    }
}
