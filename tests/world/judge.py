"""Decides by what arrived, never by what an attempt believes."""

import ipaddress
import re

import places

REGISTRIES = (
    "pypi.org",
    "files.pythonhosted.org",
    "registry.npmjs.org",
    "index.crates.io",
    "static.crates.io",
    "deb.debian.org",
)
_ANSWER = re.compile(places.REACHED + r" (\w+) (\S+):(\d+) host=(\S*)")


def verdict(row, level, token, answer, arrived):
    """Why a row failed; nothing if it is as expected. `arrived` is all that holds its token."""
    expected = row.expected
    for entry in arrived:
        wrong = _misplaced(entry, expected, level)
        if wrong:
            return f"arrived where it may not: {wrong}"
    for place, address, _, hosts in _ANSWER.findall(answer):
        if not _allowed_address(address, place, expected):
            return f"was answered by {address} of the {place} as {hosts}"
    if not expected.where and places.REACHED in answer:
        return f"got through: {answer[:300]}"
    if expected.must and not any(entry["kind"] in ("request", "bytes") for entry in arrived):
        return f"did not arrive: {answer[:300]!r}"
    if expected.must and places.REACHED not in answer:
        return f"arrived, and its answer did not come back: {answer[:300]!r}"
    return None


def _misplaced(entry, expected, level):
    kind, address = entry["kind"], entry["address"]
    if kind == "dns":
        name = entry["name"].rstrip(".")
        known = address == places.NAME_SERVER and any(_beneath(name, allowed) for allowed in expected.where)
        return None if known else f"a question for {name} to {address}"
    if kind == "datagram":
        return f"a datagram to port {entry['port']}"
    if not _allowed_address(address, entry.get("place", "world"), expected):
        return f"{kind} to {address}:{entry['port']} of the {entry.get('place', 'world')}: {entry['data'][:100]!r}"
    for host in entry.get("hosts", []):
        if not _allowed_host(host, expected, level):
            return f"a request for {host!r} at {address}:{entry['port']}"
    return None


def _allowed_address(address, place, expected):
    address = address.removeprefix("::ffff:") if "." in address else address
    if (place == "machine") != expected.machine:
        return False
    if expected.machine:
        return address in ("127.0.0.1", "::1")
    return any(address in places.PUBLIC.get(where, (where,)) for where in expected.where)


def _allowed_host(host, expected, level):
    name = re.sub(r":\d+$", "", host).lower().rstrip(".")
    if level == "yolo-2" and name in REGISTRIES:
        return False
    by_name = [where for where in expected.where if not _is_address(where)]
    return not by_name or any(_beneath(name, where) for where in by_name)


def _beneath(name, parent):
    return name == parent or name.endswith("." + parent)


def _is_address(text):
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


# What may come out of the machine at all while a sandbox of a level is the only one: (port, address) of TCP.
def strays(level, entries):
    """Whatever left the machine, or came to it, that no sandbox of this level may cause, with or without a token."""
    found = set()
    for entry in entries:
        address, port = entry["address"], entry["port"]
        if entry["kind"] == "connection" and entry.get("place") == "machine":
            if (level, port) != ("host-port", places.LOOPBACK_PORT) or address not in ("127.0.0.1", "::1"):
                found.add(f"a connection to {address}:{port} of the machine")
        elif entry["kind"] == "packet" and not _may_leave(level, address, port):
            found.add(f"a packet to {address}, {_in_words(port)}")
        elif (
            entry["kind"] == "dns" and level in ("named", "build", "yolo-1") and not _may_be_asked(level, entry["name"])
        ):
            found.add(f"a question for {entry['name']}")
    return sorted(found)


def _in_words(port):
    return f"TCP port {port}" if port > 0 else f"protocol {-port}" if port > -1000 else f"UDP port {-port - 1000}"


def _may_be_asked(level, name):
    # The last is how the machine learns of translators in its own network (RFC 7050), whatever a sandbox does.
    allowed = {"named": ("good.test",), "build": (*REGISTRIES, "github.com"), "yolo-1": ()}[level] + ("ipv4only.arpa",)
    return any(_beneath(name.rstrip("."), parent) for parent in allowed)


def _may_leave(level, address, port):
    if address == places.NAME_SERVER and port in (53, -1053):
        return level != "yolo-1"
    if level in ("yolo-1", "host-port-alone"):
        return False
    if level == "named":
        return (
            address in (*places.GOOD, places.BLACK_HOLE)
            and port in (80, 443)
            or (address, port) == (places.GOOD_ADDRESS, 80)
        )
    if level == "build":
        return address in places.REGISTRY and port in (80, 443) or address in places.CODE_HOST and port in (80, 443, 22)
    public = (
        ipaddress.ip_address(address).is_global and address != "168.63.129.16" and not address.startswith("64:ff9b:")
    )
    return public and (port > 0 if level in ("development", "verified") else port in (80, 443))
