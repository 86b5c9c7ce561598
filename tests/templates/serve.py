"""A server's sandbox of a template: what is in it, and the tools that a program inside finds.

    python3 serve.py PROGRAM TEMPLATE      with the settings in the environment
"""

import json
import subprocess
import sys

program, template = sys.argv[1:]
server = subprocess.Popen([program, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
number = 0


def request(method, parameters):
    global number
    number += 1
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": parameters}
    server.stdin.write(json.dumps(message) + "\n")
    server.stdin.flush()
    while True:
        answer = json.loads(server.stdout.readline())
        if answer.get("id") == number:
            return answer


def call(tool, **arguments):
    result = request("tools/call", {"name": tool, "arguments": arguments})["result"]
    assert not result.get("isError"), result
    return result["structuredContent"]


hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
request("initialize", hello)
made = call("create_sandbox", template=template)
session = made["session_id"]
ran = call("run_command", session_id=session, command="id -un; id -u; pwd; cat /etc/debian_version", wait_seconds=8)
assert ran["stdout"].startswith("sandbox\n1000\n/workspace\n12"), ran
ask = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "get_sandbox_status", "arguments": {}}})
curl = ("curl -s $SANDBOX_MCP_URL -H 'content-type: application/json' -H 'accept: application/json, text/event-stream' "
        f"-H 'mcp-protocol-version: 2025-11-25' -d '{ask}'")
ran = call("run_command", session_id=session, command=curl, wait_seconds=8)
status = json.loads(ran["stdout"])["result"]["structuredContent"]["sandboxes"][0]
assert status["session_id"] == session, status
print(f"found: {made['image']} on {status['backend']}, with the policy {status['policy']}; a program inside found its tools")
call("cleanup_session", session_id=session)
server.stdin.close()
assert server.wait(30) == 0
