"""Experiments on made-up actions: a coach is a function of the work and of what it is told."""

from collections.abc import Callable, Sequence

import numpy as np

from mappa_core.audit.frame import Experiment, Factor

Told = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Points on top of quality, by the type that the coach is told, the agent and the success."""


def make_experiment(
    rng: np.random.Generator,
    favour: Told,
    *,
    problems: int = 120,
    actions: int = 200,
    noise: float = 1.0,
    types: Sequence[str] = ("a", "b"),
    agents: Sequence[str] = ("solver",),
    lost: float = 0.0,
    drift: float = 0.0,
    level: float = 7.0,
    heaps: Sequence[float] = tuple(range(11)),
    uneven: float = 0.0,
    low_lost: float = 0.0,
) -> Experiment:
    """Scores of actions whose difficulty goes with their type; `drift` is what the coach gives
    more today than when it trained, `lost` the share of scorings without a score, `level` the mean
    quality of the first type's work, which is the easier one's, `heaps` all scores there are, and
    `uneven` the deviation of what each type's name is worth on each problem.
    """
    given = np.array(heaps)
    kind = np.arange(problems) % len(types)
    problem = rng.integers(problems, size=actions)
    own, agent = kind[problem], rng.integers(len(agents), size=actions)
    quality = level - 2.0 * own + rng.normal(0, 1.5, problems)[problem] + rng.normal(0, 1, actions)
    success = (quality + rng.normal(0, 1.5, actions) > 6).astype(float)

    shape = (problems, len(types))
    worth = rng.normal(0, uneven, shape) if uneven else np.zeros(shape)

    def scored(told: np.ndarray) -> np.ndarray:
        raw = (
            quality
            + worth[problem, told]
            + favour(told, agent, success)
            + rng.normal(0, noise, actions)
        )
        nearest = given[np.abs(raw[:, None] - given).argmin(axis=1)]
        low = (told == 1) & (nearest < 5)
        return np.where(rng.random(actions) < np.maximum(lost, low * low_lost), np.nan, nearest)

    asked = [("as it was", own, ""), ("again", own, "")]
    asked += [("task type", (own + k) % len(types), None) for k in range(1, len(types))]
    asked += [("padded", own, ""), ("rubric order", own, "")]
    stored = scored(own) - drift
    put = [
        np.array(types)[told] if word is None else np.full(actions, word) for _, told, word in asked
    ]
    times = len(asked)
    return Experiment(
        action=Factor.of([str(number) for number in np.tile(np.arange(actions), times)]),
        problem=Factor.of([str(number) for number in np.tile(problem, times)]),
        task_type=Factor.of(list(np.tile(np.array(types)[own], times))),
        agent=Factor.of(list(np.tile(np.array(agents)[agent], times))),
        iteration=np.tile(1 + np.arange(actions) % 10, times),
        success=np.tile(success, times),
        change=Factor.of([change for change, _, _ in asked for _ in range(actions)]),
        put=Factor.of([str(word) for words in put for word in words]),
        unseen=np.zeros(actions * times, dtype=bool),
        score=np.concatenate([scored(told) for _, told, _ in asked]),
        stored=np.tile(stored, times),
    )
