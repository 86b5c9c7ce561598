"""TLS whose hello names another server, nobody, or somebody whom only the far end can read."""

import socket
import ssl

from rows import NAMED, OPEN, WEB, attempt, only, reaches
from wire import by_connect, by_socks, connect, direct, extension, hello, request, resolved, say, server_name, tunnel

OUTER = extension(0xFE0D, b"\0" + b"\0\x01\0\x01" + b"\x07" + b"\0\x20" + b"k" * 32 + b"\0\x40" + b"e" * 64)

HELLOS = {
    "a hello for another server": lambda t: hello(t, server_name(b"evil.test")),
    "a hello for nobody": lambda t: hello(t),
    "a hello with an empty name": lambda t: hello(t, server_name(b"")),
    "a hello with an empty list": lambda t: hello(t, extension(0, b"\0\0")),
    "a hello with a hidden name": lambda t: hello(t, server_name(b"good.test"), OUTER),
    "a hello with a hidden name alone": lambda t: hello(t, OUTER),
    "a hello with two names": lambda t: hello(t, server_name(b"good.test", b"evil.test")),
    "a hello with two lists of names": lambda t: hello(t, server_name(b"good.test"), server_name(b"evil.test")),
    "a hello with NUL in its name": lambda t: hello(t, server_name(b"good.test\0.evil.test")),
    "a hello with another name after NUL": lambda t: hello(t, server_name(b"evil.test\0.good.test")),
    "a hello with a line break in its name": lambda t: hello(t, server_name(b"good.test\r\nevil.test")),
    "a hello with an address as name": lambda t: hello(t, server_name(b"185.199.66.6")),
    "a hello with a look-alike": lambda t: hello(t, server_name("ｇood.test".encode())),
    "a hello for another server, in pieces": lambda t: hello(t, server_name(b"evil.test"), pieces=7),
    "a hello for nobody, byte by byte": lambda t: [bytes([byte]) for byte in hello(t)],
    "a hello that never ends": lambda t: hello(t, server_name(b"evil.test"))[:-1],
    "a hello of SSL 2": lambda t: b"\x80\x2e\x01\x03\x01\0\x15\0\0\0\x10\x01\0\x80\x03\0\x80\x07\0\xc0"
    + b"\0\0/\0\0\x04\0\0\x05\0\0\n"
    + t.encode(),
    "an alert before a hello": lambda t: b"\x15\x03\x01\0\x02\x01\x64" + hello(t, server_name(b"evil.test")),
    "an empty record before a hello": lambda t: b"\x16\x03\x01\0\0" + hello(t, server_name(b"evil.test")),
    "a hello with another version": lambda t: hello(t, server_name(b"evil.test")).replace(b"\x16\x03", b"\x16\x02", 1),
    "a wrong length of the list of names": lambda t: hello(t, extension(0, b"\0\x20\0\0\x09evil.test")),
}
for name, data in HELLOS.items():
    attempt(f"{name}, by CONNECT", NAMED)(lambda token, data=data: by_connect("good.test:443", data(token)))
    attempt(f"{name}, redirected", NAMED)(lambda token, data=data: direct(resolved("good.test"), 443, data(token)))
    attempt(f"{name}, by SOCKS", NAMED)(lambda token, data=data: by_socks(b"good.test", 443, data(token)))
    attempt(f"{name}, on port 80", NAMED)(lambda token, data=data: direct(resolved("good.test"), 80, data(token)))
attempt("a good hello and then another, by CONNECT", NAMED, only("good.test"))(
    lambda token: by_connect(
        "good.test:443", hello("f" * 16, server_name(b"good.test")) + hello(token, server_name(b"evil.test"))
    )
)
# Where names are only denied, an address may be asked for, but not under a denied name or a hidden one.
for name, data in {
    "a hello for a denied name": lambda t: hello(t, server_name(b"pypi.org")),
    "a hello for nobody": HELLOS["a hello for nobody"],
    "a hello with a hidden name": HELLOS["a hello with a hidden name"],
}.items():
    attempt(f"{name}, to an address of the web without registries", ("yolo-2",))(
        lambda token, data=data: direct("151.101.0.223", 443, data(token))
    )
    attempt(f"{name}, to an address of the web without registries by CONNECT", ("yolo-2",))(
        lambda token, data=data: by_connect("151.101.0.223:443", data(token))
    )


def talk(stream, name, token):
    context = ssl.create_default_context()
    return say(context.wrap_socket(stream, server_hostname=name), request(name, token))


def by_tunnel(token):
    return talk(tunnel("good.test:443")[0], "good.test", token)


attempt("TLS with an allowed server by CONNECT", NAMED + OPEN, reaches("good.test"))(by_tunnel)
attempt("TLS with an allowed server, redirected", NAMED + OPEN, reaches("good.test"))(
    lambda token: talk(connect("good.test", 443), "good.test", token)
)
attempt("TLS with an allowed server, redirected over IPv6", NAMED + OPEN, reaches("good.test"))(
    lambda token: talk(connect(socket.getaddrinfo("good.test", 443, socket.AF_INET6)[0][4][0], 443), "good.test", token)
)
attempt("TLS with an address", WEB[1:], reaches("93.184.215.14"))(
    lambda token: talk(connect("93.184.215.14", 443), "good.test", token)
)
