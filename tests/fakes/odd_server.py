"""A server of tools by hand that does one thing in an odd way: `python odd_server.py WAY`."""

import json
import sys
from typing import Any

WAY = sys.argv[-1]
OLD_SCHEMA = {
    "$schema": "http://json-schema.org/draft-04/schema#",
    "type": "object",
    "properties": {"value": {"type": "number", "minimum": 0, "exclusiveMinimum": True}},
}
TOOLS: dict[str, list[dict[str, Any]]] = {
    "twins": [{"name": "odd"}, {"name": "odd"}],
    "promises": [{"name": "odd", "outputSchema": {"type": "object", "required": ["sum"]}}],
    "is old": [{"name": "odd", "inputSchema": OLD_SCHEMA}],
}
SAID: dict[str, dict[str, Any]] = {
    "babbles": {"content": 7},
    "keeps to itself": {"content": [], "structuredContent": {"sum": 41}},
}


def answer(number: int, result: dict[str, Any], kind: str = "result") -> None:
    said = json.dumps({"jsonrpc": "2.0", "id": number, kind: result}, ensure_ascii=False)
    encoding = "latin-1" if WAY == "writes latin" else "utf-8"
    sys.stdout.buffer.write(said.encode(encoding) + b"\n")
    sys.stdout.buffer.flush()


def serve(request: dict[str, Any]) -> None:
    number, method = request.get("id"), request["method"]
    if number is None:
        return
    if method == "initialize":
        versions = {"is from elsewhere": "0001-01-01", "is confused": 7}
        version = versions.get(WAY, request["params"]["protocolVersion"])
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": WAY, "version": "1"}}
        answer(number, {"protocolVersion": version, **about})
    elif method == "tools/list" and WAY != "is mute":
        tools = [
            {"inputSchema": {"type": "object"}, **each}
            for each in TOOLS.get(WAY, [{"name": "odd"}])
        ]
        answer(number, {"tools": tools} | ({"nextCursor": "on"} if WAY == "never ends" else {}))
        if WAY == "leaves":
            sys.exit()
    elif method == "tools/call":
        answer(number, SAID.get(WAY, {"content": [{"type": "text", "text": "café"}]}))
    elif method not in ("tools/list", "tools/call"):
        answer(number, {"code": -32601, "message": "no such method"}, "error")


if __name__ == "__main__":
    for line in sys.stdin:
        serve(json.loads(line))
