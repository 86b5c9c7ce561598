//! What a packet is, before the stack sees it. It comes from a sandbox, so nothing about it is believed.

use std::net::{IpAddr, SocketAddr};

use smoltcp::wire::{IpProtocol, IpVersion, Ipv4Packet, Ipv6Packet, TcpPacket};

/// What is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It is the first of a connection, which is for this address.
    Opens { from: SocketAddr, wanted: SocketAddr },
    /// It is for the stack.
    Stack,
    /// It is for nobody.
    Nothing,
}

/// Looks at a packet.
pub fn look(packet: &[u8]) -> Seen {
    match content(packet) {
        Some((from, to, IpProtocol::Tcp, payload)) => match TcpPacket::new_checked(payload) {
            Ok(segment) if segment.syn() && !segment.ack() && !segment.rst() => Seen::Opens {
                from: SocketAddr::new(from, segment.src_port()),
                wanted: SocketAddr::new(to, segment.dst_port()),
            },
            Ok(_) => Seen::Stack,
            Err(_) => Seen::Nothing,
        },
        Some((_, _, IpProtocol::Udp, _)) => Seen::Stack,
        _ => Seen::Nothing,
    }
}

/// Addresses, protocol and content of a whole packet from one to one.
fn content(packet: &[u8]) -> Option<(IpAddr, IpAddr, IpProtocol, &[u8])> {
    // The library takes for granted that there is one.
    packet.first()?;
    let (from, to, protocol, payload): (IpAddr, IpAddr, _, _) = match IpVersion::of_packet(packet).ok()? {
        IpVersion::Ipv4 => {
            let packet = Ipv4Packet::new_checked(packet).ok()?;
            // No part of a packet: its other parts could make something else of it.
            if packet.more_frags() || packet.frag_offset() != 0 {
                return None;
            }
            (packet.src_addr().into(), packet.dst_addr().into(), packet.next_header(), packet.payload())
        }
        IpVersion::Ipv6 => {
            let packet = Ipv6Packet::new_checked(packet).ok()?;
            (packet.src_addr().into(), packet.dst_addr().into(), packet.next_header(), packet.payload())
        }
    };
    let single = |address: IpAddr| {
        let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
        !address.is_unspecified() && !address.is_multicast() && !broadcast
    };
    (single(from) && single(to)).then_some((from, to, protocol, payload))
}
