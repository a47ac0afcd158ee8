import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.core.records.tools import Artifact, Limits, RejectedFile, ToolResult, ToolStatus
from mappa_core.rollout.sandboxes.supervisor import messages
from mappa_core.rollout.sandboxes.supervisor.fork_server import receive_request


@given(st.text(st.characters(), max_size=200))
def test_any_code_arrives_as_it_was_sent(code: str):
    request = messages.Request(
        code=code + "\ud800\0", workspace=None, limits=Limits(wall_seconds=2.5)
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(messages.with_length(messages.encode(request)))
        assert receive_request(theirs) == request


def test_a_caller_who_goes_away_is_noticed():
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(b"\0\0\0")
        ours.close()
        with pytest.raises(EOFError):
            receive_request(theirs)


def test_a_result_arrives_as_it_was_sent():
    result = ToolResult(
        code="",
        status=ToolStatus.TIMEOUT,
        exit_code=None,
        stdout="\\xff é\0",
        stderr="",
        stdout_omitted_bytes=3,
        stderr_omitted_bytes=0,
        seconds=1.5,
        cpu_seconds=0.25,
        peak_memory_bytes=7,
        tier="landlock+seccomp",
        written=(Artifact(name="a", size_bytes=1, sha256="0" * 64),),
        rejected=(RejectedFile(name="b", reason="a link"),),
    )
    assert messages.decode_reply(messages.encode(result)) == result
    failure = messages.Failure(reason="no")
    assert messages.decode_reply(messages.encode(failure)) == failure
