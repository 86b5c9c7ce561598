"""Ways to say something to somebody, from inside a sandbox: through the proxy, redirected, in pieces, and wrongly."""

import os
import socket
import struct
import time

PROXY = ("127.0.0.1", 3128)
SECONDS = 4


def request(host, token, path="/", more=""):
    return f"GET {path}{token} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n".encode("latin-1")


def connect(address, port):
    return socket.create_connection((address, port), SECONDS)


def say(stream, data, seconds=SECONDS):
    """Says it, and hears what comes back until the other side ends or is silent."""
    stream.settimeout(seconds)
    heard = b""
    try:
        parts = data if isinstance(data, list) else [data]
        for part in parts:
            stream.sendall(part)
            # A few parts are meant to be seen one by one; many are only small.
            time.sleep(0.3 if 1 < len(parts) < 5 else 0)
        while len(heard) < 65536:
            part = stream.recv(65536)
            if not part:
                break
            heard += part
    except TimeoutError:
        heard += b" [silence]"
    except OSError as error:
        heard += f" [{error}]".encode()
    finally:
        stream.close()
    return heard


def direct(address, port, data):
    """As a program that knows no proxy."""
    return say(connect(address, port), data)


def bracketed(address):
    return f"[{address}]" if ":" in address else address


def tunnel(authority):
    """Asks the proxy for a tunnel: the stream, and what the proxy said."""
    stream = connect(*PROXY)
    if isinstance(authority, str):
        authority = authority.encode()
    stream.sendall(b"CONNECT " + authority + b" HTTP/1.1\r\nHost: " + authority + b"\r\n\r\n")
    head = b""
    while b"\r\n\r\n" not in head and (part := stream.recv(4096)):
        head += part
    return stream, head


def by_connect(authority, data):
    stream, head = tunnel(authority)
    if b" 200" not in head.split(b"\r\n")[0]:
        stream.close()
        return head
    return say(stream, data)


def by_proxy(data):
    """Bytes for the proxy as they are."""
    return say(connect(*PROXY), data)


def whole_address(url, token, host=None, more=""):
    """A request for a whole address, as proxies get them."""
    said = f"Host: {host}\r\n" if host is not None else ""
    return by_proxy(
        f"GET {url}{token} HTTP/1.1\r\n{said}{more}Connection: close\r\n\r\n".encode("utf-8", "surrogateescape")
    )


def socks_address(host):
    """The kinds of SOCKS5: 1 and 4 for addresses, 3 for whatever is said to be a name."""
    if isinstance(host, bytes):
        return b"\x03" + bytes([len(host)]) + host
    try:
        return b"\x01" + socket.inet_pton(socket.AF_INET, host)
    except OSError:
        return b"\x04" + socket.inet_pton(socket.AF_INET6, host)


def by_socks(host, port, data, command=1):
    stream = connect(*PROXY)
    stream.sendall(b"\x05\x01\x00")
    if stream.recv(2) != b"\x05\x00":
        return b"not welcome"
    stream.sendall(b"\x05" + bytes([command]) + b"\x00" + socks_address(host) + struct.pack("!H", port))
    answer = stream.recv(10)
    if answer[1:2] != b"\x00":
        stream.close()
        return b"refused " + answer
    return say(stream, data)


def datagram(address, port, data, kind=socket.SOCK_DGRAM, protocol=0, options=()):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, kind, protocol) as sender:
        sender.settimeout(1)
        for option in options:
            sender.setsockopt(*option)
        sender.sendto(data, (address, port))
        return sender.recv(4096)


def question(name, kind, number=None):
    labels = name if isinstance(name, list) else [part.encode() for part in name.split(".")]
    body = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return (number or os.urandom(2)) + b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + body + struct.pack("!HH", kind, 1)


def ask(server, name, kind=1, port=53):
    """A question for a name; the answer as it came."""
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.settimeout(2)
        asking.sendto(question(name, kind), (server, port))
        return asking.recv(4096)


def ask_over_stream(server, name, kind=1, port=53):
    message = question(name, kind)
    return direct(server, port, struct.pack("!H", len(message)) + message)


def resolved(name):
    """The address that a program that knows no proxy gets."""
    return socket.getaddrinfo(name, 80, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]


def server_name(*names):
    """The extension of a TLS hello that names servers."""
    listed = b"".join(b"\0" + struct.pack("!H", len(name)) + name for name in names)
    listed = struct.pack("!H", len(listed)) + listed
    return extension(0, listed)


def extension(kind, content):
    return struct.pack("!HH", kind, len(content)) + content


def hello(token, *extensions, pieces=1):
    """A TLS hello made by hand. The token is where a client puts its random bytes, so it arrives with any hello."""
    offered = struct.pack("!HHHH", 0x1301, 0x1302, 0xC02F, 0xC030)
    usual = [
        extension(10, b"\0\x04\0\x1d\0\x17"),
        extension(13, b"\0\x04\x04\x03\x08\x04"),
        extension(43, b"\x02\x03\x04"),
    ]
    listed = b"".join([*extensions, *usual])
    body = b"\x03\x03" + token.encode() + token.encode() + b"\0" + struct.pack("!H", len(offered)) + offered + b"\x01\0"
    body += struct.pack("!H", len(listed)) + listed
    message = b"\x01" + struct.pack("!I", len(body))[1:] + body
    size = -(-len(message) // pieces)
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + struct.pack("!H", len(part)) + part for part in parts)
