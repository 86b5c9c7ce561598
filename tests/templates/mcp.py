"""Speaks MCP with `docker run -i IMAGE`: commands, files, a long job, and every way in which such a container can end.

    python3 mcp.py DOCKER…      the docker command with its options; the image must be there
"""

import base64
import json
import subprocess
import sys
import threading
import time

IMAGE = "localhost/sandbox-mcp/mcp"
DOCKER = sys.argv[1:]


class Client:
    """One container and a client of it."""

    def __init__(self, *options, image=IMAGE):
        self.name = f"mcp-{time.monotonic_ns()}"
        command = [*DOCKER, "run", "--interactive", "--rm", "--name", self.name, "--network", "none", *options, image]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, **pipes)
        self.number = 0
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        self.hello = self.request("initialize", hello)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def request(self, method, parameters):
        self.number += 1
        self.send({"jsonrpc": "2.0", "id": self.number, "method": method, "params": parameters})
        while True:
            line = self.process.stdout.readline()
            assert line, f"the server ended: {self.process.stderr.read()}"
            answer = json.loads(line)
            if answer.get("id") == self.number:
                return answer

    def call(self, tool, **arguments):
        answer = self.request("tools/call", {"name": tool, "arguments": arguments})
        assert "result" in answer, answer
        return answer["result"]

    def ok(self, tool, **arguments):
        result = self.call(tool, **arguments)
        assert not result.get("isError"), result
        return result["structuredContent"]

    def run(self, command, **more):
        return self.ok("run_command", command=command, **more)

    def close(self):
        self.process.stdin.close()
        return self.process.wait(20)


def docker(*words):
    return subprocess.run([*DOCKER, *words], capture_output=True, text=True, timeout=60)


def tools_are_those_of_one_sandbox():
    client = Client()
    tools = {tool["name"]: tool for tool in client.request("tools/list", {})["result"]["tools"]}
    wanted = {"run_command", "get_output", "write_files", "get_files", "list_files", "get_sandbox_status"}
    assert set(tools) == wanted, set(tools)
    assert "session_id" not in json.dumps([tool["inputSchema"] for tool in tools.values()])
    for other in ["create_sandbox", "cleanup_session", "exit_container", "execute_task", "request_access", "open_port"]:
        assert "error" in client.request("tools/call", {"name": other, "arguments": {}}), other
    refused = client.call("run_command", command="true", session_id="sandbox_local_0123456789abcdef0123456789abcdef")
    assert refused["isError"] and "this one sandbox" in refused["content"][0]["text"], refused
    assert client.close() == 0


def commands_and_files():
    client = Client("--read-only", "--tmpfs", "/tmp", "--mount", "type=volume,dst=/workspace", "--env", "MINE=given")
    ran = client.run("id -un; pwd; echo $MINE ${MCP_MODE-none}; echo oops >&2; exit 3")
    assert (ran["stdout"], ran["stderr"], ran["exit_code"]) == ("sandbox\n/workspace\ngiven none\n", "oops\n", 3), ran
    content = base64.b64encode(bytes(range(256))).decode()
    client.ok("write_files", files=[{"path": "in/data.bin", "content": content, "encoding": "base64"}])
    assert client.run("sha256sum < in/data.bin")["stdout"] == client.run("printf '%b' \"$(printf '\\\\%03o' $(seq 0 255))\" | head -c 256 | sha256sum")["stdout"]
    client.run("mkdir out; echo text > out/a.txt")
    listed = json.dumps(client.ok("list_files"))
    assert "out/a.txt" in listed and "in/data.bin" in listed, listed
    (found,) = client.ok("get_files", paths=["out/a.txt"])["files"]
    assert base64.b64decode(found["content"]) == b"text\n", found
    refused = client.call("write_files", files=[{"path": "/etc/made", "content": "x"}])
    assert refused["isError"], refused
    assert client.close() == 0


def a_long_job_goes_on_and_is_killed():
    client = Client()
    begun = client.run("echo begun; (setsid sleep 1000 &) ; while :; do sleep 0.1; done", wait_seconds=1)
    assert (begun["status"], begun["stdout"]) == ("running", "begun\n"), begun
    assert client.run("echo beside")["stdout"] == "beside\n"
    status = client.ok("get_sandbox_status")["sandboxes"][0]
    assert [job["status"] for job in status["jobs"]] == ["running", "exited"], status["jobs"]
    ended = client.ok("get_output", job_id=begun["job_id"], signal="SIGKILL", wait_seconds=5)
    assert ended["status"] in ("killed", "exited") and ended["signal"] == "SIGKILL", ended
    # The whole tree, also what left its session; and the server goes on.
    left = client.run("pgrep -x sleep; true")["stdout"]
    assert left == "", left
    late = client.run("sleep 1000", timeout=1, wait_seconds=5)
    assert late["status"] not in ("running", "success"), late
    assert client.close() == 0


