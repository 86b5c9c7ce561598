"""A model that follows a script, on the Messages API, streaming and plain: what a client sends decides the next step.

usage: scripted_model.py PORT_FILE
The step is the number of assistant turns that the request already holds, so the server needs no memory.
"""

import base64
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CSV = "name,amount\nann,3\nbob,4\n"
SUM = "awk -F, 'NR>1{s+=$2} END{print s}' sales.csv > total.txt"
PREFIX = "mcp__sandbox__"


def results(request):
    """The texts of all tool results, oldest first."""
    for message in request["messages"]:
        content = message["content"]
        for block in content if isinstance(content, list) else []:
            if block.get("type") == "tool_result":
                inner = block.get("content", "")
                yield inner if isinstance(inner, str) else "".join(part.get("text", "") for part in inner)


def found(request, name):
    """The newest value of this name in any tool result."""
    for text in reversed(list(results(request))):
        try:
            value = json.loads(text)
        except ValueError:
            continue
        if name in value:
            return value[name]
    return None


def step(request):
    """One content block: a tool to use, or the last word."""
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    session = found(request, "session_id")
    script = [
        lambda: ("create_sandbox", {}),
        lambda: ("write_files", {"session_id": session, "files": [{"path": "sales.csv", "content": CSV}]}),
        lambda: ("run_command", {"session_id": session, "command": SUM}),
        lambda: ("get_files", {"session_id": session, "paths": ["total.txt"]}),
        lambda: ("cleanup_session", {"session_id": session}),
    ]
    if not request.get("tools"):
        return {"type": "text", "text": "A title"}
    if turn < len(script):
        tool, arguments = script[turn]()
        return {"type": "tool_use", "id": f"toolu_{turn:04}", "name": PREFIX + tool, "input": arguments}
    files = found(request, "files") or []
    total = base64.b64decode(files[0]["content"]).decode().strip() if files else "unknown: " + " | ".join(results(request))
    return {"type": "text", "text": f"The total is {total}."}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_GET(self):
        self.answer("application/json", b"{}")

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        names = [tool.get("name") for tool in request.get("tools", []) if tool.get("name", "").startswith(PREFIX)]
        print(self.path, "turns:", len(request.get("messages", [])), "tools:", names, file=sys.stderr, flush=True)
        block = step(request)
        reason = "tool_use" if block["type"] == "tool_use" else "end_turn"
        usage = {"input_tokens": 1, "output_tokens": 1}
        turn = len(request.get("messages", []))
        message = {"id": f"msg_{turn}", "type": "message", "role": "assistant", "model": request.get("model"), "usage": usage}
        if not request.get("stream"):
            whole = message | {"content": [block], "stop_reason": reason, "stop_sequence": None}
            return self.answer("application/json", json.dumps(whole).encode())
        if block["type"] == "tool_use":
            start, delta = block | {"input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        else:
            start, delta = block | {"text": ""}, {"type": "text_delta", "text": block["text"]}
        events = [
            {"type": "message_start", "message": message | {"content": [], "stop_reason": None, "stop_sequence": None}},
            {"type": "content_block_start", "index": 0, "content_block": start},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage},
            {"type": "message_stop"},
        ]
        lines = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        self.answer("text/event-stream", lines.encode())

    def answer(self, kind, body):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open(sys.argv[1], "w") as port_file:
    port_file.write(str(server.server_port))
server.serve_forever()
