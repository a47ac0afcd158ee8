"""Waits until Prefect has recorded the task runs of flow runs that are over.

Task runs reach the server as events, and are written to its database some time after.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import httpx

DRAIN_SECONDS = 150.0
"""At most; a server that an earlier version started takes 125 for a burst of 2,500."""
SETTLED_SECONDS = 2.0
"""Without a new row, after which nothing more is expected."""
POLL_SECONDS = 0.3

Filter = Mapping[str, Mapping[str, Mapping[str, object]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Task runs the server knows of."""

    total: int
    unfinished: int


def drain(api_url: str, *, since: datetime) -> None:
    """Wait until Prefect has recorded the task runs of flow runs that started after `since`.

    A server stopped earlier would for ever show tasks that run in flows that are over. Gives up
    after `DRAIN_SECONDS`, or when nothing has arrived for a while: a killed task never ends. There
    is nothing to wait for where the server is gone.
    """
    flow_runs: Filter = {"flow_runs": {"start_time": {"after_": since.isoformat()}}}
    deadline = time.monotonic() + DRAIN_SECONDS
    with (
        suppress(httpx.HTTPError),
        httpx.Client(base_url=api_url, timeout=10, trust_env=False) as client,
    ):
        if not _count(client, "flow_runs", flow_runs):
            return
        last, settled_at = _recorded(client, flow_runs), time.monotonic() + SETTLED_SECONDS
        while time.monotonic() < min(settled_at, deadline):
            time.sleep(POLL_SECONDS)
            now = _recorded(client, flow_runs)
            if now != last:
                wait = SETTLED_SECONDS * (2 if now.unfinished else 1)
                last, settled_at = now, time.monotonic() + wait


def _recorded(client: httpx.Client, flow_runs: Filter) -> Recorded:
    unfinished: Filter = {"task_runs": {"state": {"type": {"any_": ["PENDING", "RUNNING"]}}}}
    total = _count(client, "task_runs", flow_runs)
    running = _count(client, "task_runs", {**flow_runs, **unfinished})
    return Recorded(total=total, unfinished=running)


def _count(client: httpx.Client, what: str, among: Filter) -> int:
    return client.post(f"{what}/count", json=among).raise_for_status().json()
