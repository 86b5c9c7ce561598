"""Tools as people use them, unchanged: with the proxy that the sandbox names, and as if they knew none."""

import io
import os
import pathlib
import shutil
import subprocess
import tarfile

from packages import SENTENCE

REACHED = "reached-the-far-end"
WITHOUT = "env -u http_proxy -u https_proxy -u all_proxy -u HTTP_PROXY -u HTTPS_PROXY -u ALL_PROXY -u no_proxy -u NO_PROXY -u NODE_USE_ENV_PROXY"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"

GO = """package main

import ("fmt"; "io"; "net/http")

func main() {
	for _, url := range []string{"http://good.test/go", "https://good.test/go"} {
		answer, err := http.Get(url)
		if err != nil { fmt.Println(err); return }
		text, _ := io.ReadAll(answer.Body)
		fmt.Print(string(text))
	}
}
"""
JAVA = """import java.net.URI;
import java.net.http.*;

public class World {
    public static void main(String[] words) throws Exception {
        for (String url : new String[] {"http://good.test/java", "https://good.test/java"}) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(url)).build();
            System.out.print(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
        }
    }
}
"""
OLD_JAVA = """import java.net.*;

public class Old {
    public static void main(String[] words) throws Exception {
        System.out.print(new String(new URL("https://good.test/java").openStream().readAllBytes()));
    }
}
"""
NODE = "for (const url of ['http://good.test/node', 'https://good.test/node']) console.log(await (await fetch(url)).text())"
NODE_PLAIN = "require('https').get('https://good.test/node', answer => answer.pipe(process.stdout))"
URLLIB = "import urllib.request as r; print(r.urlopen('http://good.test/py').read(), r.urlopen('https://good.test/py').read())"
REQUESTS = "import requests; print(requests.get('http://good.test/py').text, requests.get('https://good.test/py').text)"
SOURCES = "deb [trusted=yes] http://deb.debian.org/debian world main"
APT = f"echo '{SOURCES}' >/tmp/sources.list && apt-get -q -o Dir::Etc::SourceList=/tmp/sources.list -o Dir::Etc::SourceParts=/none"
CARGO = 'mkdir -p p/src && cd p && printf \'[package]\\nname="p"\\nversion="0.1.0"\\nedition="2021"\\n[dependencies]\\nworldpack="1"\\n\' >Cargo.toml && echo \'fn main() {}\' >src/main.rs'
SSH = "ssh -i /workspace/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes"

# Name, program that must be there, policy, command, what must be printed.
TOOLS = [
    ("curl", "curl", "yolo-3", "curl -sS http://good.test/curl https://good.test/curl", 2 * [REACHED]),
    ("wget", "wget", "yolo-3", "wget -qO- http://good.test/wget https://good.test/wget", 2 * [REACHED]),
    ("Python urllib", "python3", "yolo-3", f'python3 -c "{URLLIB}"', 2 * [REACHED]),
    (
        "Python requests",
        "python3:requests",
        "yolo-3",
        f'REQUESTS_CA_BUNDLE={CERTIFICATES} python3 -c "{REQUESTS}"',
        2 * [REACHED],
    ),
    (
        "Node fetch",
        "node",
        "yolo-3",
        f'NODE_EXTRA_CA_CERTS={CERTIFICATES} node --input-type=module -e "{NODE}"',
        2 * [REACHED],
    ),
    ("Node https", "node", "yolo-3", f'NODE_EXTRA_CA_CERTS={CERTIFICATES} node -e "{NODE_PLAIN}"', [REACHED]),
    ("Go net/http", "go", "yolo-3", "./go-client", 2 * [REACHED]),
    ("Java HttpClient", "java", "yolo-3", "java $TRUST World.java", 2 * [REACHED]),
    ("Java URL", "java", "yolo-3", "java $TRUST Old.java", [REACHED]),
    (
        "git over HTTPS",
        "git",
        "yolo-3",
        "git clone -q https://github.com/world/project.git p && cat p/README",
        [SENTENCE],
    ),
    (
        "git over HTTPS at build",
        "git",
        "build",
        "git clone -q https://github.com/world/project.git p && cat p/README",
        [SENTENCE],
    ),
    (
        "git over ssh",
        "ssh",
        "tools",
        f'chmod 600 key && GIT_SSH_COMMAND="{SSH}" git clone -q git@github.com:project.git p && cat p/README',
        [SENTENCE],
    ),
    ("pip", "pip3", "yolo-3", f"PIP_CERT={CERTIFICATES} pip install -q worldpack && python3 -m worldpack", [SENTENCE]),
    (
        "pip at build",
        "pip3",
        "build",
        f"PIP_CERT={CERTIFICATES} pip install -q worldpack && python3 -m worldpack",
        [SENTENCE],
    ),
    (
        "npm",
        "npm",
        "yolo-3",
        f"NODE_EXTRA_CA_CERTS={CERTIFICATES} npm install --no-audit --no-fund --loglevel=error worldpack && node -e 'require(\"worldpack\")'",
        [SENTENCE],
    ),
    (
        "npm at build",
        "npm",
        "build",
        f"NODE_EXTRA_CA_CERTS={CERTIFICATES} npm install --no-audit --no-fund --loglevel=error worldpack && node -e 'require(\"worldpack\")'",
        [SENTENCE],
    ),
    (
        "cargo",
        "cargo",
        "yolo-3",
        f"{CARGO} && RUSTC=/workspace/rustc CARGO_HTTP_CAINFO={CERTIFICATES} ../cargo vendor -q && cat vendor/worldpack/src/lib.rs",
        [SENTENCE],
    ),
    (
        "cargo at build",
        "cargo",
        "build",
        f"{CARGO} && RUSTC=/workspace/rustc CARGO_HTTP_CAINFO={CERTIFICATES} ../cargo vendor -q && cat vendor/worldpack/src/lib.rs",
        [SENTENCE],
    ),
    (
        "apt-get",
        "apt-get",
        "build",
        f"{APT} update && apt-get -q -y -o Dir::Etc::SourceList=/tmp/sources.list -o Dir::Etc::SourceParts=/none install worldpack && worldpack",
        [SENTENCE],
    ),
]
PACKAGES = {
    "go": "golang-go",
    "java": "default-jdk-headless",
    "ssh": "openssh-client",
    "python3:requests": "python3-requests",
    "cargo": "cargo by rustup",
}


