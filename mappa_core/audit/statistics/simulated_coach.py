"""An honest coach of a run's work, made from the run: see `rates`."""

from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from mappa_core.audit.frame import Floats, Ints, Mask
from mappa_core.audit.statistics.design import Regression
from mappa_core.audit.statistics.health import HIGHEST, LOWEST

SETTINGS = 2
"""Corrections of what a kinder coach feels; its scores then move by what was asked within 1 %."""
MATCHED, ROUNDS = 10, 4
"""Scorings of its own work from which a simulated coach is set right, and how often it is."""


@dataclass(frozen=True, kw_only=True)
class SimulatedCoach:
    """An honest coach of the P actions of a run that have a score and an outcome."""

    places: Ints
    """(P,) where they are among the run's `size` actions."""
    size: int
    problem: Ints
    """(P,) codes from 0."""
    episode: Ints
    first: Ints
    """An action of each problem."""
    fixed: Floats
    """(P,) quality but for what the skill and the surprise say."""
    skill: Floats
    skill_deviation: Floats
    """(P,) of the problem's skill, given its episodes."""
    shared_deviation: Floats
    """(P,) of what the problems of a stratum have in common beside: the error of their mean."""
    stratum: Ints
    """(P,) of task type and level, as codes from 0."""
    success: Floats
    slope: float
    """Points per unit of skill."""
    outcome: float
    """Points that right work gets more."""
    own_deviation: float
    """Of what a problem has of its own beside its skill."""
    episode_deviation: float
    deviation: float
    scores: Floats
    """(P,) as the run has them, sorted."""

    @classmethod
    def of(cls, model: Regression, size: int) -> "SimulatedCoach":
        """The coach that a regression over all episodes describes, without its task types."""
        work, fitted, scored = model.work, model.fitted, model.work.scored
        names = [column.name for column in model.columns]
        slopes = dict(zip(names, fitted.coefficients.tolist(), strict=True))
        fixed = [not n.startswith(("task_type", "outcome:right", "skill")) for n in names]
        frame, skills = work.frame.take(scored), work.skills.take(scored)
        _, first, problem = np.unique(frame.problem.codes, return_index=True, return_inverse=True)
        _, episode = np.unique(frame.episode, return_inverse=True)
        error = np.sqrt(skills.mean_variance)
        return cls(
            places=work.places[scored],
            size=size,
            problem=problem,
            episode=episode,
            first=first,
            fixed=model.x[scored][:, fixed] @ fitted.coefficients[fixed],
            skill=skills.own,
            skill_deviation=np.sqrt(skills.own_variance),
            shared_deviation=skills.own_follow * error[skills.stratum],
            stratum=skills.stratum,
            success=frame.success,
            slope=slopes.get("skill", 0.0),
            outcome=slopes["outcome:right"],
            own_deviation=0.0,
            episode_deviation=0.0,
            deviation=_components(model.residuals[:, None], problem, episode)[2] ** 0.5,
            scores=np.sort(frame.score),
        )

    def matched(self, model: Regression, rng: np.random.Generator) -> "SimulatedCoach":
        """The coach whose scores, fitted again, have the run's slopes and spreads.

        What the skill adds to the spreads, what its uncertainty takes from the slopes, and what is
        lost between feeling and score, is seen in scores of its own.
        """
        run = _components(model.residuals[:, None], self.problem, self.episode)
        coach = self
        for _ in range(ROUNDS):
            coach = coach._nearer(model, run, rng)
        return coach

    def _nearer(
        self, model: Regression, run: tuple[float, float, float], rng: np.random.Generator
    ) -> "SimulatedCoach":
        """The coach once set right by some scorings of its own."""
        felt = self.qualities(rng, MATCHED)
        coefficients, residuals = refit(model, self.heaped(felt, felt))
        slopes = coefficients.mean(axis=1) - model.fitted.coefficients
        names = [column.name for column in model.columns]
        off = dict(zip(names, slopes.tolist(), strict=True))
        own = _components(residuals, self.problem, self.episode)
        spreads = (self.own_deviation, self.episode_deviation, self.deviation)
        new = [
            float(np.sqrt(max(spread**2 + there - here, 0.0)))
            for spread, there, here in zip(spreads, run, own, strict=True)
        ]
        return replace(
            self,
            slope=self.slope - off.get("skill", 0.0),
            outcome=self.outcome - off["outcome:right"],
            own_deviation=new[0],
            episode_deviation=new[1],
            deviation=new[2],
        )

    def qualities(self, rng: np.random.Generator, runs: int) -> Floats:
        """(P, S) what it feels about the work in S runs, before it is put in its scores."""
        first, shape = self.first, (len(self.first), runs)
        shared = rng.normal(0, 1, (self.stratum.max() + 1, runs))[self.stratum[first]]
        skill = (
            self.skill[first, None]
            + self.skill_deviation[first, None] * rng.normal(0, 1, shape)
            + self.shared_deviation[first, None] * shared
        )
        per_problem = self.slope * skill + rng.normal(0, self.own_deviation, shape)
        surprise = self.success[:, None] - special.ndtr(skill)[self.problem]
        episodes = rng.normal(0, self.episode_deviation, (self.episode.max() + 1, runs))
        noise = rng.normal(0, self.deviation, (len(self.problem), runs))
        felt = per_problem[self.problem] + self.outcome * surprise + episodes[self.episode]
        return self.fixed[:, None] + felt + noise

    def heaped(self, felt: Floats, like: Floats) -> Floats:
        """(N, S) scores as unequal as the run's; NaN where it has none.

        Args:
            felt: (P, S).
            like: (P, S) what would be felt without bias, whose ranks the run's scores have.
        """
        ranks = np.searchsorted(np.sort(like[:, 0]), felt).clip(0, len(self.scores) - 1)
        scores = np.full((self.size, felt.shape[1]), np.nan)
        scores[self.places] = self.scores[ranks]
        return scores

    def kinder(self, latent: Floats, favoured: Mask, points: float) -> Floats:
        """(N, S) scores of the same coach that feels some work to be worth more.

        A score moves by `points` where it is not at an end of the scale: heaps shrink what is
        felt on its way into a score, so it is felt as more until the scores have moved.

        Args:
            latent: (P, S) what it feels without.
            favoured: (P,) the work it pays more.
            points: By how much.
        """
        rows = self.places[favoured]
        honest = self.heaped(latent, latent)
        inside = (honest[rows] > LOWEST) & (honest[rows] < HIGHEST)
        wanted, felt = points * float(inside.mean()), points
        kinder = self.heaped(latent + felt * favoured[:, None], latent)
        for _ in range(SETTINGS):
            moved = float((kinder[rows] - honest[rows]).mean())
            if moved <= 0:
                break
            felt *= wanted / moved
            kinder = self.heaped(latent + felt * favoured[:, None], latent)
        return kinder


