"""The README's second preset: the team learns from the scores of a language model alone."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.e2e.person import type_in

COACH = "MAPPA_TEST_COACH"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(
        COACH not in os.environ, reason=f"{COACH} names no folder with a model as coach"
    ),
]


def test_the_preset_learns_from_a_language_model(open_folder: Path) -> None:
    typed = type_in(
        open_folder / "llm-coach",
        *("bench", "quickstart", "preset=quickstart_llm_coach", "seeds=1", "--json"),
        f"coach.model={os.environ[COACH]}",
        timeout=5000,
    )
    figures = json.loads(typed.printed)["figures"]
    found = {each["name"].partition(": ")[2]: each for each in figures}
    sys.stdout.write(f"{found}\n{typed.peak_gib:.1f} GiB at most\n")
    # Of another seed or a busy machine minutes and points are others; that it learns is not.
    assert found["lower end of its 95 % interval"]["met"]
    assert found["actions unscored"]["met"]
    assert found["the whole command"]["value"] > found["a run, after its start"]["value"]
    assert any(name.startswith("the coach's mark (passed)") for name in found)
