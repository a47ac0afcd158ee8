"""Servers that share cores compute one step at a time: vLLM's engine with its step replaced."""

import json
import subprocess
import sys
from itertools import pairwise

# Forks a server for each turn in sys.argv (`-` for none), which takes three steps of 0.1 s each;
# the first is killed in its first step, for which the others come while it holds the turn.
SERVERS = """
import json, os, signal, sys, time
from types import SimpleNamespace
from vllm.v1.engine import core
from mappa_core.models.serving import fork_server_script
from mappa_core.models.serving.fork_server import TURN

def step(self):
    began = time.monotonic()
    time.sleep(0.1)
    if self.killed:
        os.kill(os.getpid(), signal.SIGKILL)
    os.write(1, (json.dumps([self.name, self.looked, began, time.monotonic()]) + "\\n").encode())
    return True

assert callable(core.EngineCoreProc._process_engine_step)
core.EngineCoreProc._process_engine_step = step
fork_server_script._compute_in_turns()
start = time.monotonic() + 0.5
for name, turn in enumerate(sys.argv[1:]):
    if os.fork() == 0:
        time.sleep(start + 0.02 * (name > 0) - time.monotonic())
        given = {} if turn == "-" else {TURN: int(turn)}
        server = SimpleNamespace(
            name=name, looked=0, killed=name == 0,
            vllm_config=SimpleNamespace(additional_config=given),
        )
        def look():
            server.looked += 1
        server._process_input_queue = look
        for _ in range(3):
            assert core.EngineCoreProc._process_engine_step(server)
        os._exit(0)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""


def test_servers_of_one_turn_never_compute_at_once_and_a_killed_one_holds_nobody_up() -> None:
    command = [sys.executable, "-c", SERVERS, "0", "0", "0", "1", "-"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    steps = [json.loads(line) for line in told.splitlines()]
    assert sorted(name for name, *_ in steps) == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    in_turn = sorted(step[2:] for step in steps if step[0] in (1, 2))
    assert all(ended <= began for (_, ended), (began, _) in pairwise(in_turn))
    # Whoever has had a turn waits for the other one.
    order = [step[0] for step in sorted(steps, key=lambda each: each[2]) if step[0] in (1, 2)]
    assert order in ([1, 2] * 3, [2, 1] * 3)
    # Others are not waited for.
    others = [step for step in steps if step[0] in (3, 4)]
    assert min(ended for *_, ended in others) < in_turn[-1][0]
    # What came while one waited is looked for again, where it had to wait at all.
    assert max(looked for name, looked, *_ in steps if name != 4) == 3
    assert all(looked == 0 for name, looked, *_ in steps if name == 4)
