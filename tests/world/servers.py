"""Servers on every address of the world. They write down every byte, and take what other servers would refuse."""

import io
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler

import names
import places
import sites

# One server for all of these: what comes first tells what it is.
PORTS = [21, 25, 53, 80, 123, 443, 853, 993, 1080, 3128, 3129, 3153, 3306, 4000, 5353, 8000, 8001, 8080, 8443, 9418]
DATAGRAM_PORTS = [67, 123, 443, 500, 1900, 3129, 3153, 3478, 4000, 4433, 5353, 8000, 51820]
# Once a request was answered wrongly, what follows it on the same connection is still wanted.
LINGER = 1.5
_HEARD = {}


def serve(journal, context, ports=PORTS, datagrams=DATAGRAM_PORTS, addresses=("0.0.0.0", "::"), place="world"):
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        for port in ports:
            listener = socket.socket(family)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address, port))
            listener.listen(512)
            threading.Thread(target=_accept, args=(listener, journal, context, place), daemon=True).start()
        for port in datagrams:
            server = socket.socket(family, socket.SOCK_DGRAM)
            if family == socket.AF_INET6:
                server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            server.bind((address, port))
            threading.Thread(target=_datagrams, args=(server, journal, place), daemon=True).start()


def _datagrams(server, journal, place):
    while True:
        data, sender = server.recvfrom(65535)
        journal.write("datagram", "any", server.getsockname()[1], data, place=place)
        server.sendto(places.REACHED.encode(), sender)


def _accept(listener, journal, context, place):
    while True:
        stream, _ = listener.accept()
        threading.Thread(target=_serve_safely, args=(stream, journal, context, place), daemon=True).start()


def _serve_safely(stream, journal, context, place):
    address, port = stream.getsockname()[:2]
    journal.write("connection", address.removeprefix("::ffff:"), port, place=place)
    try:
        stream.settimeout(60)
        _serve(stream, journal, context, place, address, port)
    except (OSError, ValueError):
        pass
    finally:
        stream.close()


def _serve(stream, journal, context, place, address, port):
    if port == 53:
        return names.over_stream(stream, journal)
    if port in (4000, 9418):
        stream.sendall(places.REACHED.encode() + b"\r\n")
    first = stream.recv(5, socket.MSG_PEEK)
    if first[:1] == b"\x16":
        hello = stream.recv(16384, socket.MSG_PEEK)
        journal.write("bytes", address, port, hello, place=place)
        stream = context.wrap_socket(stream, server_side=True)
    Site(stream, journal, place, address, port).handle_all()


def _heard(path):
    """What one who listens to events, and one who says that they came, have in common."""
    return _HEARD.setdefault(path.split("/")[2], threading.Event())


class Tee(io.RawIOBase):
    """Whatever is read is written down first."""

    def __init__(self, stream, note):
        self.stream, self.note = stream, note

    def readable(self):
        return True

    def readinto(self, buffer):
        data = self.stream.recv(len(buffer))
        buffer[: len(data)] = data
        if data:
            self.note(data)
        return len(data)


class Site(BaseHTTPRequestHandler):
    """A web server for whoever is named."""

    protocol_version = "HTTP/1.1"

    def __init__(self, stream, journal, place, address, port):
        self.connection = self.request = stream
        self.journal, self.place, self.address, self.port = journal, place, address, port
        self.client_address = stream.getpeername()
        self.rfile = io.BufferedReader(Tee(stream, lambda data: self.note("bytes", data)))
        self.wfile = stream.makefile("wb", 0)
        self.close_connection = False

    def note(self, kind, data, **more):
        self.journal.write(kind, self.address, self.port, data, place=self.place, **more)

    def handle_all(self):
        while not self.close_connection:
            self.close_connection = True
            self.handle_one_request()
        if isinstance(self.connection, ssl.SSLSocket):
            return self.end_tls()
        # What comes now comes to nobody, but it came.
        self.connection.shutdown(socket.SHUT_WR)
        self.connection.settimeout(LINGER)
        while self.rfile.read1(65536):
            pass

    def end_tls(self):
        """In order, but whoever does not answer to that is not waited for."""
        self.connection.settimeout(0.2)
        try:
            self.connection.unwrap()
        except OSError:
            pass
        self.connection.shutdown(socket.SHUT_RDWR)

    def answer(self):
        hosts = self.headers.get_all("Host") or [""]
        secure = isinstance(self.connection, ssl.SSLSocket)
        body = self.body()
        self.note("request", f"{self.command} {self.path}".encode() + body[:2000], hosts=hosts)
        if self.special():
            return
        status, headers, content = sites.respond(
            hosts[0].split(":")[0].lower().rstrip("."), self.command, self.path, self.headers, body, secure
        )
        if status is None:
            content = f"{places.REACHED} {self.place} {self.address}:{self.port} host={','.join(hosts)}\n".encode()
            status, headers = 200, {}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.connection.sendall(content)

    def special(self):
        """Answers that are more than a head and a body; true if it was one."""
        kind = self.path.split("/")[1]
        if kind == "heard":
            _heard(self.path).set()
        if kind not in ("events", "no-length", "websocket"):
            return False
        self.close_connection = True
        if kind == "websocket":
            self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
            head = self.rfile.read(6)
            self.wfile.write(head[:1] + bytes([head[1] & 127]) + self.rfile.read(head[1] & 127))
            return True
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        self.wfile.write(f"data: first {places.REACHED}\n\n".encode())
        if kind == "events" and _heard(self.path).wait(8):
            self.wfile.write(b"data: second\n\n")
        return True

    def body(self):
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            content = b""
            while size := int(self.rfile.readline().split(b";")[0].strip() or b"0", 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return content
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def log_message(self, *_):
        pass

    do_GET = do_HEAD = do_POST = do_PUT = do_OPTIONS = do_CONNECT = do_DELETE = answer
