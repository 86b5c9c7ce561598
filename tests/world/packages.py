"""Makes one package of every kind, and the registries that have it: each says the same sentence when it is used."""

import base64
import gzip
import hashlib
import io
import json
import os
import pathlib
import subprocess
import tarfile
import zipfile

SENTENCE = "hello from worldpack"


def make(folder):
    """A folder for each site; the answer tells where they are."""
    sites = pathlib.Path(folder, "sites")
    for make_one in (python, node, rust, debian, git):
        make_one(sites)
    return sites


def _write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def _tar(files, mode="w:gz"):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode) as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            archive.addfile(entry, io.BytesIO(data.encode()))
    return content.getvalue()


def python(sites):
    wheel, about = io.BytesIO(), "worldpack-1.0.dist-info"
    files = {
        "worldpack.py": f"print({SENTENCE!r})\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: worldpack\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: world\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{about}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"]))
    name, digest = "worldpack-1.0-py3-none-any.whl", hashlib.sha256(wheel.getvalue()).hexdigest()
    _write(sites / "files.pythonhosted.org/packages" / name, wheel.getvalue())
    link = f'<a href="https://files.pythonhosted.org/packages/{name}#sha256={digest}">{name}</a>'
    _write(sites / "pypi.org/simple/worldpack/index.html", f"<!DOCTYPE html><html><body>{link}</body></html>")


def node(sites):
    about = {"name": "worldpack", "version": "1.0.0", "main": "index.js"}
    archive = _tar(
        {"package/package.json": json.dumps(about), "package/index.js": f"console.log({json.dumps(SENTENCE)})\n"}
    )
    there = sites / "registry.npmjs.org/worldpack"
    _write(there / "-/worldpack-1.0.0.tgz", archive)
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    dist = {
        "tarball": "https://registry.npmjs.org/worldpack/-/worldpack-1.0.0.tgz",
        "integrity": integrity,
        "shasum": hashlib.sha1(archive).hexdigest(),
    }
    whole = {"name": "worldpack", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {**about, "dist": dist}}}
    _write(there / "index.html", json.dumps(whole))


def rust(sites):
    manifest = '[package]\nname = "worldpack"\nversion = "1.0.0"\nedition = "2021"\n'
    source = f'pub fn say() {{ println!("{SENTENCE}"); }}\n'
    archive = _tar({"worldpack-1.0.0/Cargo.toml": manifest, "worldpack-1.0.0/src/lib.rs": source})
    line = {
        "name": "worldpack",
        "vers": "1.0.0",
        "deps": [],
        "cksum": hashlib.sha256(archive).hexdigest(),
        "features": {},
        "yanked": False,
    }
    _write(sites / "index.crates.io/config.json", json.dumps({"dl": "https://static.crates.io/crates"}))
    _write(sites / "index.crates.io/wo/rl/worldpack", json.dumps(line) + "\n")
    _write(sites / "static.crates.io/crates/worldpack/1.0.0/download", archive)


def debian(sites):
    there = sites / "deb.debian.org/debian"
    tree = sites / "deb"
    _write(
        tree / "DEBIAN/control",
        "Package: worldpack\nVersion: 1.0\nArchitecture: all\nMaintainer: World <world@good.test>\nDescription: a package of the test\n",
    )
    _write(tree / "usr/bin/worldpack", f"#!/bin/sh\necho {SENTENCE}\n")
    (tree / "usr/bin/worldpack").chmod(0o755)
    (there / "pool").mkdir(parents=True)
    package = there / "pool/worldpack_1.0_all.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, package], check=True, stdout=subprocess.DEVNULL)
    content = package.read_bytes()
    control = (tree / "DEBIAN/control").read_text()
    index = f"{control}Filename: pool/worldpack_1.0_all.deb\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n\n".encode()
    lines = []
    for name, data in (("main/binary-amd64/Packages", index), ("main/binary-amd64/Packages.gz", gzip.compress(index))):
        _write(there / "dists/world" / name, data)
        lines.append(f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}")
    head = "Origin: World\nSuite: world\nCodename: world\nArchitectures: amd64 all\nComponents: main\nDate: Thu, 01 Jan 2026 00:00:00 UTC\n"
    _write(there / "dists/world/Release", head + "SHA256:\n" + "\n".join(lines) + "\n")


def git(sites):
    there = sites / "git/project.git"
    variables = {
        **os.environ,
        "HOME": str(sites),
        "GIT_AUTHOR_NAME": "w",
        "GIT_AUTHOR_EMAIL": "w@good.test",
        "GIT_COMMITTER_NAME": "w",
        "GIT_COMMITTER_EMAIL": "w@good.test",
    }

    def run(*words, cwd=None):
        subprocess.run(
            ["git", *words], check=True, env=variables, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    source = sites / "source"
    _write(source / "README", SENTENCE + "\n")
    run("init", "-b", "main", str(source))
    run("add", ".", cwd=source)
    run("commit", "-m", "first", cwd=source)
    run("clone", "--bare", str(source), str(there))
