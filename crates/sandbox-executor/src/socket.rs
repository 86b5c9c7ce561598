//! The local carrier: a `SOCK_SEQPACKET` connection over which the sockets of flows are passed.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::{UnixDatagram as StdDatagram, UnixStream},
    },
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair, sockopt,
    },
    time::Timespec,
};
use tokio::{io::Interest, net::UnixDatagram};

/// A flow's socket and the three descriptors of [`crate::protocol::Output::Handed`].
const MAX_DESCRIPTORS: usize = 4;
/// Bytes that the kernel may hold of a flow, so that bulk data needs few wakeups.
const FLOW_BUFFER: usize = 1 << 20;
/// What a packet that passes a flow holds: something, because an empty packet looks like the end.
const FLOW_PACKET: [u8; 1] = [b'F'];

/// The connected socket. Packets with boundaries behave like datagrams, so tokio's type for those drives it.
pub struct Socket(UnixDatagram);

impl Socket {
    /// Takes over a connected socket. Must be called inside a tokio runtime.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = StdDatagram::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self(UnixDatagram::from_std(socket)?))
    }

    /// Makes a flow's socket and passes its other end. Returns ours, and how much of `first` is already in it.
    pub(crate) async fn open(&self, first: &[u8], more: &[BorrowedFd<'_>]) -> io::Result<(UnixStream, usize)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        for end in [&ours, &theirs] {
            // Only a privileged process passes the system's maximum; the other gets what is allowed.
            if sockopt::set_socket_send_buffer_size_force(end, FLOW_BUFFER).is_err() {
                sockopt::set_socket_send_buffer_size(end, FLOW_BUFFER)?;
            }
        }
        // Written before it is passed: the other side wakes up once and finds all it needs.
        let written = match rustix::io::write(&ours, first) {
            Ok(count) => count,
            Err(rustix::io::Errno::AGAIN) => 0,
            Err(error) => return Err(error.into()),
        };
        let mut descriptors = vec![theirs.as_fd()];
        descriptors.extend_from_slice(more);
        self.send(&FLOW_PACKET, &descriptors).await?;
        Ok((ours.into(), written))
    }

    pub(crate) async fn accept(&self) -> io::Result<Option<(UnixStream, Vec<OwnedFd>)>> {
        loop {
            let mut packet = [0; 16];
            let (length, mut descriptors) = match self.receive(&mut packet).await {
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                other => other?,
            };
            if length == 0 {
                return Ok(None);
            }
            if descriptors.is_empty() || packet[..length] != FLOW_PACKET {
                continue;
            }
            let flow = UnixStream::from(descriptors.remove(0));
            // Whatever else was passed is no flow.
            let kind = sockopt::socket_type(&flow);
            if kind == Ok(SocketType::STREAM) && flow.set_nonblocking(true).is_ok() {
                return Ok(Some((flow, descriptors)));
            }
        }
    }

    /// One packet of at most so many bytes.
    pub(crate) async fn receive_packet<const LONGEST: usize>(&self) -> io::Result<Vec<u8>> {
        let mut packet = [0; LONGEST];
        let (length, _) = self.receive(&mut packet).await?;
        if length == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(packet[..length].to_vec()) }
    }

    /// Sends one packet, with descriptors.
    pub async fn send(&self, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let send = || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            sendmsg(&self.0, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL)?;
            Ok(())
        };
        self.0.async_io(Interest::WRITABLE, send).await
    }

    /// One packet with its descriptors; of length 0 when the other side is gone.
    pub async fn receive(&self, packet: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let receive = || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let message = recvmsg(&self.0, &mut [IoSliceMut::new(packet)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
            let mut descriptors = Vec::new();
            for part in control.drain() {
                if let RecvAncillaryMessage::ScmRights(passed) = part {
                    descriptors.extend(passed);
                }
            }
            Ok((message.bytes, descriptors))
        };
        self.0.async_io(Interest::READABLE, receive).await
    }

    /// Asks the kernel, so that nobody has to read the socket in the background.
    pub fn is_closed(&self) -> bool {
        let mut sockets = [PollFd::new(&self.0, PollFlags::RDHUP)];
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        poll(&mut sockets, Some(&Timespec::default())).is_err() || sockets[0].revents().intersects(gone)
    }
}
