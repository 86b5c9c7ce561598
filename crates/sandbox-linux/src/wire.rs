//! Messages with descriptors over a local packet socket, between processes of our own.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::{Serialize, de::DeserializeOwned};

/// No message is longer.
pub const LONGEST: usize = 128 << 10;
/// No message carries more descriptors.
const MOST_DESCRIPTORS: usize = 10;

/// Sends one packet.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one packet; no bytes means that the other side is gone.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let packet = loop {
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok((packet.bytes, rights.flatten().collect()))
}

/// Sends a value as one packet.
pub fn send_value<T: Serialize>(socket: BorrowedFd<'_>, value: &T, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = rmp_serde::to_vec_named(value).map_err(io::Error::other)?;
    if bytes.len() > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the description of the sandbox is too long"));
    }
    send(socket, &bytes, descriptors)
}

/// Receives a value; nothing means that the other side is gone.
pub fn receive_value<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let (length, descriptors) = receive(socket, buffer)?;
    if length == 0 {
        return Ok(None);
    }
    let value = rmp_serde::from_slice(&buffer[..length]).map_err(io::Error::other)?;
    Ok(Some((value, descriptors)))
}
