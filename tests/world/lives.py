"""What happens around a way out: too many connections, slow ones, a server that is killed, a neighbour."""

import time

import machine
import places

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
# Sends a number again and again: in a tunnel that stays, and in new connections.
KNOCK = """
import socket, time, sys
stay = socket.create_connection(("93.184.215.14", 8080), 3)
number = 0
while True:
    number += 1
    try:
        stay.sendall(b"\\x01{name}-stays-%d\\n" % number)
    except OSError:
        pass
    for way in (("93.184.215.14", 80), ("good.test", 80)):
        try:
            with socket.create_connection(way, 1) as stream:
                stream.sendall(b"GET /{name}-new-%d HTTP/1.1\\r\\nHost: good.test\\r\\nConnection: close\\r\\n\\r\\n" % number)
                stream.recv(100)
        except OSError:
            pass
    time.sleep(0.1)
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
QUICK_ENOUGH = 5


def fetch(sandbox, token):
    """One ordinary request, and how long it took."""
    start = time.monotonic()
    answer, text = sandbox.run(f"curl -sS --max-time 20 http://good.test/{token} 2>&1")
    return time.monotonic() - start, text


def must_fetch(sandbox, token):
    seconds, text = fetch(sandbox, token)
    assert places.REACHED in text, text[:300]
    assert seconds < QUICK_ENOUGH, f"took {seconds:.1f} s"


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


ALL_KINDS = "connections without a word, redirected"
HELD = {
    "connections without a word, redirected": (("93.184.215.14", 80), b""),
    "connections without a word, to the proxy": (("127.0.0.1", 3128), b""),
    "requests that never end": (("127.0.0.1", 3128), b"GET http://good.test/ HTTP/1.1\r\nX: "),
    "hellos that never end": (("93.184.215.14", 443), b"\x16\x03\x01\x10\x00\x01"),
    "tunnels that nobody uses": (("127.0.0.1", 3128), b"CONNECT good.test:443 HTTP/1.1\r\n\r\n"),
    "questions that never end": (("8.8.8.8", 53), b"\x10"),
}


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


def killed(person):
    """With its server a sandbox's connections end, all of them; those of another server go on."""

    def code(stage):
        first, second = person(stage).serve(), person(stage).serve()
        try:
            for server, name in ((first, "first"), (second, "second")):
                sandbox = server.sandbox("development")
                sandbox.write("/workspace/knock.py", KNOCK.format(name=f"{name}-{stage.run}").encode())
                sandbox.start("python3 /workspace/knock.py")
            time.sleep(3)
            before = stage.arrived()
            for name in ("first", "second"):
                for what in ("stays", "new"):
                    assert seen(before, f"{name}-{stage.run}-{what}"), f"{name} {what} did not arrive before"
            first.kill()
            stage.arrived()
            time.sleep(3)
            after = stage.arrived()
            assert not seen(after, f"first-{stage.run}"), "bytes arrived after the server was killed"
            for what in ("stays", "new"):
                assert seen(after, f"second-{stage.run}-{what}"), f"{what}: the other server's sandbox was cut off too"
        finally:
            second.close()

    return code


def seen(entries, text):
    return any(text in entry["data"] for entry in entries)


LISTEN = """
import socket, threading, time
def serve(stream, family):
    while True:
        other, _ = stream.accept(); other.sendall(b"reached-the-far-end"); other.close()
for family, address in ((socket.AF_UNIX, "\\0world-neighbour"), (socket.AF_INET, ("0.0.0.0", 5000)), (socket.AF_INET6, ("::", 5001))):
    stream = socket.socket(family); stream.bind(address); stream.listen()
    threading.Thread(target=serve, args=(stream, family)).start()
socket.getaddrinfo("good.test", 80)
print("listening", flush=True)
"""
REACH = """
import socket
tries = [(socket.AF_UNIX, "\\0world-neighbour")] + [(socket.AF_INET, (address, 5000)) for address in ("127.0.0.1", "198.19.0.1", "198.19.0.2", "127.0.0.2", "0.0.0.0", "198.18.0.1")]
tries += [(socket.AF_INET6, (address, 5001)) for address in ("::1", "fd73:616e:6462:6f78:1::1", "::")] + [(socket.AF_INET, ("198.18.0.1", 80))]
for family, address in tries:
    try:
        stream = socket.socket(family); stream.settimeout(2); stream.connect(address)
        stream.sendall(b"GET /neighbour HTTP/1.1\\r\\nHost: good.test\\r\\n\\r\\n")
        print(address, stream.recv(100))
    except OSError as error:
        print(address, error)
"""


def neighbour(person):
    """What a sandbox listens on, and the names that it asked for, are its own."""

    def code(stage):
        server = person(stage).serve()
        try:
            listening, reaching = server.sandbox("named"), server.sandbox("named")
            listening.write("/workspace/listen.py", LISTEN.encode())
            listening.start("python3 /workspace/listen.py")
            time.sleep(1)
            stage.arrived()
            _, own = listening.run(f"cat >/tmp/reach.py <<'E'\n{REACH}\nE\npython3 /tmp/reach.py")
            assert own.count(places.REACHED) >= 5, f"it does not listen: {own}"
            assert seen(stage.arrived(), "/neighbour"), "its own stand-in leads nowhere"
            _, text = reaching.run(f"cat >/tmp/reach.py <<'E'\n{REACH}\nE\npython3 /tmp/reach.py")
            assert places.REACHED not in text and "HTTP" not in text, text
            assert not seen(stage.arrived(), "/neighbour"), "another sandbox's stand-in was good here"
        finally:
            server.close()

    return code


