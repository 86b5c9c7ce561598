"""The hostile name server: names that lead inside, change their mind, chain, or say too much."""

import ipaddress
import itertools
import socket
import struct
import threading

import places

A, CNAME, AAAA = 1, 5, 28
_turns = {}
_lock = threading.Lock()


def serve(journal):
    for family, anywhere in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        datagrams = socket.socket(family, socket.SOCK_DGRAM)
        if family == socket.AF_INET6:
            datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        else:
            datagrams.setsockopt(socket.IPPROTO_IP, 8, 1)  # IP_PKTINFO
        datagrams.bind((anywhere, 53))
        threading.Thread(target=_datagrams, args=(datagrams, journal), daemon=True).start()


def _datagrams(server, journal):
    while True:
        data, about, _, sender = server.recvmsg(4096, 256)
        to = next((_destination(value) for _, _, value in about), "?")
        reply = answer(data, to, journal)
        if reply and len(reply) > 1232:
            reply = reply[:2] + struct.pack("!H", 0x8780) + reply[4:6] + b"\0\0\0\0\0\0" + _question(data)[3]
        if reply:
            # From the address that was asked, or the asker takes it for somebody else's.
            kept = [(level, kind, _as_source(value)) for level, kind, value in about]
            server.sendmsg([reply], kept, 0, sender)


def _destination(value):
    return str(ipaddress.ip_address(value[8:12] if len(value) == 12 else value[:16]))


def _as_source(value):
    return struct.pack("I4s4s", 0, value[8:12], b"\0" * 4) if len(value) == 12 else value


def over_stream(stream, journal):
    """The same over TCP, for answers that are too long."""
    to = stream.getsockname()[0]
    file = stream.makefile("rb")
    while len(head := file.read(2)) == 2:
        data = file.read(struct.unpack("!H", head)[0])
        reply = answer(data, to, journal)
        if not reply:
            return
        stream.sendall(struct.pack("!H", len(reply)) + reply)


def _question(data):
    labels, at = [], 12
    while data[at]:
        labels.append(data[at + 1 : at + 1 + data[at]])
        at += 1 + data[at]
    kind = struct.unpack("!H", data[at + 1 : at + 3])[0]
    return b".".join(labels), kind, labels, data[12 : at + 5]


def answer(data, to, journal):
    try:
        raw, kind, _, question = _question(data)
    except (IndexError, struct.error):
        journal.write("dns", to, 53, data, name="")
        return None
    journal.write("dns", to, 53, raw, name=raw.decode("latin-1").lower(), question=kind)
    records = list(_records(raw.decode("latin-1").lower(), kind))
    code = 0 if records is not None else 3
    body = b"".join(_record(*record) for record in records)
    return data[:2] + struct.pack("!HHHHH", 0x8180 | code, 1, len(records), 0, 0) + question + body


def _record(name, kind, value, lifetime):
    if kind == CNAME:
        value = _name(value)
    else:
        value = ipaddress.ip_address(value).packed
    return _name(name) + struct.pack("!HHIH", kind, 1, lifetime, len(value)) + value


def _name(name):
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def _records(name, kind):
    """Lines of name, kind, value, lifetime."""
    lifetime = 0
    if name.startswith("chain.good.test"):
        yield name, CNAME, "inner.corp.test", lifetime
        name = "inner.corp.test"
    elif name.startswith("long-chain.good.test"):
        for number in range(6):
            yield name, CNAME, f"n{number}.corp.test", lifetime
            name = f"n{number}.corp.test"
    for address in _addresses(name):
        if kind == (A if ipaddress.ip_address(address).version == 4 else AAAA):
            yield name, kind, address, lifetime


def _addresses(name):
    if name in places.TRAPS:
        return places.TRAPS[name]
    if name.endswith(".corp.test"):
        return ["192.168.0.1", "fd00::1"]
    if name == "mixed.good.test":
        return [places.GOOD[0], "10.0.0.1", "fd00::1", "169.254.169.254"]
    if name == "mixed-private-first.good.test":
        return ["10.0.0.1", "169.254.169.254", places.GOOD[0]]
    if name == "half.good.test":
        return [places.BLACK_HOLE, places.GOOD[0]]
    if name == "huge.good.test":
        return [f"10.0.{high}.{low}" for high in range(4) for low in range(100)] + [places.GOOD[0]]
    if name.endswith("rebind.good.test"):
        # Good and bad in turns; each name has a turn of its own, and A and AAAA are asked together.
        with _lock:
            turn = next(_turns.setdefault(name, itertools.count())) // 2
        return [places.GOOD[0]] if (turn + name.startswith("late")) % 2 == 0 else ["169.254.169.254", "10.0.0.1"]
    for known, addresses in places.PUBLIC.items():
        if name == known or name.endswith("." + known):
            return list(addresses)
    return []
