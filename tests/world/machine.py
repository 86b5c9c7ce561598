"""The machine that sandboxes run on, as the test dresses it up: its cable, its files in /etc, its services, its users."""

import os
import pathlib
import shutil
import subprocess

import places
import servers

CABLE = "machine0"
USER, USER_ID = "world-tester", 64731
# Who looks after code in the world.
GIT, GIT_ID = "git", 64732


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def join_cable(world):
    """A cable between this network and the one that process `world` is in."""
    ip("link", "set", "lo", "up")
    ip("link", "add", CABLE, "type", "veth", "peer", "name", "world0", "netns", str(world))
    ip("link", "set", CABLE, "up")
    ip("address", "add", f"{places.MACHINE_V4}/24", "dev", CABLE)
    ip("address", "add", f"{places.MACHINE_PRIVATE}/24", "dev", CABLE)
    ip("address", "add", f"{places.MACHINE_V6}/64", "dev", CABLE, "nodad")
    ip("-4", "route", "add", "default", "via", places.WORLD_V4)
    ip("-6", "route", "add", "default", "via", places.WORLD_V6)


def dress(folder):
    """Files of /etc that only processes of the test see: its name server, its authority, and an ordinary user."""
    # Programs that keep something there keep it to themselves (sshd), and nobody's sockets are in the way.
    subprocess.run(["mount", "-t", "tmpfs", "run", "/run"], check=True)
    made = pathlib.Path(folder, "etc")
    made.mkdir()
    home = pathlib.Path(folder, "home")
    home.mkdir()
    os.chown(home, USER_ID, USER_ID)
    lines = {
        "passwd": f"{USER}:x:{USER_ID}:{USER_ID}::{home}:/bin/sh\n{GIT}:x:{GIT_ID}:{GIT_ID}::{folder}/sites/git:/bin/sh\n",
        "group": f"{USER}:x:{USER_ID}:\n{GIT}:x:{GIT_ID}:\n",
        "shadow": f"{USER}:*:20000::::::\n{GIT}:*:20000::::::\n",
        "subuid": f"{USER}:700000:65536\n",
        "subgid": f"{USER}:700000:65536\n",
    }
    for name, line in lines.items():
        before = pathlib.Path("/etc", name)
        kept = before.read_text() if before.exists() else ""
        _put(
            made / name,
            "".join(kept_line + "\n" for kept_line in kept.splitlines() if not kept_line.startswith(f"{GIT}:")) + line,
        )
    _put(made / "resolv.conf", f"nameserver {places.NAME_SERVER}\n")
    _put(made / "hosts", "127.0.0.1 localhost\n::1 localhost\n")
    authorities = made / "ssl"
    shutil.copytree("/etc/ssl", authorities, symlinks=True)
    bundle = authorities / "certs/ca-certificates.crt"
    bundle.write_text(bundle.read_text() + pathlib.Path(folder, "authority.pem").read_text())
    subprocess.run(["mount", "--bind", authorities, "/etc/ssl"], check=True)


def ask(folder, text):
    """From now on the machine's settings for names are these; the file stays the one that is mounted."""
    pathlib.Path(folder, "etc/resolv.conf").write_text(text)


def _put(made, text):
    made.write_text(text)
    made.chmod(0o600 if made.name == "shadow" else 0o644)
    # One that is a link (resolv.conf) is the file that it leads to.
    there = pathlib.Path("/etc", made.name).resolve()
    if not there.exists():
        there.parent.mkdir(parents=True, exist_ok=True)
        there.touch()
    subprocess.run(["mount", "--bind", made, there], check=True)


def serve(journal, context):
    """What a sandbox would find if it came to this machine: on loopback only, and on all addresses."""
    servers.serve(journal, context, [places.LOOPBACK_PORT], [places.LOOPBACK_PORT], ("127.0.0.1", "::1"), "machine")
    servers.serve(journal, context, [80, 443, 8001], [443], ("0.0.0.0", "::"), "machine")
