"""An authority of the test, and one certificate for all of its servers."""

import subprocess

import places


def make(folder):
    def openssl(*words):
        subprocess.run(["openssl", *words], check=True, cwd=folder, stderr=subprocess.DEVNULL)

    names = [f"DNS:{name}" for known in places.PUBLIC for name in (known, f"*.{known}")]
    names += [f"IP:{address}" for address in (*places.GOOD, places.GOOD_ADDRESS)]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]
    openssl("req", "-x509", *curve, "-keyout", "authority.key", "-out", "authority.pem", "-subj", "/CN=World test")
    openssl(
        "req",
        "-x509",
        *curve,
        "-keyout",
        "server.key",
        "-out",
        "server.crt",
        "-subj",
        "/CN=good.test",
        "-CA",
        "authority.pem",
        "-CAkey",
        "authority.key",
        "-addext",
        f"subjectAltName={','.join(names)}",
        "-addext",
        "basicConstraints=CA:FALSE",
    )
    with open(f"{folder}/server.pem", "w") as whole:
        for part in ("server.key", "server.crt"):
            whole.write(open(f"{folder}/{part}").read())
