//! The stack against packets as a sandbox's kernel makes them, and against others.

use std::os::unix::net::UnixDatagram;

use proptest::prelude::*;

use super::*;
use crate::Places;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// A stack, and where its packets come out.
fn stack() -> (Stack, UnixDatagram) {
    let (ours, theirs) = UnixDatagram::pair().expect("two sockets");
    for socket in [&ours, &theirs] {
        socket.set_nonblocking(true).expect("not blocking");
    }
    (Stack::new(ours.into()), theirs)
}

fn take_in(stack: &mut Stack, packet: &[u8]) -> Option<Arrival> {
    let share = Places::new(1 << 20).share(1 << 20);
    stack.space()[..packet.len()].copy_from_slice(packet);
    let arrival = stack.take_in(packet.len(), |_| share.take(), |_| Some(b"answer".to_vec()));
    stack.send();
    arrival
}

/// To 8.8.8.8, or to somebody like it in the other family, without checksums.
fn packet(six: bool, protocol: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = (content.len() as u16 + if six { 0 } else { 20 }).to_be_bytes();
    if six {
        let (from, to): (std::net::Ipv6Addr, std::net::Ipv6Addr) =
            ("fd00::1".parse().expect("an address"), "2606:4700::1111".parse().expect("an address"));
        [&[0x60, 0, 0, 0, high, low, protocol, 64][..], &from.octets(), &to.octets(), content].concat()
    } else {
        let head = [0x45, 0, high, low, 0, 0, 0, 0, 64, protocol, 0, 0, 198, 19, 0, 1, 8, 8, 8, 8];
        [&head[..], content].concat()
    }
}

/// The first packet of a connection from this port to 443.
fn beginning(six: bool, port: u16) -> Vec<u8> {
    const SYN: u8 = 2;
    let ([high, low], [to_high, to_low]) = (port.to_be_bytes(), 443u16.to_be_bytes());
    packet(six, TCP, &[high, low, to_high, to_low, 0, 0, 0, 0, 0, 0, 0, 0, 5 << 4, SYN, 4, 0, 0, 0, 0, 0])
}

fn datagram(six: bool, port: u16) -> Vec<u8> {
    let [high, low] = port.to_be_bytes();
    packet(six, UDP, &[9, 9, high, low, 0, 12, 0, 0, b'a', b's', b'k', b'?'])
}

/// What comes out, with the protocol of each.
fn said(outside: &UnixDatagram) -> Vec<(u8, Vec<u8>)> {
    let mut buffer = vec![0; LONGEST];
    let packets = std::iter::from_fn(|| outside.recv(&mut buffer).ok().map(|length| buffer[..length].to_vec()));
    packets.map(|packet| (if packet[0] >> 4 == 4 { packet[9] } else { packet[6] }, packet)).collect()
}

/// Ends all, and looks whether anything is left.
fn end(stack: &mut Stack, connections: Vec<Arrival>) {
    assert_eq!(stack.connections, connections.len());
    for arrival in connections {
        stack.socket(arrival.handle).abort();
        stack.leave(arrival.handle);
    }
    stack.send();
    assert_eq!((stack.connections, stack.leaving.len(), stack.sockets.iter().count()), (0, 0, 1));
}

#[test]
fn connections_are_taken_once_and_no_more_than_there_is_room_for() {
    let (mut stack, outside) = stack();
    let connect = |port| take_in(&mut stack, &beginning(port % 2 == 0, port)).expect("taken");
    let taken: Vec<_> = (1..=MOST as u16).map(connect).collect();
    assert_eq!(taken[1].wanted, "[2606:4700::1111]:443".parse().expect("an address"));
    assert!(take_in(&mut stack, &beginning(false, 1)).is_none(), "it was taken already");
    assert!(stack.is_full());
    assert!(said(&outside).iter().all(|(protocol, _)| *protocol == TCP));
    end(&mut stack, taken);
}

#[test]
fn who_gets_no_place_is_refused_at_once() {
    let (mut stack, outside) = stack();
    let first = beginning(false, 7);
    stack.space()[..first.len()].copy_from_slice(&first);
    assert!(stack.take_in(first.len(), |_| None, |_| None).is_none());
    let refusals = said(&outside);
    assert!(matches!(&refusals[..], [(TCP, packet)] if packet[33] & 4 != 0), "{refusals:?}");
    end(&mut stack, Vec::new());
}

#[test]
fn questions_are_answered_and_other_datagrams_refused() {
    let (mut stack, outside) = stack();
    for (six, refusal) in [(false, 1), (true, 58)] {
        take_in(&mut stack, &datagram(six, 53));
        let answers = said(&outside);
        assert!(matches!(&answers[..], [(UDP, packet)] if packet.ends_with(b"answer")), "{answers:?}");
        take_in(&mut stack, &datagram(six, 123));
        let refusals = said(&outside);
        assert!(matches!(&refusals[..], [(protocol, _)] if *protocol == refusal), "{refusals:?}");
    }
}

/// A packet that is one of ours, with some bytes changed and the end cut off, or no packet at all.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let whole = (any::<bool>(), 0..4u8, 1..6u16).prop_map(|(six, kind, port)| match kind {
        0 | 1 => beginning(six, port),
        2 => datagram(six, 53),
        _ => packet(six, 1, &[8; 30]),
    });
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let spoiled = (whole, changes, 0..80usize).prop_map(|(mut packet, changes, cut)| {
        for (at, byte) in changes {
            let at = at.index(packet.len());
            packet[at] = byte;
        }
        packet.truncate(packet.len().saturating_sub(cut.saturating_sub(60)));
        packet
    });
    prop_oneof![9 => spoiled, 1 => prop::collection::vec(any::<u8>(), 0..90)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn nothing_panics_and_nothing_grows(packets in prop::collection::vec(hostile(), 1..60)) {
        let (mut stack, outside) = stack();
        let mut taken = Vec::new();
        for packet in packets {
            taken.extend(take_in(&mut stack, &packet));
            said(&outside);
        }
        end(&mut stack, taken);
    }
}
