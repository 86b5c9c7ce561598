"""Traffic that is allowed arrives whole, in both directions, at once and as it was said."""

import base64
import concurrent.futures
import functools
import hashlib
import os
import socket
import ssl
import subprocess

import places
from rows import NAMED, attempt, reaches
from wire import connect, request, resolved, say, tunnel

GOOD = reaches("good.test")
LARGE = 8 << 20
WAYS = {
    "redirected": lambda port: connect(resolved("good.test"), port),
    "by CONNECT": lambda port: tunnel(f"good.test:{port}")[0],
}


@functools.cache
def trusted():
    """Authorities, read once: that takes longer than a connection."""
    return ssl.create_default_context()


def secured(stream):
    return trusted().wrap_socket(stream, server_hostname="good.test")


def heard(stream):
    """Head and body of one answer on a connection that may stay open."""
    file = stream.makefile("rb")
    head = b""
    while (line := file.readline()) not in (b"\r\n", b""):
        head += line
    length = next(
        (int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-length:")), 0
    )
    return head, file.read(length)


def fine(good, why):
    return places.REACHED if good else f"wrong: {why!r}"


def download(open_one):
    def code(token):
        stream = open_one()
        stream.sendall(request("good.test", token, "/large/"))
        _, body = heard(stream)
        return fine(len(body) == LARGE, len(body))

    return code


def upload(open_one):
    def code(token):
        stream, body = open_one(), os.urandom(LARGE)
        stream.sendall(
            f"POST /digest/{token} HTTP/1.1\r\nHost: good.test\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
            + body
        )
        _, answer = heard(stream)
        return fine(hashlib.sha256(body).hexdigest().encode() in answer, answer[:200])

    return code


def upload_in_chunks(open_one):
    def code(token):
        stream, parts = open_one(), [os.urandom(1 + number * 37) for number in range(300)]
        stream.sendall(
            f"POST /digest/{token} HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode()
        )
        for part in parts:
            stream.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        stream.sendall(b"0\r\n\r\n")
        _, answer = heard(stream)
        return fine(hashlib.sha256(b"".join(parts)).hexdigest().encode() in answer, answer[:200])

    return code


def piece_by_piece(open_one):
    """What a server sends now arrives now: it says the second sentence only when it hears that the first has come."""

    def code(token):
        stream = open_one()
        stream.settimeout(15)
        stream.sendall(request("good.test", token, "/events/"))
        file = stream.makefile("rb")
        while b"first" not in (line := file.readline()) and line:
            pass
        say(open_one(), request("good.test", token, "/heard/"))
        rest = file.read()
        return fine(b"second" in rest, line + rest)

    return code


def kept_open(open_one):
    def code(token):
        stream, answers = open_one(), 0
        for number in range(20):
            stream.sendall(f"GET /{token}-{number} HTTP/1.1\r\nHost: good.test\r\n\r\n".encode())
            answers += places.REACHED.encode() in heard(stream)[1]
        return fine(answers == 20, answers)

    return code


def half_closed(open_one):
    def code(token):
        stream = open_one()
        stream.settimeout(8)
        stream.sendall(request("good.test", token))
        stream.shutdown(socket.SHUT_WR)
        return stream.makefile("rb").read()

    return code


def without_length(open_one):
    def code(token):
        stream = open_one()
        return say(stream, request("good.test", token, "/no-length/"))

    return code


def only_head(open_one):
    def code(token):
        stream = open_one()
        stream.sendall(f"HEAD /{token} HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n".encode())
        answer = stream.makefile("rb").read()
        return fine(b" 200 " in answer and answer.endswith(b"\r\n\r\n"), answer)

    return code


def long_head(open_one):
    def code(token):
        return say(
            open_one(),
            request("good.test", token, more="".join(f"X-Long-{number}: {'y' * 400}\r\n" for number in range(60))),
        )

    return code


def many_at_once(open_one):
    def one(number, token):
        return places.REACHED.encode() in say(open_one(), request("good.test", f"{token}-{number}"))

    def code(token):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            good = sum(pool.map(lambda number: one(number, token), range(60)))
        return fine(good == 60, good)

    return code


KINDS = {
    "a large answer": download,
    "a large request": upload,
    "a request in chunks": upload_in_chunks,
    "events as they come": piece_by_piece,
    "many requests on one connection": kept_open,
    "a request and then no more": half_closed,
    "an answer without a length": without_length,
    "only the head": only_head,
    "a long head": long_head,
    "sixty connections": many_at_once,
}
for way, open_one in WAYS.items():
    for name, kind in KINDS.items():
        attempt(f"allowed: {name}, {way}", NAMED, GOOD)(kind(lambda open_one=open_one: open_one(80)))
        # What ends by closing one direction has no such thing in TLS.
        if name not in ("a request and then no more",):
            attempt(f"allowed: {name}, {way} over TLS", NAMED, GOOD)(
                kind(lambda open_one=open_one: secured(open_one(443)))
            )


def web_socket(open_one):
    """TLS is not looked into, so what is agreed on within it is its own."""

    def code(token):
        stream = secured(open_one(443))
        key = base64.b64encode(os.urandom(16)).decode()
        stream.sendall(
            f"GET /websocket/{token} HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        file = stream.makefile("rb")
        while (line := file.readline()) not in (b"\r\n", b""):
            pass
        stream.sendall(b"\x81\x85\0\0\0\0hello")
        return fine(file.read(7) == b"\x81\x05hello", line)

    return code


for way, open_one in WAYS.items():
    attempt(f"allowed: WebSocket, {way} over TLS", NAMED, GOOD)(web_socket(open_one))
for name, words in {
    "with an announced body": ["-H", "Expect: 100-continue", "--data-binary", "@/tmp/body"],
    "with a form": ["-F", "file=@/tmp/body"],
    "with HTTP/1.0": ["--http1.0"],
    "by SOCKS": ["--proxy", "socks5h://127.0.0.1:3128"],
    "by SOCKS with its own addresses": ["--proxy", "socks5://127.0.0.1:3128"],
    "compressed": ["--compressed"],
    "with a password": ["-u", "user:secret"],
}.items():
    for scheme in ("http", "https"):

        def curl(token, words=words, scheme=scheme):
            if not os.path.exists("/tmp/body"):
                with open("/tmp/body", "wb") as file:
                    file.write(bytes(1 << 20))
            return subprocess.run(
                ["curl", "-sS", "--max-time", "9", *words, f"{scheme}://good.test/{token}"], capture_output=True
            ).stdout

        attempt(f"allowed: curl {name} over {scheme}", NAMED, GOOD)(curl)
