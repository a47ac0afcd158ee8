"""A tracker and a registry in memory, held to the contract of the real ones."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from mappa_core.core.errors import TrackerError
from mappa_core.core.records.episodes import Episode, Phase, PolicyVersion
from mappa_core.core.records.runs import Run, RunStatus
from mappa_core.core.records.scores import ScoreEntry
from mappa_core.core.records.updates import Checkpoint, RegisteredVersion


class MemoryTracker:
    """`ports.Tracker`; what it was told is in plain attributes."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.statuses: dict[str, RunStatus] = {}
        self.files: dict[tuple[str, str], str] = {}
        self.metrics: defaultdict[str, dict[tuple[int, str], float]] = defaultdict(dict)

        self.traces: defaultdict[str, dict[UUID, tuple[Episode, tuple[ScoreEntry, ...]]]] = (
            defaultdict(dict)
        )

    def start(self, run: Run) -> str:
        tracker_run_id = run.id.hex
        self.runs[tracker_run_id] = run
        self.statuses[tracker_run_id] = RunStatus.RUNNING
        return tracker_run_id

    def log(self, tracker_run_id: str, step: int, metrics: Mapping[str, float]) -> None:
        self._check(tracker_run_id)
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self.metrics[tracker_run_id] |= {(step, name): value for name, value in finite.items()}

    def trace(self, tracker_run_id: str, episode: Episode, entries: Sequence[ScoreEntry]) -> None:
        self._check(tracker_run_id)
        self.traces[tracker_run_id][episode.id] = (episode, tuple(entries))

    def traced(self, tracker_run_id: str, phase: Phase, iteration: int) -> int:
        self._check(tracker_run_id)
        return sum(
            (episode.phase, episode.iteration) == (phase, iteration)
            for episode, _ in self.traces[tracker_run_id].values()
        )

    def attach(self, tracker_run_id: str, file: str, text: str) -> None:
        self._check(tracker_run_id)
        self.files[tracker_run_id, file] = text

    def place(self, tracker_run_id: str, file: str = "") -> str:
        self._check(tracker_run_id)
        return "/".join(part for part in ("#", "runs", tracker_run_id, file) if part)

    def end(self, tracker_run_id: str, status: RunStatus) -> None:
        self._check(tracker_run_id)
        self.statuses[tracker_run_id] = status

    def _check(self, tracker_run_id: str) -> None:
        if tracker_run_id not in self.runs:
            raise TrackerError(f"run {tracker_run_id} was never started")


class MemoryRegistry:
    """`ports.ModelRegistry`; versions in order of registration, per name."""

    def __init__(self) -> None:
        self._checkpoints: defaultdict[str, list[UUID]] = defaultdict(list)
        self._versions: dict[tuple[str, str], RegisteredVersion] = {}
        self.aliases: dict[tuple[str, str], str] = {}

    def register(
        self,
        name: str,
        policy: PolicyVersion,
        checkpoint: Checkpoint,
        *,
        tracker_run_id: str,
        tags: Mapping[str, str],
        alias: str,
    ) -> str:
        versions = self._checkpoints[name]
        if checkpoint.id not in versions:
            versions.append(checkpoint.id)
        version = versions.index(checkpoint.id) + 1
        self._versions.setdefault(
            (name, str(version)),
            RegisteredVersion(
                name=name,
                version=str(version),
                run_id=policy.run_id,
                agent=policy.agent,
                step=policy.step,
                aliases=(),
                tags=dict(tags),
            ),
        )
        self.aliases[name, alias] = str(max(version, int(self.aliases.get((name, alias), "0"))))
        return str(version)

    def models(self) -> tuple[str, ...]:
        return tuple(sorted(self._checkpoints))

    def versions(self, name: str) -> tuple[RegisteredVersion, ...]:
        return tuple(
            replace(version, aliases=self._aliases_of(name, number))
            for (model, number), version in self._versions.items()
            if model == name
        )

    def point(self, name: str, alias: str, version: str, tags: Mapping[str, str]) -> None:
        if (name, version) not in self._versions:
            raise TrackerError(f"{name} has no version {version}")
        known = self._versions[name, version]
        self._versions[name, version] = replace(known, tags={**known.tags, **tags})
        self.aliases[name, alias] = version

    def _aliases_of(self, name: str, version: str) -> tuple[str, ...]:
        return tuple(
            sorted(
                alias
                for (model, alias), at in self.aliases.items()
                if (model, at) == (name, version)
            )
        )
