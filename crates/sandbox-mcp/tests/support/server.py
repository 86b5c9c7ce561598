"""A web server that runs inside a sandbox and tells what reaches it."""
import base64, hashlib, json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

go_on = threading.Event()
asked = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, content, headers=()):
        self.send_response(200)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        asked.append(self.path)
        if self.path == "/headers":
            self.answer(json.dumps([self.command, self.path, self.headers.items()]).encode())
        elif self.path == "/asked":
            self.answer(json.dumps(asked).encode())
        elif self.path == "/connection":
            self.answer(str(self.client_address[1]).encode())
        elif self.path == "/cookies":
            names = [("Set-Cookie", "mine=1; Domain=localhost; Path=/"), ("Set-Cookie", "sandbox_mcp_session=forged"),
                     ("Set-Cookie", "__Host-sandbox-mcp=forged; Secure"), ("Strict-Transport-Security", "max-age=9"),
                     ("Clear-Site-Data", '"*"'), ("X-Mine", "kept")]
            self.answer(b"set", names)
        elif self.path == "/slowly":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"5\r\nfirst\r\n")
            go_on.wait(30)
            self.wfile.write(b"6\r\nsecond\r\n0\r\n\r\n")
        elif self.path == "/go-on":
            go_on.set()
            self.answer(b"")
        elif self.path == "/echo":
            self.echo()
        else:
            self.send_error(404)

    def do_POST(self):
        digest, left = hashlib.sha256(), int(self.headers.get("Content-Length", 0))
        while left:
            piece = self.rfile.read(min(left, 65536))
            digest.update(piece)
            left -= len(piece)
        self.answer(digest.hexdigest().encode())

    def echo(self):
        """Speaks WebSocket as far as the handshake; then sends back what comes, and `bye` at its end."""
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.wfile.write(("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                          f"Sec-WebSocket-Accept: {accept}\r\n\r\n").encode())
        while piece := self.connection.recv(65536):
            self.connection.sendall(piece)
        self.connection.sendall(b"bye")
        self.close_connection = True


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
