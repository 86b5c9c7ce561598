//! The listener of the way out's proxy, made here where whoever started us cannot make it: before any command runs, so that
//! what goes out is what we made. Commands never have it, and we keep no copy.

use std::{
    io::IoSlice,
    mem::MaybeUninit,
    net::{Ipv4Addr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, bind, listen,
    sendmsg, socket_with,
};
use sandbox_executor::boot::BootReport;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Listens on this port of the sandbox's own loopback.
pub fn open(port: u16) -> Result<OwnedFd, String> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let opened = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
        .and_then(|socket| bind(&socket, &address).and_then(|()| listen(&socket, BACKLOG)).map(|()| socket));
    opened.map_err(|error| format!("listening for the way out on port {port} failed: {error}"))
}

/// Says that all is ready, and hands the listener to whoever hears it. Nobody may be there any more.
pub fn pass_out(status: &OwnedFd, door: &OwnedFd) {
    tell_ready(status, Some(door));
}

/// The same, with a listener or without.
pub fn tell_ready(status: &OwnedFd, door: Option<&OwnedFd>) {
    let Ok(bytes) = rmp_serde::to_vec_named(&BootReport::Ready) else { return };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = door.map(|door| [door.as_fd()]);
    if let Some(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let _ = sendmsg(status, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
}
