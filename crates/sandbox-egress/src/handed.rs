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

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{IoSlice, Read},
        os::fd::{AsFd, BorrowedFd},
    };

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, sendmsg, socketpair};

    use super::*;

    fn pass(to: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).expect("passed");
    }

    #[tokio::test]
    async fn whatever_else_is_passed_is_no_connection_and_stops_none() {
        let (theirs, ours) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a pair");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let mut near = std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (far, _) = listener.accept().expect("accepted");
        let file = File::open("/dev/null").expect("a file");
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port is free");
        let (unix, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        for odd in [file.as_fd(), datagrams.as_fd(), unix.as_fd(), theirs.as_fd()] {
            pass(&theirs, b"T", &[odd]);
        }
        pass(&theirs, b"a longer packet, and nothing with it", &[]);
        // More than one.
        pass(&theirs, b"T", &[file.as_fd(), unix.as_fd()]);
        pass(&theirs, b"T", &[far.as_fd()]);
        drop((theirs, far));
        let (served, mut heard) = tokio::sync::mpsc::unbounded_channel();
        Handed::new(ours)
            .expect("a socket")
            .serve(move |stream| {
                let served = served.clone();
                async move {
                    stream.writable().await.expect("it is a connection");
                    stream.try_write(b"hello").expect("it is a connection");
                    served.send(()).expect("counted");
                }
            })
            .await;
        assert_eq!((heard.recv().await, heard.recv().await), (Some(()), None), "one connection");
        let mut said = [0; 5];
        near.read_exact(&mut said).expect("an answer");
        assert_eq!(&said, b"hello");
    }
}
