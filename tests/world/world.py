"""The internet of the test: every address leads here. Started in a network namespace of its own, told where to write."""

import ssl
import subprocess
import sys
import threading

import names
import places
import secure_shell
import servers
import sites
import watch
from journal import Journal

CABLE = "world0"


def main(folder):
    def ip(*words):
        subprocess.run(["ip", *words], check=True)

    ip("link", "set", "lo", "up")
    ip("link", "set", CABLE, "up")
    for address in (f"{places.WORLD_V4}/24", f"{places.WORLD_PRIVATE}/24", f"{places.WORLD_V6}/64", "fe80::1/64"):
        ip("address", "add", address, "dev", CABLE, *(["nodad"] if ":" in address else []))
    # Every address is one of this machine, except those of the machine that sandboxes run on.
    for version in ("-4", "-6"):
        ip(version, "route", "add", "local", "default", "dev", "lo", "table", "main")
    ip("-6", "route", "add", "blackhole", f"{places.BLACK_HOLE}/32")
    journal = Journal(f"{folder}/journal")
    watch.watch(CABLE, journal)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{folder}/server.pem")
    sites.FOLDER = f"{folder}/sites"
    names.serve(journal)
    secure_shell.serve(folder)
    servers.serve(journal, context)
    print("ready", flush=True)
    threading.Event().wait()


main(sys.argv[1])
