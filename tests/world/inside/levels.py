"""What is different from policy to policy: ports, registries, redirects by servers, the machine's ports by name."""

import subprocess
import urllib.parse

import places
from rows import BUILD, NAMED, OPEN, PUBLIC, WEB, Expected, attempt, only, reaches
from wire import by_connect, by_socks, connect, direct, request, resolved, say, whole_address

WAYS = {
    "redirected": lambda name, port, token: direct(resolved(name), port, request(name, token)),
    "by CONNECT": lambda name, port, token: by_connect(f"{name}:{port}", request(name, token)),
    "by a whole address": lambda name, port, token: whole_address(f"http://{name}:{port}/", token, f"{name}:{port}"),
    "by SOCKS": lambda name, port, token: by_socks(name.encode(), port, request(name, token)),
}


def to(way, name, port):
    return lambda token: WAYS[way](name, port, token)


REGISTRIES = [
    "pypi.org",
    "files.pythonhosted.org",
    "registry.npmjs.org",
    "index.crates.io",
    "static.crates.io",
    "deb.debian.org",
]
for way in WAYS:
    for port in (21, 25, 853, 3306, 8080, 8443):
        attempt(f"port {port} of good.test {way}", NAMED + WEB + BUILD)(to(way, "good.test", port))
        attempt(f"port {port} of a public server {way}", PUBLIC, reaches("good.test"))(to(way, "good.test", port))
    for name in REGISTRIES:
        attempt(f"the registry {name} {way}", ("yolo-2",))(to(way, name, 80))
        attempt(f"the registry {name.upper()}. {way}", ("yolo-2",))(to(way, name.upper() + ".", 80))
        attempt(f"the registry {name}, where it is allowed, {way}", ("yolo-3",) + BUILD, reaches(name))(
            to(way, name, 80)
        )
        attempt(f"port 8080 of the registry {name} {way}", NAMED + WEB + BUILD)(to(way, name, 8080))
    attempt(f"a code host {way}", WEB + BUILD + PUBLIC, reaches("github.com"))(to(way, "github.com", 80))
    for name in ("evil.test", "good.test", "pypi.org.evil.test", "evilpypi.org", "github.com.evil.test", "dns.google"):
        attempt(f"{name}, which is no registry, {way}", BUILD)(to(way, name, 80))
    # The machine's ports, for a policy that has one of them.
    attempt(
        f"a port of the machine that is allowed {way}",
        ("host-port",),
        Expected(("host.internal",), must=True, machine=True),
    )(to(way, "host.internal", places.LOOPBACK_PORT))
    for name, port in (
        ("host.internal", 8001),
        ("host.internal", 80),
        ("127.0.0.1", places.LOOPBACK_PORT),
        ("loopback.good.test", places.LOOPBACK_PORT),
        (places.MACHINE_V4, 8001),
        ("own.good.test", 8001),
        ("x.host.internal", places.LOOPBACK_PORT),
    ):
        if (way, name) != ("redirected", "127.0.0.1"):
            attempt(f"{name}:{port}, which is not the port of the machine that is allowed, {way}", ("host-port",))(
                to(way, name, port)
            )


@attempt("a server that speaks first, redirected", PUBLIC, reaches("good.test"))
def speaks_first(token):
    stream = connect(resolved("good.test"), 4000)
    greeting = stream.recv(100)
    return greeting + say(stream, [f"EHLO {token}\r\n".encode(), b"QUIT\r\n"], 1)


def followed(target, variables):
    def code(token):
        there = urllib.parse.quote(target + token, safe="")
        words = ["curl", "-sS", "-L", "--max-time", "6", f"http://good.test/redirect/{there}"]
        return subprocess.run(words, capture_output=True, env=variables).stdout

    return code


for target in (
    "http://169.254.169.254/",
    "http://10.0.0.1/",
    "http://127.0.0.1:8000/",
    f"http://{places.MACHINE_V4}/",
    "http://[fd00::1]/",
    "http://private.good.test/",
    "http://0x0a000001/",
):
    for how, variables in (("with the proxy", None), ("without the proxy", {})):
        attempt(f"a server that sends on to {target} {how}", NAMED + OPEN, only("good.test"))(
            followed(target, variables)
        )
for how, variables in (("with the proxy", None), ("without the proxy", {})):
    attempt(f"a server that sends on to another name {how}", NAMED, only("good.test"))(
        followed("http://evil.test/", variables)
    )
    attempt(f"a server that sends on to an allowed name {how}", NAMED + OPEN, reaches("good.test"))(
        followed("http://www.good.test/", variables)
    )
