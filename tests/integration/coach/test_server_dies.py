"""The server of a local coach dies at a case, and again while it restarts: all cases are scored."""

import asyncio
import os
from pathlib import Path

import pytest

from mappa_core.coach.budget import Budget
from mappa_core.coach.config import BudgetConfig, CoachModelConfig
from mappa_core.coach.llm_coach import LlmCoach
from mappa_core.coach.providers.local import LocalProvider
from mappa_core.coach.providers.local_server import CoachServer
from mappa_core.coach.rubrics import load_rubrics
from mappa_core.core.errors import EngineError
from mappa_core.core.records.scores import CoachScore, Unscored
from mappa_core.core.settings import Settings
from mappa_core.models.serving.fork_server import ForkServer
from mappa_core.models.serving.server import ForkedServers, Server
from tests.unit.coach.cases import make_case

CASES = 4
# In the place of vLLM. The first server dies of its first case, the next two while they start.
MORTAL = """
import json, os, sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from mappa_core.models.serving.fork_server_script import serve_requests

arguments = serve_requests()
if arguments is None:
    sys.exit(7)
starts, _, address = arguments
with open(starts, "a") as file:
    file.write("started\\n")
number = len(Path(starts).read_text().split())
if number in (2, 3):
    os._exit(9)

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, text):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        self.answer("")

    def do_POST(self):
        if number == 1:
            os._exit(9)
        self.rfile.read(int(self.headers["Content-Length"]))
        delta = {"role": "assistant", "content": json.dumps({"rationale": "Fine.", "score": 7.5})}
        choice = {"index": 0, "delta": delta, "finish_reason": "stop"}
        head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "judge"}
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        parts = ({"choices": [choice]}, {"choices": [], "usage": usage})
        told = "".join(f"data: {json.dumps(head | part)}\\n\\n" for part in parts)
        self.answer(told + "data: [DONE]\\n\\n")

ThreadingUnixStreamServer(address, Handler).serve_forever()
"""


class Mortal(CoachServer):
    """Starts the script above."""

    def __init__(self, config: CoachModelConfig, folder: Path) -> None:
        super().__init__(config, Settings())
        self._folder = folder

    def _prepared(self) -> Server:
        script = self._folder / "mortal.py"
        script.write_text(MORTAL)
        self._servers = ForkedServers(ForkServer(script, os.environ, self._folder / "fork.log"))
        return self._servers.open(0, [str(self._folder / "starts")], self._folder / "log")


def scored(folder: Path, restarts: int) -> list[CoachScore | Unscored]:
    """Have some cases scored at once by a coach whose server may restart so often."""
    server = {"rationale_characters": 60, "restarts": restarts, "start_seconds": 60}
    config = CoachModelConfig.model_validate(
        {"backend": "local", "model": "judge", "max_output_tokens": 400, "server": server}
    )

    async def body() -> list[CoachScore | Unscored]:
        mortal = Mortal(config, folder)
        provider = LocalProvider(config, mortal)
        rubrics = load_rubrics("mathchat", "paper-1")
        coach = LlmCoach(provider, rubrics, config, Budget(BudgetConfig()))
        try:
            cases = [make_case(f"Plan {number}.") for number in range(CASES)]
            return await asyncio.gather(*map(coach.score, cases))
        finally:
            await mortal.close()

    return asyncio.run(body())


def test_a_server_killed_again_while_it_restarts_loses_no_case(tmp_path: Path) -> None:
    scores = scored(tmp_path, restarts=3)
    assert [isinstance(score, CoachScore) for score in scores] == [True] * CASES
    assert len((tmp_path / "starts").read_text().split()) == 4


def test_a_server_that_dies_too_often_ends_the_run_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"the coach's server died 3 times: read .*--resume"):
        scored(tmp_path, restarts=2)
    assert len((tmp_path / "starts").read_text().split()) == 3
