"""Whatever is not a connection over TCP: it goes nowhere."""

import socket
import struct

from rows import ALL, OPEN, attempt, only
from wire import datagram

PUBLIC = {"IPv4": "93.184.215.14", "IPv6": "2606:2800:21f:cb07::14"}
UDP = {
    "QUIC": 443,
    "time": 123,
    "VPN": 51820,
    "IPsec": 500,
    "STUN": 3478,
    "DHCP": 67,
    "anything": 4000,
    "the redirected port": 3129,
    "the port for names": 3153,
}
for version, address in PUBLIC.items():
    for name, port in UDP.items():
        attempt(f"{name} over UDP ({version})", ALL)(
            lambda token, address=address, port=port: datagram(address, port, token.encode() * 20)
        )
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    attempt(f"UDP-Lite ({version})", ALL)(
        lambda token, address=address: datagram(address, 4000, token.encode(), protocol=136)
    )
    attempt(f"a ping socket ({version})", ALL)(
        lambda token, address=address: datagram(
            address,
            0,
            bytes([128 if ":" in address else 8, 0, 0, 0, 0, 0, 0, 1]) + token.encode(),
            protocol=58 if ":" in address else 1,
        )
    )
    for name, number in {
        "ICMP": 1,
        "IP in IP": 4,
        "TCP": 6,
        "UDP": 17,
        "GRE": 47,
        "ESP": 50,
        "OSPF": 89,
        "anything": 255,
    }.items():
        attempt(f"a raw socket for {name} ({version})", ALL)(
            lambda token, address=address, number=number: datagram(
                address, 0, token.encode() * 4, socket.SOCK_RAW, number
            )
        )
    for name, kind, number in (
        ("SCTP", socket.SOCK_STREAM, 132),
        ("SCTP by messages", socket.SOCK_SEQPACKET, 132),
        ("DCCP", 6, 33),
    ):
        attempt(f"{name} ({version})", ALL)(
            lambda token, address=address, kind=kind, number=number: joined(address, kind, number, token)
        )
for name, address in {
    "all of this cable": "255.255.255.255",
    "a group": "224.0.0.1",
    "a group of names": "224.0.0.251",
    "a group of IPv6": "ff02::1",
    "a group of the world": "ff0e::1",
    "a cable's broadcast": "45.76.10.255",
    "a private address": "10.0.0.1",
}.items():
    attempt(f"UDP to {name}", ALL)(
        lambda token, address=address: datagram(
            address, 4000, token.encode(), options=[(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)]
        )
    )


def joined(address, kind, number, token):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind, number) as stream:
        stream.settimeout(2)
        stream.connect((address, 80))
        stream.send(token.encode())
        return stream.recv(4096)


def with_option(*option, address="10.0.0.1", port=80):
    def code(token):
        with socket.socket() as stream:
            stream.settimeout(2)
            stream.setsockopt(*option)
            stream.connect((address, port))
            stream.sendall(f"GET /{token} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
            return stream.recv(4096)

    return code


# Options that change where packets go.
attempt("a source route", ALL)(
    with_option(
        socket.IPPROTO_IP, 4, b"\x83\x0b\x04" + socket.inet_aton("45.76.10.1") + socket.inet_aton("10.0.0.1") + b"\0"
    )
)
attempt("a socket bound to a device", ALL)(with_option(socket.SOL_SOCKET, 25, b"machine0\0"))
attempt("a socket bound to loopback's device", ALL)(with_option(socket.SOL_SOCKET, 25, b"lo\0"))
attempt("a mark on packets", ALL)(with_option(socket.SOL_SOCKET, 36, 1))
attempt("a transparent socket", ALL)(with_option(socket.IPPROTO_IP, 19, 1))
attempt("a socket that does not ask routes", ALL)(with_option(socket.SOL_SOCKET, 5, 1))
attempt("another interface for packets", ALL)(with_option(socket.IPPROTO_IP, 50, struct.pack("!I", 1)))


@attempt("data in the first packet (fast open)", ALL)
def fast_open(token):
    with socket.socket() as stream:
        stream.settimeout(2)
        stream.sendto(f"GET /{token} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), socket.MSG_FASTOPEN, ("10.0.0.1", 80))
        return stream.recv(4096)


@attempt("urgent data", OPEN, only("93.184.215.14"))
def urgent(token):
    with socket.create_connection(("93.184.215.14", 80), 3) as stream:
        stream.send(token[:4].encode(), socket.MSG_OOB)
        stream.sendall(f"GET /{token} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return stream.recv(4096)


@attempt("several paths (MPTCP)", ALL)
def several(token):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as stream:
        stream.settimeout(2)
        stream.connect(("10.0.0.1", 80))
        stream.sendall(f"GET /{token} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return stream.recv(4096)


@attempt("extension headers of IPv6", ALL)
def extended(token):
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sender:
        sender.settimeout(1)
        route = b"\0\x02\0\x01\0\0\0\0" + socket.inet_pton(socket.AF_INET6, "2606:2800:21f:cb07::14")
        sender.sendmsg([token.encode()], [(socket.IPPROTO_IPV6, 57, route)], 0, ("fd00::1", 4000))
        return sender.recv(100)


@attempt("hop-by-hop options of IPv6", ALL)
def hops(token):
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sender:
        sender.settimeout(1)
        sender.sendmsg([token.encode()], [(socket.IPPROTO_IPV6, 54, b"\0\0\x01\x04\0\0\0\0")], 0, ("fd00::1", 4000))
        return sender.recv(100)


@attempt("packets as they are", ALL)
def packets(token):
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as sender:
        sender.bind(("lo", 0))
        return str(sender.send(b"\xff" * 12 + b"\x08\0" + token.encode()))


@attempt("a piece of a datagram", ALL)
def pieces(token):
    return datagram("93.184.215.14", 4000, token.encode() * 1000)


for number, name in {
    38: "AF_ALG",
    40: "AF_VSOCK",
    44: "AF_XDP",
    31: "AF_BLUETOOTH",
    29: "AF_CAN",
    30: "AF_TIPC",
    21: "AF_RDS",
    4: "AF_IPX",
    5: "AF_APPLETALK",
    41: "AF_KCM",
    43: "AF_SMC",
}.items():

    def family(token, number=number):
        with socket.socket(
            number,
            (
                socket.SOCK_DGRAM
                if number in (5, 4)
                else socket.SOCK_SEQPACKET if number in (38, 21) else socket.SOCK_STREAM
            ),
        ):
            return "made"

    attempt(f"a socket of {name}", ALL)(family)