def play(stage):
    missing = {program: why for program in sorted({tool[1] for tool in TOOLS}) if (why := _missing(program))}
    brought = _brought(stage, missing)
    for person in (stage.root, stage.user):
        for name, program, policy, command, expected in TOOLS:
            for how, prefix in (("with the proxy", ""), ("without a proxy", WITHOUT)):
                label = f"{name}, {how}, as {'root' if person is stage.root else 'an ordinary user'}"
                if stage.only.removeprefix("tools").strip() not in label:
                    continue
                if program in missing:
                    required = os.environ.get("SANDBOX_TESTS_REQUIRE")
                    stage.report(label, f"{missing[program]} is not installed" if required else None, "tools")
                    print(f"    skipped: {missing[program]} is not installed")
                    continue
                stage.report(label, _tried(person, policy, command, prefix, expected, brought), "tools")


def _missing(program):
    """The package that has it, where it is not there."""
    name, _, module = program.partition(":")
    if program == "cargo":
        return None if _cargo() else PACKAGES[program]
    if module:
        found = subprocess.run([name, "-c", f"import {module}"], capture_output=True).returncode == 0
    else:
        found = shutil.which(name)
    return None if found else PACKAGES.get(program, name)


def _cargo():
    """cargo itself, not rustup's stand-in for it: the sandbox sees no home of anybody."""
    homes = [os.environ.get("RUSTUP_HOME", ""), "/root/.rustup", os.path.expanduser("~/.rustup")]
    found = [file for home in homes if home for file in pathlib.Path(home, "toolchains").glob("*/bin/cargo")]
    return max(found, key=lambda file: file.stat().st_mtime, default=None)


def _brought(stage, missing):
    """Files that are in /workspace when a tool starts, if its command names them."""
    folder = pathlib.Path(stage.folder, "brought")
    folder.mkdir()
    (folder / "World.java").write_text(JAVA)
    (folder / "Old.java").write_text(OLD_JAVA)
    shutil.copy(f"{stage.folder}/key", folder / "key")
    if "go" not in missing:
        (folder / "client.go").write_text(GO)
        variables = {**os.environ, "HOME": str(folder), "GOCACHE": f"{stage.folder}/go-cache", "GO111MODULE": "off"}
        subprocess.run(["go", "build", "-o", "go-client", "client.go"], cwd=folder, env=variables, check=True)
    if "cargo" not in missing:
        shutil.copy(_cargo(), folder / "cargo")
        # To fetch, cargo wants to know only which compiler there would be; the real one is a hundred times as large.
        version = subprocess.run(
            [_cargo().with_name("rustc"), "-vV"], check=True, capture_output=True, text=True
        ).stdout
        (folder / "rustc").write_text(f"#!/bin/sh\ncat <<'E'\n{version}E\n")
        (folder / "rustc").chmod(0o755)
    if "java" not in missing:
        words = [
            "keytool",
            "-importcert",
            "-noprompt",
            "-alias",
            "world",
            "-file",
            f"{stage.folder}/authority.pem",
            "-keystore",
            "trust",
            "-storepass",
            "changeit",
        ]
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
    return folder


def _tried(person, policy, command, prefix, expected, brought):
    """Why a tool did not do what it should."""
    content = io.BytesIO()
    wanted = [file for file in brought.iterdir() if file.name in command or file.name == "trust" and "java" in command]
    with tarfile.open(fileobj=content, mode="w") as archive:
        for file in wanted:
            archive.add(file, file.name)
    trust = "-Djavax.net.ssl.trustStore=/workspace/trust -Djavax.net.ssl.trustStorePassword=changeit"
    words = [
        "sh",
        "-c",
        f'tar xof - && export TRUST="$2" && exec {prefix} sh -c "$1" </dev/null 2>&1',
        "sh",
        command,
        trust,
    ]
    try:
        done = person.exec(policy, words, content.getvalue(), seconds=180)
    except subprocess.TimeoutExpired:
        return "did not end within 180 s"
    text = done.stdout.decode(errors="replace")
    for word in set(expected):
        if text.count(word) < expected.count(word):
            return f"said {text[-1500:]!r} and {done.stderr.decode(errors='replace')[-800:]!r}, with code {done.returncode}"
    return None
