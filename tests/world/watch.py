"""Sees every packet that comes out of the machine, whether or not anybody listens where it goes to."""

import ipaddress
import socket
import struct
import threading

IPV4, IPV6, ALL = 0x0800, 0x86DD, 0x0003
# Neighbours are looked for on any cable (NDP, MLD); these say nothing of a sandbox.
HOUSEKEEPING = {130, 131, 132, 133, 134, 135, 136, 143}


def watch(interface, journal):
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ALL))
    packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
    packets.bind((interface, ALL))
    threading.Thread(target=_read, args=(packets, journal), daemon=True).start()


def _read(packets, journal):
    while True:
        data, (_, kind, direction, *_) = packets.recvfrom(65535)
        if direction == socket.PACKET_OUTGOING:
            continue
        found = parse(kind, data)
        if found:
            journal.write("packet", *found)


def parse(kind, data):
    """Where a packet goes to: address, port (or none), what it holds, and over what. Nothing for housekeeping."""
    if kind == IPV4:
        address, over, rest = socket.inet_ntop(socket.AF_INET, data[16:20]), data[9], data[(data[0] & 15) * 4 :]
    elif kind == IPV6:
        address, over, rest = str(ipaddress.ip_address(data[24:40])), data[6], data[40:]
        # Options for every router come before what they are about (MLD).
        while over == 0 and len(rest) > 8:
            over, rest = rest[0], rest[(rest[1] + 1) * 8 :]
        if over == 58 and rest and rest[0] in HOUSEKEEPING:
            return None
    else:
        return None
    if over not in (6, 17) or len(rest) < 4:
        return address, -over, rest[:200]
    port = struct.unpack("!H", rest[2:4])[0]
    if over == 6 and not rest[13] & 2:
        return None  # What follows a first packet is in the logs of servers.
    return address, port if over == 6 else -port - 1000, rest[:200]