def told(person):
    """A refusal comes at once, and says what was refused and why, whichever way was taken."""

    def code(stage):
        server = person(stage).serve()
        try:
            sandbox = server.sandbox("named")
            for command, words in (
                ("curl -sS --max-time 10 http://10.0.0.1/", "no rule of this sandbox's policy"),
                ("curl -sS --max-time 10 http://evil.test/", "no rule of this sandbox's policy"),
                ("curl -sS --max-time 10 http://private.good.test/", "it leads into a private network"),
                ("curl -sS --max-time 10 http://metadata.good.test/", "cloud machines keep credentials"),
                ("curl -sS --max-time 10 --noproxy '*' http://10.0.0.1/ 2>&1", "connect"),
                ("curl -sS --max-time 10 --noproxy '*' http://evil.test/ 2>&1", "Could not resolve host"),
                ("curl -sS --max-time 10 --noproxy '*' http://private.good.test/ 2>&1", "connect"),
                ("curl -sS --max-time 10 https://evil.test/ 2>&1", "403"),
            ):
                start = time.monotonic()
                answer, text = sandbox.run(command)
                seconds = time.monotonic() - start
                assert words.lower() in text.lower(), f"{command}: {text!r}"
                assert seconds < 3, f"{command}: took {seconds:.1f} s"
        finally:
            server.close()
        done = person(stage).exec("named", ["curl", "-sS", "http://evil.test/"])
        assert b"evil.test:80 was not reached" in done.stderr, done.stderr

    return code


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


def moved(person):
    """Whom the machine asks for names may change, or be nobody for a while; sandboxes live on."""

    def code(stage):
        server = person(stage).serve()
        try:
            sandbox = server.sandbox("yolo-3")
            must_fetch(sandbox, "before")
            machine.ask(stage.folder, f"nameserver {places.OTHER_NAME_SERVER}\n")
            stage.arrived()
            _, text = sandbox.run("curl -sS --max-time 9 http://moved.good.test/moved")
            asked = {entry["address"] for entry in stage.arrived() if entry["kind"] == "dns"}
            assert places.REACHED in text and asked == {places.OTHER_NAME_SERVER}, f"{asked} were asked: {text!r}"
        finally:
            machine.ask(stage.folder, f"nameserver {places.NAME_SERVER}\n")
            server.close()

    return code


def offline(person):
    """A machine without name servers has sandboxes all the same, and addresses are reached."""

    def code(stage):
        machine.ask(stage.folder, "# none\n")
        server = person(stage).serve()
        try:
            sandbox = server.sandbox("yolo-3")
            _, text = sandbox.run(
                "curl -sS --max-time 9 http://93.184.215.14/offline; curl -sS --max-time 15 http://good.test/offline"
            )
            assert places.REACHED in text and "good.test:80 was not reached" in text, text
            done = person(stage).exec("yolo-3", ["curl", "-sS", "--max-time", "9", "http://93.184.215.14/offline"])
            assert places.REACHED.encode() in done.stdout, (done.stdout, done.stderr)
            machine.ask(stage.folder, f"nameserver {places.NAME_SERVER}\n")
            must_fetch(sandbox, "online")
        finally:
            machine.ask(stage.folder, f"nameserver {places.NAME_SERVER}\n")
            server.close()

    return code


def half_reachable(person):
    """One address of a name that leads nowhere does not hold up the others."""

    def code(stage):
        server = person(stage).serve()
        try:
            sandbox = server.sandbox("yolo-3")
            for way in ("", "--noproxy '*'"):
                _, text = sandbox.run(f"curl -sS --max-time 3 {way} http://half.good.test/half 2>&1")
                assert places.REACHED in text, f"{way}: {text}"
        finally:
            server.close()

    return code


def play(stage):
    def person(which):
        return lambda stage: stage.root if which == "root" else stage.user

    for which in ("root",) if stage.quick else ("root", "an ordinary user"):
        who = person(which)
        stage.trial(f"a refusal comes at once and says why, as {which}", told(who))
        stage.trial(f"a sandbox reaches nothing of its neighbour, as {which}", neighbour(who))
        stage.trial(f"an address that leads nowhere holds up no other, as {which}", half_reachable(who))
        stage.trial(f"the machine moves to another network, as {which}", moved(who))
        stage.trial(f"a machine without name servers, as {which}", offline(who))
        stage.trial(f"nothing arrives after a server was killed, as {which}", killed(who))
        if not stage.quick:
            for name in HELD:
                stage.trial(f"too many {name} hurt nobody else, as {which}", flood(name, who))
            for kind in ("connections", "refusals", "questions"):
                stage.trial(f"endless {kind} hurt nobody else, as {which}", churn(kind, who))
            # As many as any sandbox may have without being told otherwise.
            stage.trial(
                f"all connections of one sandbox hurt nobody else, as {which}", flood(ALL_KINDS, who, "yolo-3", 3000)
            )
            stage.trial(
                f"all connections where few files may be open hurt nobody else, as {which}",
                flood(ALL_KINDS, who, "yolo-3", 3000, "1024:1024"),
            )
            stage.trial(f"a one-shot command has many connections at once, as {which}", many_at_once(who))
            stage.trial(f"answers that nobody reads are not kept, as {which}", unread(who))
