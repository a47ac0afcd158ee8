"""A small server of tools: `python -m tests.fakes.units_server`, with a port for HTTP."""

import asyncio
import os
import sys

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("units")
METRES = {"mm": 0.001, "cm": 0.01, "m": 1.0, "km": 1000.0}


@server.tool()
def convert(value: float, unit: str, to: str) -> str:
    """Convert a length between mm, cm, m and km."""
    for each in (unit, to):
        if each not in METRES:
            raise ToolError(f"there is no unit {each}")
    return f"{value * METRES[unit] / METRES[to]:g}"


@server.tool()
async def nap(seconds: float) -> str:
    """Answer after a while."""
    await asyncio.sleep(seconds)
    return "good morning"


@server.tool()
def shout(characters: int) -> str:
    """Say much."""
    return "a" * characters + "z"


@server.tool()
def picture() -> Image:
    """What agents cannot read."""
    return Image(data=b"\x89PNG", format="png")


@server.tool()
def variable(name: str) -> str:
    """What the environment holds."""
    return os.environ.get(name, "nothing")


@server.tool()
def die() -> str:
    """Take the server down."""
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
