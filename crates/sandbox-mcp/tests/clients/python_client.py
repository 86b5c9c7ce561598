"""The official Python client, in both eras of the protocol."""

import asyncio
import base64
import os
import sys

from mcp import Client, StdioServerParameters
from mcp.types import ElicitResult

CSV = "name,amount\nann,3\nbob,4\n"
SUM = "awk -F, 'NR>1{s+=$2} END{print s}' sales.csv > total.txt; echo counted"


async def main(program: str, mode: str) -> None:
    server = StdioServerParameters(command=program, args=["serve"], env=dict(os.environ))
    progress = []
    questions = []

    async def on_progress(value, total, message):
        progress.append((value, message))

    async def on_question(context, params):
        questions.append(params.message)
        return ElicitResult(action="accept", content={"for": "once"})

    async def call(name, arguments, **more):
        result = await client.call_tool(name, arguments, **more)
        assert not result.is_error, result.content
        return result.structured_content

    async with Client(server, mode=mode, read_timeout_seconds=60, elicitation_callback=on_question) as client:
        tools = (await client.list_tools()).tools
        assert "run_command" in [tool.name for tool in tools], tools
        session = (await call("create_sandbox", {}))["session_id"]
        await call("write_files", {"session_id": session, "files": [{"path": "sales.csv", "content": CSV}]})
        ran = await call("run_command", {"session_id": session, "command": SUM})
        assert (ran["exit_code"], ran["stdout"]) == (0, "counted\n"), ran
        got = await call("get_files", {"session_id": session, "paths": ["total.txt"]})
        assert base64.b64decode(got["files"][0]["content"]) == b"7\n", got
        slow = {"session_id": session, "command": "for i in 1 2 3; do echo $i; sleep 1; done"}
        await call("run_command", slow, progress_callback=on_progress)
        assert progress, "no progress came"
        ran = await call("run_command", {"session_id": session, "command": "ssh -V"})
        assert ran["status"] == "exited" and len(questions) == 1 and session in questions[0], (ran, questions)
        refused = await client.call_tool("run_command", {"session_id": session, "comand": "true"})
        assert refused.is_error and "command" in refused.content[0].text, refused
        await call("cleanup_session", {"session_id": session})
        print(mode, client.protocol_version, "progress:", len(progress))


for mode in ("legacy", "auto", "2026-07-28"):
    asyncio.run(main(sys.argv[1], mode))
