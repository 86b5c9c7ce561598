"""A sandbox that takes all it can get: only it is hurt, and only as long as it does that."""

import time

import places
from lives import QUICK_ENOUGH, fetch, must_fetch

# Run inside: connections that are held, and what became of them.
HOLD = """
import socket, time
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, 2 * (resource.getrlimit(resource.RLIMIT_NOFILE)[1],))
held, failed = [], 0
for number in range({count}):
    try:
        stream = socket.create_connection({address}, 3)
        stream.sendall({data})
        held.append(stream)
    except OSError:
        failed += 1
print("held", len(held), "failed", failed, flush=True)
{then}
time.sleep(600)
"""
MANY = """
import resource, socket, urllib.request
resource.setrlimit(resource.RLIMIT_NOFILE, 2 * (resource.getrlimit(resource.RLIMIT_NOFILE)[1],))
held = []
for number in range({count}):
    held.append(socket.create_connection(("93.184.215.14", 80), 5))
for stream in held:
    stream.settimeout(10)
    stream.sendall(b"GET /many HTTP/1.1\\r\\nHost: good.test\\r\\n\\r\\n")
answered = sum(b" 200 " in stream.recv(100) for stream in held)
print("held", answered, urllib.request.urlopen("http://good.test/many").read())
"""
CHURN = """
import os, socket, sys, time
kind, until, count = sys.argv[1], time.monotonic() + 8, 0
for _ in range(3):
    if os.fork() == 0:
        break
while time.monotonic() < until:
    count += 1
    try:
        if kind == "questions":
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                for number in range(100):
                    name = b"n%d-%d" % (count, number)
                    sender.sendto(b"xx\\x01\\0\\0\\x01\\0\\0\\0\\0\\0\\0" + bytes([len(name)]) + name + b"\\x04evil\\x04test\\0\\0\\x01\\0\\x01", ("8.8.8.8", 53))
        else:
            socket.create_connection(("10.0.0.1" if kind == "refusals" else "93.184.215.14", 80), 1).close()
    except OSError:
        pass
"""


SILENT = "connections without a word, redirected"
HELD = {
    "connections without a word, redirected": (("93.184.215.14", 80), b""),
    "connections without a word, to the proxy": (("127.0.0.1", 3128), b""),
    "requests that never end": (("127.0.0.1", 3128), b"GET http://good.test/ HTTP/1.1\r\nX: "),
    "hellos that never end": (("93.184.215.14", 443), b"\x16\x03\x01\x10\x00\x01"),
    "tunnels that nobody uses": (("127.0.0.1", 3128), b"CONNECT good.test:443 HTTP/1.1\r\n\r\n"),
    "questions that never end": (("8.8.8.8", 53), b"\x10"),
}


def hold(sandbox, count, address, data, then=""):
    program = HOLD.format(count=count, address=address, data=data, then=then)
    sandbox.write("/workspace/hold.py", program.encode())
    job = sandbox.start("python3 /workspace/hold.py")
    for _ in range(120):
        answer = sandbox.server.call("get_output", session_id=sandbox.name, job_id=job, wait_seconds=1)
        if "held" in answer["stdout"]:
            return job, answer["stdout"].strip()
        assert answer["status"] == "running", answer["stderr"]
    raise AssertionError("connections were not made in two minutes")


def resident(server):
    """Memory of a server process, in MiB."""
    with open(f"/proc/{server.process.pid}/status") as status:
        return next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmRSS"))


def many_at_once(person):
    """As many connections as the policy says, though few files may be open until somebody asks for more."""

    def code(stage):
        program = MANY.format(count=500)
        done = person(stage).exec("yolo-3", ["python3", "-c", program], files="512:8192")
        assert b"held 500" in done.stdout and places.REACHED.encode() in done.stdout, (
            done.stdout[-500:],
            done.stderr[-500:],
        )

    return code


def flood(name, person, level="few-connections", count=400, files=None):
    """Far more connections than a sandbox may have: only it is hurt, and only as long as it does that."""

    def code(stage):
        address, data = HELD[name]
        server = person(stage).serve(files)
        try:
            greedy, other = server.sandbox(level), server.sandbox("yolo-3")
            must_fetch(greedy, "before")
            before = resident(server)
            job, said = hold(greedy, count, address, data)
            must_fetch(other, "beside")
            must_fetch(server.sandbox("yolo-3"), "another")
            grown = resident(server) - before
            assert grown < 100, f"the server grew by {grown} MiB: {said}"
            seconds, text = fetch(greedy, "during")
            assert places.REACHED not in text, f"there was still room: {said}"
            assert seconds < QUICK_ENOUGH, f"a refusal took {seconds:.1f} s"
            server.call("get_output", session_id=greedy.name, job_id=job, signal="SIGKILL")
            time.sleep(1)
            must_fetch(greedy, "after")
        finally:
            server.close()

    return code


def unread(person):
    """Answers that nobody reads are not kept in memory."""

    def code(stage):
        server = person(stage).serve()
        try:
            greedy, other = server.sandbox("yolo-3"), server.sandbox("yolo-3")
            must_fetch(greedy, "before")
            before = resident(server)
            hold(greedy, 50, ("93.184.215.14", 80), b"GET /large HTTP/1.1\r\nHost: good.test\r\n\r\n", "time.sleep(2)")
            time.sleep(2)
            must_fetch(other, "beside")
            grown = resident(server) - before
            assert grown < 150, f"the server grew by {grown} MiB"
        finally:
            server.close()

    return code


def churn(kind, person):
    """Whoever connects, is refused or asks as fast as it can takes neither the server's time from others nor the disk."""

    def code(stage):
        server = person(stage).serve()
        try:
            greedy, other = server.sandbox("yolo-3"), server.sandbox("yolo-3")
            must_fetch(other, "before")
            before = resident(server)
            greedy.write("/workspace/churn.py", CHURN.encode())
            greedy.start(f"python3 /workspace/churn.py {kind}")
            for number in range(4):
                time.sleep(1)
                must_fetch(other, f"beside-{number}")
            time.sleep(4)
            grown = resident(server) - before
            assert grown < 150, f"the server grew by {grown} MiB"
            used = (
                sum(
                    file.stat().st_size
                    for file in (person(stage).home / ".local/state/sandbox-mcp").glob("*")
                    if file.is_file()
                )
                >> 20
            )
            assert used < 100, f"{used} MiB were written down"
        finally:
            server.close()

    return code


def play(stage):
    for which, person in (("root", lambda stage: stage.root), ("an ordinary user", lambda stage: stage.user)):
        for name in HELD:
            stage.trial(f"too many {name} hurt nobody else, as {which}", flood(name, person))
        for kind in ("connections", "refusals", "questions"):
            stage.trial(f"endless {kind} hurt nobody else, as {which}", churn(kind, person))
        # As many as any sandbox may have without being told otherwise.
        stage.trial(
            f"all connections of one sandbox hurt nobody else, as {which}",
            flood(SILENT, person, "yolo-3", 3000),
        )
        stage.trial(
            f"all connections where few files may be open hurt nobody else, as {which}",
            flood(SILENT, person, "yolo-3", 3000, "1024:1024"),
        )
        stage.trial(f"a one-shot command has many connections at once, as {which}", many_at_once(person))
        stage.trial(f"answers that nobody reads are not kept, as {which}", unread(person))