def refit(model: Regression, scores: Floats) -> tuple[Floats, Floats]:
    """(k, S) coefficients and (n, S) residuals for S sets of scores."""
    scored, fitted = model.work.scored, model.fitted
    y, x = scores[model.work.places[scored]], model.x[scored]
    coefficients = np.zeros((len(model.columns), y.shape[1]))
    coefficients[fitted.used] = fitted.bread @ (x[:, fitted.used].T @ y)
    return coefficients, y - x @ coefficients


def _components(residuals: Floats, problem: Ints, episode: Ints) -> tuple[float, float, float]:
    """Mean variances of problems, of episodes on one problem, and within episodes."""
    each = residuals.T
    own = float(np.mean([_variances(one, problem)[0] for one in each]))
    both, within = np.mean([_variances(one, episode) for one in each], axis=0)
    return own, float(both) - own, float(within)


def _variances(residuals: Floats, problem: Ints) -> tuple[float, float]:
    """Of problems and within them: one-way analysis of variance."""
    sizes = np.bincount(problem)
    means = np.bincount(problem, weights=residuals) / sizes
    count, problems = len(residuals), len(sizes)
    within = float(((residuals - means[problem]) ** 2).sum()) / max(count - problems, 1)
    typical = (count - float((sizes**2).sum()) / count) / max(problems - 1, 1)
    between = float((sizes * means**2).sum()) / max(problems - 1, 1)
    return max((between - within) / max(typical, 1.0), 0.0), within
