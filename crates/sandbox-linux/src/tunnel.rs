//! A way out where nothing can be redirected because the kernel's packet filter is missing: an interface that everything is
//! routed to, and whose packets come out at a descriptor of ours.
//!
//! The sandbox has no right to change it, and no way to the device that tunnels are made with.

use std::{io, os::fd::OwnedFd};

use rustix::net::{AddressFamily, SocketType, netdevice::name_to_index};

use crate::{
    netlink::{Attributes, Message, tell},
    sys,
    way_out::{CREATE, family},
};

/// What the interface is called.
pub const NAME: &str = "sandbox";
/// Nothing of it goes over a wire: large packets cost least.
const MTU: u32 = 65_000;
const ADDRESS_MODE: u16 = 8;
const NO_ADDRESS: u8 = 1;

/// Makes one, and routes everything to it that is sent from one of these addresses, which loopback has.
pub fn open(sources: &[&[u8]]) -> io::Result<OwnedFd> {
    let tunnel = sys::tunnel(NAME)?;
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let index = name_to_index(&socket, NAME)?;
    // With an address of its own it would send packets by itself, to find out who else has it.
    let quiet = Attributes::default().with(ADDRESS_MODE, &[NO_ADDRESS]);
    let quiet = Attributes::default().with_nested(libc::AF_INET6 as u16, &quiet);
    let mut messages = vec![link(index, 0, &Attributes::default().with(libc::IFLA_MTU, &MTU.to_ne_bytes()))];
    if sources.iter().any(|source| source.len() == 16) {
        messages.push(link(index, 0, &Attributes::default().with_nested(libc::IFLA_AF_SPEC, &quiet)));
    }
    messages.push(link(index, libc::IFF_UP as u32, &Attributes::default()));
    messages.extend(sources.iter().map(|source| default_route(index, source)));
    tell(None, &messages)?;
    Ok(tunnel)
}

/// A message about the interface; see rtnetlink(7).
fn link(index: u32, flags: u32, attributes: &Attributes) -> Message {
    let head = [[0; 4], index.to_ne_bytes(), flags.to_ne_bytes(), flags.to_ne_bytes()].concat();
    Message { kind: libc::RTM_SETLINK, flags: 0, answered: true, body: [&head, attributes.bytes()].concat() }
}

fn default_route(index: u32, source: &[u8]) -> Message {
    let (table, scope) = (libc::RT_TABLE_MAIN, libc::RT_SCOPE_UNIVERSE);
    let scope = if source.len() == 4 { libc::RT_SCOPE_LINK } else { scope };
    let head = [family(source), 0, 0, 0, table, libc::RTPROT_BOOT, scope, libc::RTN_UNICAST];
    let attributes = Attributes::default().with(libc::RTA_OIF, &index.to_ne_bytes()).with(libc::RTA_PREFSRC, source);
    let body = [&head[..], &[0; 4], attributes.bytes()].concat();
    Message { kind: libc::RTM_NEWROUTE, flags: CREATE, answered: true, body }
}
