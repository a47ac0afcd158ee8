"""What a run's page says is to be done next, and why it failed."""

import asyncio
from typing import cast

import pytest

from flows import pages
from flows.pages import next_step, shown
from mappa_core.app.services import Services
from mappa_core.core.errors import CoachError
from mappa_core.evaluate.comparison import Comparison
from tests.builders import make_run


def measured(difference: float, low: float, high: float) -> Comparison:
    return Comparison(
        problems=32,
        changed=12,
        episodes=64,
        before=0.5,
        after=0.5 + difference,
        difference=difference,
        low=low,
        high=high,
    )


BETTER, WORSE = measured(0.2, 0.1, 0.3), measured(-0.2, -0.3, -0.1)


@pytest.mark.parametrize(
    ("comparison", "verdict", "command"),
    [
        (BETTER, "equivalent", "mappa promote toy"),
        # What promotion would object to comes first.
        (BETTER, "cannot tell", "mappa audit toy --experiment 200"),
        (BETTER, "", "mappa audit toy"),
        (BETTER, "suspected", "mappa audit toy --experiment 200"),
        (BETTER, "biased", "mappa audit toy"),
        (WORSE, "equivalent", "mappa report toy"),
        # Two episodes a problem could not tell; four times as many may.
        (measured(0.0, -0.1, 0.1), "equivalent", "mappa evaluate toy evaluation.samples=8"),
    ],
)
def test_the_next_command_follows_from_gain_and_audit(
    comparison: Comparison, verdict: str, command: str
) -> None:
    assert next_step("toy", comparison, verdict)[0] == command


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (CoachError("no key"), "failed\n\nno key\n"),
        (ValueError("7"), "failed\n\nNot expected: `ValueError('7')`\n"),
    ],
)
def test_a_run_that_fails_by_whatever_is_not_left_in_training(
    failure: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    async def artifact(*, markdown: str, **_: str) -> None:
        told.append(markdown)

    def tracked(*_: object) -> str:
        return ""

    monkeypatch.setattr(pages, "acreate_markdown_artifact", artifact)
    monkeypatch.setattr(pages, "_tracked", tracked)
    services = cast(Services, type("Nothing", (), {"dashboard": None}))

    async def body() -> None:
        async with shown(services, make_run()):
            raise failure

    with pytest.raises(type(failure)):
        asyncio.run(body())
    training, failed = told
    assert "is training" in training
    assert said in failed
