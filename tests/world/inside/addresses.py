"""Addresses where nobody may go, in every way and every spelling."""

import places
from rows import NAMED, OPEN, BUILD, REACHING, attempt, reaches
from wire import bracketed, by_connect, by_socks, direct, request, whole_address

WAYS = {
    "directly": lambda address, port, token: direct(address, port, request(bracketed(address), token)),
    "by CONNECT": lambda address, port, token: by_connect(
        f"{bracketed(address)}:{port}", request(bracketed(address), token)
    ),
    "by a whole address": lambda address, port, token: whole_address(
        f"http://{bracketed(address)}:{port}/", token, bracketed(address)
    ),
    "by SOCKS": lambda address, port, token: by_socks(address, port, request(bracketed(address), token)),
}


def to(way, address, port):
    return lambda token: WAYS[way](address, port, token)


for way in WAYS:
    for address in places.FORBIDDEN:
        # Directly, these are the sandbox itself.
        if way == "directly" and address in ("127.0.0.1", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1"):
            continue
        attempt(f"{address} {way}", REACHING)(to(way, address, 80))
    for port in (places.LOOPBACK_PORT, 8001, 22):
        attempt(f"the machine's port {port} {way}", REACHING)(to(way, "127.0.0.1", port))
    attempt(f"a public address {way}", OPEN, reaches(places.GOOD[0]))(to(way, places.GOOD[0], 80))
    attempt(f"a public address of IPv6 {way}", OPEN, reaches(places.GOOD[1]))(to(way, places.GOOD[1], 80))
    attempt(f"an address without a rule {way}", NAMED + BUILD)(to(way, places.EVIL[0], 80))
    attempt(f"the address of an allowed name {way}", NAMED)(to(way, places.GOOD[0], 80))
    attempt(f"an address with a rule {way}", NAMED, reaches(places.GOOD_ADDRESS))(to(way, places.GOOD_ADDRESS, 80))
    attempt(f"an address with a rule, on another port {way}", NAMED)(to(way, places.GOOD_ADDRESS, 443))

SPELLINGS = [
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "169.254.43518",
    "169.16689150",
    "0xa9.0xfe.0xa9.0xfe",
    "0XA9FEA9FE",
    "10.1",
    "0x0a.1",
    "012.0.0.1",
    "167772161",
    "127.1",
    "0177.1",
    "2130706433",
    "0x7f.1",
    "017700000001",
    "0",
    "00",
    "0x0",
    "169.254.169.254.",
    "10.0.0.1.",
    "127.0.0.1.",
    "１０.0.0.1",
    "①⑥⑨.②⑤④.①⑥⑨.②⑤④",
    "169。254。169。254",
    "10%2e0%2e0%2e1",
    "%31%30.0.0.1",
    "[::ffff:a9fe:a9fe]",
    "[::ffff:169.254.169.254]",
    "[0:0:0:0:0:ffff:0a00:0001]",
    "[::a00:1]",
    "[fe80::1%lo]",
    "[fe80::1%25machine0]",
    "[fe80::1%1]",
    "[::1%1]",
    "[::1%lo]",
    "[::%31]",
    "[64:ff9b::10.0.0.1]",
    "[64:ff9b::169.254.169.254]",
    "[2002:a9fe:a9fe::]",
    "[2001:0:a9fe:a9fe::]",
    "[::ffff:0:10.0.0.1]",
    "[0::1]",
    "localhost",
    "LOCALHOST.",
    "a.localhost",
    "localhost.localdomain",
    "ip6-localhost",
    "localhost6",
    "metadata",
    "metadata.google.internal",
    "instance-data",
]
for spelling in SPELLINGS:
    for port in (
        (80, places.LOOPBACK_PORT)
        if "7" in spelling or "host" in spelling or spelling.strip("[]0x:") in ("", "1")
        else (80,)
    ):
        label = f"{spelling}:{port}"
        attempt(f"written {label} by CONNECT", REACHING)(
            lambda token, label=label: by_connect(label, request("good.test", token))
        )
        attempt(f"written {label} by a whole address", REACHING)(
            lambda token, label=label: whole_address(f"http://{label}/", token, label)
        )
    name = spelling.strip("[]").encode()
    attempt(f"written {spelling} by SOCKS", REACHING)(
        lambda token, name=name: by_socks(name, 80, request("good.test", token))
    )
    if "[" not in spelling:
        attempt(f"written {spelling}, asked for as a name", NAMED)(
            lambda token, name=spelling: direct(name, 80, request(name, token))
        )
