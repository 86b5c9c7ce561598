"""Sets the stage (two networks, a cable, servers), lets the tests play, and counts."""

import os
import secrets
import socket
import subprocess
import ssl
import sys
import threading
import time
import traceback

import certificates
import machine
import packages
import places
import sandboxes
import secure_shell
import trials
from journal import Journal, Reader

HERE = os.path.dirname(os.path.abspath(__file__))


class Stage:
    """What every test gets."""

    def __init__(self, folder, arguments):
        self.folder, self.run = folder, secrets.token_hex(4)
        self.quick, self.verbose = "--quick" in arguments, "--verbose" in arguments
        self.only = arguments[arguments.index("--only") + 1] if "--only" in arguments else ""
        self.passed = self.failed = 0
        self.counts, self.rows = {}, set()
        certificates.make(folder)
        packages.make(folder)
        secure_shell.make(folder)
        machine.dress(folder)
        self.world = self._start_world()
        self.reader = Reader(f"{folder}/journal")
        self.root = sandboxes.Person(folder, "root")
        self.user = sandboxes.Person(folder, machine.USER)

    def _start_world(self):
        words = [
            "unshare",
            "--net",
            "sh",
            "-c",
            'read go; exec "$@"',
            "world",
            sys.executable,
            f"{HERE}/world.py",
            self.folder,
        ]
        world = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        # It has its network when that is no longer ours.
        while os.readlink(f"/proc/{world.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.01)
        machine.join_cable(world.pid)
        world.stdin.write(b"go\n")
        world.stdin.flush()
        assert world.stdout.readline() == b"ready\n"
        journal = Journal(f"{self.folder}/journal")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{self.folder}/server.pem")
        machine.serve(journal, context)
        threading.Thread(target=_abstract, args=(journal,), daemon=True).start()
        return world

    def arrived(self):
        """All that arrived since this was asked last, when everything that is on its way has come."""
        time.sleep(1)
        return self.reader.read()

    def report(self, name, why=None, group=None):
        """One line, as other tests of this project have it."""
        self.passed, self.failed = self.passed + (not why), self.failed + bool(why)
        good, bad = self.counts.get(group or name, (0, 0))
        self.counts[group or name] = (good + (not why), bad + bool(why))
        if why or self.verbose or not group:
            print(f"test {name} ... {'FAILED' if why else 'ok'}", flush=True)
        if why:
            print(f"    {why}", flush=True)

    def trial(self, name, code):
        """A test that is not a row of a table: it fails by what it raises."""
        if self.only not in name:
            return
        try:
            code(self)
            self.report(name)
        except Exception as error:
            self.report(name, f"{type(error).__name__}: {error}\n{traceback.format_exc() if self.verbose else ''}")


def _abstract(journal):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0world-test-of-the-machine")
    listener.listen()
    while True:
        stream, _ = listener.accept()
        journal.write("connection", "abstract", 0, stream.recv(4096), place="machine")
        stream.sendall(places.REACHED.encode())
        stream.close()


def main(folder, *arguments):
    stage = Stage(folder, arguments)
    start = time.monotonic()
    trials.play(stage)
    print("\n   passed   failed   what")
    for group, (good, bad) in stage.counts.items():
        if good + bad > 1:
            print(f"{good:9}{bad:9}   {group}")
    print(f"\n{len(stage.rows)} different attempts and controls")
    print(f"{stage.passed} passed, {stage.failed} failed", flush=True)
    print(f"in {time.monotonic() - start:.0f} s", file=sys.stderr)
    return 1 if stage.failed or not stage.passed else 0


sys.exit(main(*sys.argv[1:]))
