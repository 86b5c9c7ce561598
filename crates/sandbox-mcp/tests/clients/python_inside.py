"""The official Python client inside a sandbox: it is installed there, finds the tools of its own sandbox, and asks for more."""

import asyncio
import base64
import os
import pathlib
import sys

from mcp import Client, StdioServerParameters
from mcp.types import ElicitResult

INSIDE = """
import asyncio, json, os
from mcp import Client

async def main(mode):
    async with Client(os.environ["SANDBOX_MCP_URL"], mode=mode, read_timeout_seconds=60) as client:
        names = sorted(tool.name for tool in (await client.list_tools()).tools)
        assert "request_access" in names and "create_sandbox" not in names, names
        async def call(name, **arguments):
            return await client.call_tool(name, arguments)
        status = await call("get_sandbox_status")
        ran = await call("run_command", command="echo $((6 * 7))")
        assert ran.structured_content["stdout"] == "42\\n", ran
        other = await call("run_command", command="true", session_id="sandbox_local_0123456789abcdef01234567")
        assert other.is_error, other
        asked = await call("request_access", kind="network", target=f"{mode}.example:22", reason="to push")
        print(json.dumps({"mode": mode, "session": status.structured_content["sandboxes"][0]["session_id"],
                          "granted": asked.structured_content["granted"]}))

for mode in ("legacy", "2026-07-28"):
    asyncio.run(main(mode))
"""


async def main(program: str, version: str, wheels: str) -> None:
    server = StdioServerParameters(command=program, args=["serve"], env=dict(os.environ))
    questions = []

    async def on_question(context, params):
        questions.append(params.message)
        return ElicitResult(action="accept", content={"for": "sandbox"})

    async with Client(server, mode="legacy", read_timeout_seconds=300, elicitation_callback=on_question) as client:

        async def call(name, **arguments):
            result = await client.call_tool(name, arguments)
            assert not result.is_error, result.content
            return result.structured_content

        async def run(session, command):
            ran = await call("run_command", session_id=session, command=command, timeout=500)
            output = ran["stdout"]
            while ran["status"] == "running":
                ran = await call("get_output", session_id=session, job_id=ran["job_id"], offset=ran["next_offset"], wait_seconds=8)
                output += ran["stdout"]
            assert ran["exit_code"] == 0, ran
            return output

        session = (await call("create_sandbox"))["session_id"]
        for wheel in pathlib.Path(wheels).glob("*.whl"):
            content = base64.b64encode(wheel.read_bytes()).decode()
            await call("write_files", session_id=session, files=[{"path": f"wheels/{wheel.name}", "content": content, "encoding": "base64"}])
        await run(session, f"pip install --quiet --no-index --find-links wheels mcp=={version}")
        await call("write_files", session_id=session, files=[{"path": "inside.py", "content": INSIDE}])
        said = await run(session, "python3 inside.py")
        assert said.count(session) == 2 and said.count('"granted": true') == 2, said
        assert len(questions) == 2 and all(session in question for question in questions), questions
        await call("cleanup_session", session_id=session)
        print(said)


asyncio.run(main(*sys.argv[1:]))
