"""A server with SandboxFusion's documented `POST /run_code`, as the real one runs Python.

Started as a process of its own: `python fusion_server.py [PORT]`, which prints its port. Like the
real one it makes a temporary folder, runs the code as a plain subprocess, reports a time limit
without an exit code, leaves out files that are not there, and validates its input with 422.
"""

import base64
import json
import subprocess
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not isinstance(body.get("code"), str) or body.get("language") != "python":
            self._answer(422, {"detail": "code and language are required"})
            return
        self._answer(200, run_code(body))

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def run_code(body: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="fusion-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for path, data in body.get("files", {}).items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(base64.b64decode(data))
        (folder / "code.py").write_text(body["code"])
        command = _run([sys.executable, "code.py"], folder, body.get("run_timeout", 10))
        fetched = {
            path: base64.b64encode((folder / path).read_bytes()).decode()
            for path in body.get("fetch_files", [])
            if (folder / path).is_file()
        }
    good = command["status"] == "Finished" and command["return_code"] == 0
    return {
        "status": "Success" if good else "Failed",
        "message": "",
        "compile_result": None,
        "run_result": command,
        "executor_pod_name": None,
        "files": fetched,
    }


def _run(command: list[str], folder: Path, seconds: float) -> dict[str, Any]:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {
            "status": "TimeLimitExceeded",
            "execution_time": seconds,
            "return_code": None,
            "stdout": "",
            "stderr": "",
        }
    return {
        "status": "Finished",
        "execution_time": 0.1,
        "return_code": done.returncode,
        "stdout": done.stdout,
        "stderr": done.stderr,
    }


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int((sys.argv[1:] or ["0"])[0])), Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()
