"""What is tried, in its order: that the judge sees everything, attempts level by level, lives, floods, tools."""

import json
import pathlib
import socket
import sys

import floods
import judge
import lives
import places
import sandboxes
import tools

sys.path.insert(1, str(pathlib.Path(__file__).parent / "inside"))
import rows  # noqa: E402
import addresses, datagrams, doors, hosts, http_tricks, levels, streams, tls  # noqa: E401,E402,F401

LEVELS = ("named", "yolo-3", "yolo-1", "yolo-2", "build", "development", "verified", "host-port")
QUICK = ("named", "yolo-3")


def play(stage):
    stage.trial("the judge sees what arrives", judge_sees)
    if stage.only.startswith("tools"):
        return tools.play(stage)
    for level in QUICK if stage.quick else LEVELS:
        attempts(stage, stage.root, level, by_server)
    lives.play(stage)
    if stage.quick:
        return
    floods.play(stage)
    for level in LEVELS:
        attempts(stage, stage.user, level, by_server)
    for person, level in ((stage.root, "named"), (stage.user, "named"), (stage.user, "yolo-3")):
        attempts(stage, person, level, by_exec)
    tools.play(stage)


def judge_sees(stage):
    """Without a sandbox everything can be reached from the machine, or the table would prove nothing."""
    outside = [
        address
        for address in places.FORBIDDEN
        if address not in ("0.0.0.0", "255.255.255.255", "240.0.0.1", "::", "::10.0.0.1", "2001:db8::1")
    ]
    outside = [address for address in outside if not address.startswith(("224.", "ff0", "fe80", "::ffff", "fec0"))]
    for address in outside:
        with socket.create_connection((address, 80), 5) as stream:
            stream.sendall(f"GET /seen-{address} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            try:
                heard = stream.makefile("rb").read()
            except OSError as error:
                raise AssertionError(f"{address}: {error}") from error
            assert places.REACHED.encode() in heard, address
    for number in (1, 4):
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, number) as sender:
            sender.sendto(b"\x08\0\0\0seen-raw", ("93.184.215.14", 0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"seen-datagram", ("10.0.0.1", 4000))
    socket.getaddrinfo("private.good.test", 80)
    entries = stage.arrived()
    for address in outside:
        assert any(f"seen-{address}" in entry["data"] for entry in entries if entry["kind"] == "request"), address
    for what in ("seen-raw", "seen-datagram"):
        assert any(what in entry["data"] for entry in entries if entry["kind"] == "packet"), what
    assert any(entry["kind"] == "dns" and entry["name"] == "private.good.test" for entry in entries)
    assert judge.strays("development", entries), "no stray was found"


def by_server(stage, person, level, words):
    server = person.serve()
    try:
        sandbox = server.sandbox(level)
        sandbox.write("/workspace/world.zip", sandboxes.bundle())
        answer, text = sandbox.run(f"python3 /workspace/world.zip {' '.join(words)}")
        sandbox.remove()
        return text, f"{answer['status']} {answer['exit_code']} {answer['stderr'][-800:]}"
    finally:
        server.close()


def by_exec(stage, person, level, words):
    command = ["sh", "-c", 'cat >/tmp/world.zip; exec python3 /tmp/world.zip "$@"', "sh", *words]
    done = person.exec(level, command, sandboxes.bundle(), seconds=400)
    return done.stdout.decode(), f"{done.returncode} {done.stderr.decode()[-800:]}"


def attempts(stage, person, level, way):
    """All rows of one level in one sandbox."""
    wanted = [row for row in rows.ROWS if level in row.levels and stage.only in row.name]
    if not wanted:
        return
    run = f"{stage.run}-{person.name}-{level}-{way.__name__}"
    group = f"attempts at {level} as {'root' if person.name == 'root' else 'an ordinary user'}, {way.__name__.replace('_', ' ')}"
    stage.rows.update(row.name for row in wanted)
    stage.arrived()
    text, ending = way(stage, person, level, [run, level, *([f"'{stage.only}'"] if stage.only else [])])
    found = [json.loads(line) for line in text.splitlines()]
    answers = {result["name"]: result["answer"] for result in found}
    if stage.verbose:
        for result in sorted(found, key=lambda result: -result["seconds"])[:40]:
            print(f"    {result['seconds']:6.1f} s {result['name']}: {result['answer'][:150]!r}")
    unknown = set(answers) - {row.name for row in wanted}
    stage.report(f"every attempt is judged ({group})", f"not {sorted(unknown)[:5]}" if unknown else None, group)
    entries = stage.arrived()
    for row in wanted:
        token = rows.token(run, row.name)
        if row.name not in answers:
            stage.report(f"{row.name} ({group})", f"was not run: {ending}", group)
            continue
        arrived = [entry for entry in entries if token in entry["data"]]
        stage.report(f"{row.name} ({group})", judge.verdict(row, level, token, answers[row.name], arrived), group)
    stage.report(
        f"nothing else left the machine ({group})", "; ".join(judge.strays(level, entries)[:10]) or None, group
    )