def what_the_engine_holds_is_told():
    client = Client("--memory", "64m", "--pids-limit", "77", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL",
                    "--security-opt", "no-new-privileges")
    status = client.ok("get_sandbox_status")["sandboxes"][0]
    held = status["enforcement"]
    assert (status["policy"], status["backend"]) == ("container", "here"), status
    assert held["memory"]["held"] == "kernel" and "64 MiB" in held["memory"]["by"], held
    assert held["pids"]["held"] == "kernel" and "77" in held["pids"]["by"], held
    for wall in ["network", "filesystem", "privileges", "system_calls"]:
        assert held[wall]["held"] == "kernel", (wall, held)
    assert held["disk"]["held"] == "none" and held["time"]["held"] == "supervised", held
    assert client.close() == 0
    client = Client("--security-opt", "seccomp=unconfined")
    held = client.ok("get_sandbox_status")["sandboxes"][0]["enforcement"]
    for wall in ["memory", "pids", "filesystem", "system_calls"]:
        assert held[wall]["held"] == "none", (wall, held)
    assert client.close() == 0


def the_first_process_buries_orphans_and_commands_reach_neither_it_nor_the_server():
    client = Client()
    # What `docker exec` leaves behind has no parent but the first process.
    assert docker("exec", client.name, "sh", "-c", "(sleep 0.2 &) ; (sleep 0.3 &)").returncode == 0
    time.sleep(1)
    zombies = client.run("ps -eo stat,comm | grep ^Z; true")["stdout"]
    assert zombies == "", zombies
    for file in ["mem", "environ", "fd/1"]:
        for process in client.run("pgrep -f sandbox-mcp; pgrep -x sandbox-executor; true")["stdout"].split() + ["1"]:
            tried = client.run(f"head -c 1 /proc/{process}/{file} > /dev/null && echo read; echo x >> /proc/{process}/{file} && echo written")
            assert tried["stdout"] == "", (process, file, tried)
    # Signals to all that there are reach neither the first process nor what it can go on without.
    client.run("kill -9 1; true")
    assert client.run("echo still")["stdout"] == "still\n"
    assert client.close() == 0


def the_container_ends_with_its_input_and_with_a_signal():
    client = Client()
    client.run("sleep 1000", wait_seconds=0)
    begin = time.monotonic()
    assert client.close() == 0 and time.monotonic() - begin < 10
    client = Client()
    client.run("sleep 1000", wait_seconds=0)
    begin = time.monotonic()
    assert docker("stop", "--time", "20", client.name).returncode == 0
    assert client.process.wait(20) == 143 and time.monotonic() - begin < 10
    client = Client()
    client.process.kill()
    docker("rm", "--force", client.name)
    # Killing the server from inside ends the container: nothing goes on without it.
    client = Client()
    begin = time.monotonic()
    threading.Thread(target=docker, args=("exec", client.name, "sh", "-c", "kill -9 $(pgrep -f sandbox-mcp | grep -vx 1)")).start()
    assert client.process.wait(20) == 137 and time.monotonic() - begin < 15


def another_mode_is_an_error():
    for mode in ["gateway", "SANDBOX"]:
        tried = docker("run", "--rm", "--network", "none", "--env", f"MCP_MODE={mode}", IMAGE)
        assert tried.returncode == 1 and "must be `sandbox`" in tried.stderr, tried
    version = docker("run", "--rm", "--network", "none", IMAGE, "--version")
    assert version.stdout.startswith("sandbox-mcp "), version


def main():
    tests = [tools_are_those_of_one_sandbox, commands_and_files, a_long_job_goes_on_and_is_killed,
             what_the_engine_holds_is_told, the_first_process_buries_orphans_and_commands_reach_neither_it_nor_the_server,
             the_container_ends_with_its_input_and_with_a_signal, another_mode_is_an_error]
    failed = 0
    for test in tests:
        begin = time.monotonic()
        try:
            test()
            print(f"found: {test.__name__.replace('_', ' ')} ({time.monotonic() - begin:.1f} s)")
        except Exception as error:  # noqa: BLE001
            import traceback
            failed += 1
            print(f"FAILED {test.__name__}: {error}")
            traceback.print_exc()
    sys.exit(failed > 0)


main()
