"""Sandboxes as users of the product get them: one-shot commands at a terminal, and sessions of a server over MCP."""

import base64
import io
import json
import os
import pathlib
import queue
import subprocess
import threading
import time
import zipfile

from machine import USER

HERE = pathlib.Path(__file__).parent
POLICIES = {
    "named": """extends = "yolo-3"
network = "none"
network_rules = [
  { allow = ["good.test", "*.good.test"], ports = [80, 443] },
  { allow = ["93.184.215.20"], ports = [80] },
]
""",
    "host-port": """extends = "yolo-3"
host_ports = [8000]
""",
    "few-connections": """extends = "yolo-3"
limits.connections = 20
""",
    "tools": """extends = "development"
[commands]
permit = ["ssh", "scp", "sftp"]
""",
}


class Person:
    """Somebody with a home, settings and policies of their own: root, or the ordinary user."""

    def __init__(self, folder, name):
        self.name, self.folder = name, pathlib.Path(folder)
        self.home = self.folder / f"home-{name}"
        policies = self.home / ".config/sandbox-mcp/policies"
        policies.mkdir(parents=True)
        for policy, text in POLICIES.items():
            (policies / f"{policy}.toml").write_text(text)
        self.program = str(self.folder / "sandbox-mcp")
        self.become = []
        if name != "root":
            subprocess.run(["chown", "-R", USER, self.home], check=True)
            self.become = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", "--inh-caps=-all"]
        self.variables = {
            "HOME": str(self.home),
            "USER": name,
            "LANG": "C.UTF-8",
            "TMPDIR": "/tmp",
            "PATH": os.environ["PATH"],
        }

    def words(self, *words, files=None):
        """With `files`, no more than so many files may be open in one process, now and at most."""
        limited = ["prlimit", f"--nofile={files}"] if files else []
        return [*limited, *self.become, self.program, *words]

    def exec(self, level, command, give=b"", seconds=120, files=None):
        """One command in a fresh sandbox."""
        words = self.words("exec", "--policy", level, "--", *command, files=files)
        return subprocess.run(words, input=give, capture_output=True, env=self.variables, cwd="/", timeout=seconds)

    def serve(self, files=None):
        return Server(self, files)


class Server:
    """A server process and a client of it, one call at a time for each thread."""

    def __init__(self, person, files=None):
        self.person = person
        self.process = subprocess.Popen(
            person.words("serve", files=files),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=person.variables,
            cwd="/",
        )
        self.number, self.lock, self.waiting = 0, threading.Lock(), {}
        threading.Thread(target=self._read, daemon=True).start()
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "world", "version": "1"}}
        self.request("initialize", hello)
        self._send({"method": "notifications/initialized"})

    def _read(self):
        for line in self.process.stdout:
            message = json.loads(line)
            waiting = self.waiting.pop(message.get("id"), None)
            if waiting:
                waiting.put(message)

    def _send(self, message):
        with self.lock:
            self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            self.process.stdin.flush()

    def request(self, method, params, seconds=120):
        with self.lock:
            self.number += 1
            number = self.number
        answer = self.waiting[number] = queue.Queue()
        self._send({"id": number, "method": method, "params": params})
        return answer.get(timeout=seconds)

    def call(self, tool, **arguments):
        answer = self.request("tools/call", {"name": tool, "arguments": arguments})
        result = answer.get("result", {})
        if result.get("isError") or "error" in answer:
            raise RuntimeError(f"{tool}: {json.dumps(answer)[:500]}")
        return result["structuredContent"]

    def sandbox(self, level):
        return Session(self, self.call("create_sandbox", policy=level)["session_id"])

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)

    def kill(self):
        self.process.kill()
        self.process.wait(30)


class Session:
    """A sandbox of a server."""

    def __init__(self, server, name):
        self.server, self.name = server, name

    def write(self, path, data):
        self.server.call(
            "write_files",
            session_id=self.name,
            files=[{"path": path, "content": base64.b64encode(data).decode(), "encoding": "base64"}],
        )

    def start(self, command):
        """A command that goes on."""
        return self.server.call("run_command", session_id=self.name, command=command, wait_seconds=0)["job_id"]

    def run(self, command):
        """A command to its end: its last answer, and all that it printed."""
        answer = self.server.call("run_command", session_id=self.name, command=command)
        return self.wait(answer["job_id"]) if answer["job_id"] else (answer, "")

    def wait(self, job, seconds=300):
        text, offset, until = "", 0, time.monotonic() + seconds
        while True:
            answer = self.server.call(
                "get_output", session_id=self.name, job_id=job, offset=offset, wait_seconds=20, max_bytes=1 << 20
            )
            text += answer["stdout"]
            ended = answer["status"] != "running" and answer["next_offset"] == offset
            if ended or time.monotonic() > until:
                return answer, text
            offset = answer["next_offset"]

    def remove(self):
        self.server.call("cleanup_session", session_id=self.name)


def bundle():
    """The program that runs inside, as one file."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in [*sorted((HERE / "inside").glob("*.py")), HERE / "places.py"]:
            archive.write(file, file.name)
    return content.getvalue()
