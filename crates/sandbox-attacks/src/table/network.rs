//! Reaching a network, or the machine by one.

use crate::{
    Attack, Group,
    Wall::{self, *},
    attack::Way,
    expectation::low_ports,
    outside::neighbours,
};

const fn network(name: &'static str, walls: &'static [Wall], tries: &'static str) -> Attack {
    Attack::new(Group::Network, Way::Inside, name, walls, tries)
}

/// All of the group.
pub(super) const ATTACKS: &[Attack] = &[
    network("host_loopback_tcp", &[NetworkNamespace], "Connects to a listener of the suite on the machine's 127.0.0.1"),
    network("host_loopback_tcp6", &[NetworkNamespace], "Connects to a listener of the suite on the machine's ::1"),
    network("host_loopback_udp", &[NetworkNamespace], "Asks a UDP socket of the suite on the machine for an answer"),
    network(
        "host_loopback_other_names",
        &[NetworkNamespace],
        "Connects to the machine's loopback by its other spellings",
    ),
    network("host_abstract_socket", &[NetworkNamespace], "Connects to an abstract socket of the suite on the machine"),
    network("host_path_socket", &[MountNamespace], "Connects to a socket file of the suite on the machine"),
    network("neighbours_socket", &[NetworkNamespace], "Connects to an abstract socket of another sandbox")
        .by(Way::Outside(neighbours::neighbours_socket)),
    network("listener_inside", &[NetworkNamespace], "Opens a port that is reached from the machine")
        .by(Way::Outside(neighbours::listener_inside)),
    network("other_interfaces", &[NetworkNamespace], "Looks for interfaces and routes beyond loopback"),
    network("metadata_address", &[NetworkNamespace], "Connects to the addresses where clouds tell secrets"),
    network("private_addresses", &[NetworkNamespace], "Connects to private addresses"),
    network("reserved_addresses", &[NetworkNamespace], "Connects to addresses that are kept for documents"),
    network("datagrams_out", &[NetworkNamespace], "Sends datagrams to public, broadcast and multicast addresses"),
    network("raw_icmp", &[Capabilities], "Opens a raw socket"),
    network("low_ports", &[Capabilities, NetworkNamespace], "Listens on port 80").expecting(low_ports),
    network("add_interface", &[NetworkNamespace, Capabilities], "Adds an interface"),
    network("add_address", &[NetworkNamespace, Capabilities], "Adds an address"),
    network("add_route", &[NetworkNamespace, Capabilities], "Adds a route"),
    network("change_loopback", &[NetworkNamespace, Capabilities], "Takes the loopback interface down"),
    network("socket_privileges", &[NetworkNamespace, Capabilities], "Marks packets and forces buffers"),
    network("packet_filter", &[NetworkNamespace, Capabilities, SystemCallFilter], "Reaches the kernel's packet filter"),
    network("tunnel_device", &[Devices, Capabilities], "Opens a tunnel"),
];
