"""What happens around a way out: refusals, neighbours, a server that is killed, a machine that moves."""

import time

import machine
import places

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
open("/tmp/stand-in", "w").write(socket.getaddrinfo("good.test", 80, socket.AF_INET)[0][4][0])
print("listening", flush=True)
"""
REACH = """
import socket, sys
stand_in = sys.argv[1]
tries = [(socket.AF_UNIX, "\\0world-neighbour")] + [(socket.AF_INET, (address, 5000)) for address in ("127.0.0.1", "198.19.0.1", "198.19.0.2", "127.0.0.2", "0.0.0.0", stand_in)]
tries += [(socket.AF_INET6, (address, 5001)) for address in ("::1", "fd73:616e:6462:6f78:1::1", "::")] + [(socket.AF_INET, (stand_in, 80))]
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
            _, stand_in = listening.run("cat /tmp/stand-in")
            reach = f"cat >/tmp/reach.py <<'E'\n{REACH}\nE\npython3 /tmp/reach.py {stand_in}"
            _, own = listening.run(reach)
            assert own.count(places.REACHED) >= 5, f"it does not listen: {own}"
            assert seen(stage.arrived(), "/neighbour"), "its own stand-in leads nowhere"
            _, text = reaching.run(reach)
            # Who asks in HTTP is told why not.
            refused = text.replace("HTTP/1.1 403 Forbidden", "")
            assert places.REACHED not in refused and "HTTP" not in refused, text
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
                ("curl -sS --max-time 10 --noproxy '*' http://10.0.0.1/ 2>&1", "no rule of this sandbox's policy"),
                ("curl -sS --max-time 10 --noproxy '*' https://10.0.0.1/ 2>&1", "connect"),
                ("curl -sS --max-time 10 --noproxy '*' http://evil.test/ 2>&1", "Could not resolve host"),
                ("curl -sS --max-time 10 --noproxy '*' http://private.good.test/ 2>&1", "it leads into a private network"),
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
