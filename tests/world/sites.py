"""What the web sites of the world answer: small registries under the names of the real ones, and a code host."""

import hashlib
import os
import subprocess
import urllib.parse

# Made once, so that many answers of it cost nothing.
LARGE = bytes(8 << 20)
FOLDER = None


def respond(host, method, path, headers, body, secure):
    """Status, headers and content; no status where a site has nothing of its own to say."""
    where = urllib.parse.urlsplit(path)
    if where.path.startswith("/redirect/"):
        return 302, {"Location": urllib.parse.unquote(where.path.removeprefix("/redirect/"))}, b""
    if where.path.startswith("/large"):
        return 200, {}, LARGE
    if where.path.startswith("/digest/"):
        return 200, {}, hashlib.sha256(body).hexdigest().encode()
    if host == "github.com" and where.path.startswith("/world/"):
        return git(method, where, headers, body)
    return file_of(host, where.path)


def file_of(host, path):
    """A file that was made for this site (see packages.py)."""
    if not FOLDER or ".." in path:
        return None, {}, b""
    file = os.path.join(FOLDER, host, urllib.parse.unquote(path).strip("/"))
    if os.path.isdir(file):
        file = os.path.join(file, "index.html")
    if not os.path.isfile(file):
        # What is missing at a registry is missing; other sites answer whatever they are asked.
        return (404, {}, b"") if path.count("/") > 1 and os.path.isdir(os.path.join(FOLDER, host)) else (None, {}, b"")
    kinds = {".html": "text/html", ".json": "application/json"}
    with open(file, "rb") as content:
        return 200, {"Content-Type": kinds.get(os.path.splitext(file)[1], "application/octet-stream")}, content.read()


def git(method, where, headers, body):
    """git's own server, as a web server runs it (git-http-backend(1))."""
    variables = {
        "PATH": os.environ["PATH"],
        "GIT_PROJECT_ROOT": os.path.join(FOLDER, "git"),
        "GIT_HTTP_EXPORT_ALL": "1",
        "PATH_INFO": where.path.removeprefix("/world"),
        "QUERY_STRING": where.query,
        "REQUEST_METHOD": method,
        "CONTENT_TYPE": headers.get("Content-Type", ""),
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_CONTENT_ENCODING": headers.get("Content-Encoding", ""),
        "GIT_PROTOCOL": headers.get("Git-Protocol", ""),
        "HOME": FOLDER,
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }
    done = subprocess.run(["git", "http-backend"], input=body, capture_output=True, env=variables)
    head, _, content = done.stdout.partition(b"\r\n\r\n")
    said = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
    return int(said.pop("Status", "200").split()[0]), said, content
