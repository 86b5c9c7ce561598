//! Connections that are passed one by one, where a sandbox's listener is out of our reach.

use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::net::UnixDatagram as StdDatagram},
};

use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketType, recvmsg, sockopt};
use tokio::{
    io::Interest,
    net::{TcpStream, UnixDatagram},
};

/// The socket over which they come. Packets with boundaries behave like datagrams, so tokio's type for those drives it.
pub struct Handed(UnixDatagram);

impl Handed {
    /// Must be called within a tokio runtime.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = StdDatagram::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self(UnixDatagram::from_std(socket)?))
    }

    /// Serves each that comes, until whoever passes them is gone.
    pub async fn serve<F: Future<Output = ()> + Send + 'static>(self, serve: impl Fn(TcpStream) -> F) {
        while let Ok(Some(passed)) = self.next().await {
            for stream in passed.into_iter().filter_map(connection) {
                drop(tokio::spawn(serve(stream)));
            }
        }
    }

    async fn next(&self) -> io::Result<Option<Vec<OwnedFd>>> {
        let receive = || {
            let mut packet = [0; 1];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let message = recvmsg(&self.0, &mut [IoSliceMut::new(&mut packet)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
            let mut descriptors = Vec::new();
            for part in control.drain() {
                if let RecvAncillaryMessage::ScmRights(passed) = part {
                    descriptors.extend(passed);
                }
            }
            Ok((message.bytes > 0).then_some(descriptors))
        };
        self.0.async_io(Interest::READABLE, receive).await
    }
}

/// Whatever else was passed is no connection.
fn connection(descriptor: OwnedFd) -> Option<TcpStream> {
    let is_tcp = sockopt::socket_domain(&descriptor).ok()? == AddressFamily::INET
        && sockopt::socket_type(&descriptor).ok()? == SocketType::STREAM;
    let stream = std::net::TcpStream::from(descriptor);
    stream.set_nonblocking(true).ok()?;
    if is_tcp { TcpStream::from_std(stream).ok() } else { None }
}
