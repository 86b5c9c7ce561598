"""A code host that speaks ssh: the real sshd, with keys of the test, on every address of the world."""

import os
import shutil
import subprocess

SETTINGS = """ListenAddress 0.0.0.0:22
ListenAddress [::]:22
HostKey {folder}/host-key
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
AllowUsers git
ForceCommand PATH={path} git -c safe.directory=* upload-pack {folder}/sites/git/project.git
"""


def make(folder):
    """Its key, and one for whoever may come."""
    for name in ("host-key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{folder}/{name}"], check=True)
    with open(f"{folder}/sshd", "w") as settings:
        settings.write(SETTINGS.format(folder=folder, path=os.environ["PATH"]))


def serve(folder):
    program = shutil.which("sshd")
    if program:
        os.makedirs("/run/sshd", exist_ok=True)
        subprocess.Popen([program, "-D", "-q", "-f", f"{folder}/sshd"])
