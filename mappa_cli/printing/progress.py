"""Live progress in a terminal; plain lines where there is none."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from mappa_cli.printing.console import make_table
from mappa_core.core.records.episodes import Episode, Phase, StopReason
from mappa_core.core.records.runs import IterationFigures, Run
from mappa_core.core.records.scores import CoachScore, ScoreEntry
from mappa_core.core.text import counted


class TerminalProgress:
    """Shows what a run is doing: a bar for the episodes in flight, a row per iteration."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._bar_id = self._bar.add_task("starting", total=None, note="")
        self._rows: list[tuple[str, ...]] = []
        self._agents: tuple[str, ...] = ()
        self._tally = _Tally()
        self._tallies: dict[int, _Tally] = {}
        """Of training iterations whose figures have not come yet."""
        self.run_name: str | None = None
        """The run being watched, once it is in the store."""
        self._live = Live(
            get_renderable=self._render, console=console, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> "TerminalProgress":
        """Start drawing, where there is a terminal."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop drawing and leave the table on the screen."""
        if self._console.is_terminal:
            self._live.stop()
            if self._rows:
                self._console.print(self._table())

    def on_starting(self, message: str) -> None:
        """Name what is being started."""
        self._bar.update(self._bar_id, description=f"starting {message}", total=None, note="")
        self._line(f"starting {message} ...")

    def on_waiting(self, message: str) -> None:
        """Say what the run waits for, above the bar."""
        self._console.print(message, style="yellow")

    def on_notice(self, message: str) -> None:
        """Say what is to be known of the run, above the bar."""
        self._console.print(message, style="yellow")

    def on_run_started(self, run: Run) -> None:
        """Show the run's name once."""
        self.run_name = run.name
        facts = f"  team {run.team}, seed {run.seed}, sandbox {run.sandbox_tier}"
        self._console.print(Text.assemble((run.name, "bold"), facts))

    def on_phase_started(self, phase: Phase, iteration: int, episodes: int) -> None:
        """Begin a batch of episodes."""
        name = "held-out" if phase == "held_out" else "iteration"
        self._tally = _Tally()
        if phase == "train":
            self._tallies[iteration] = self._tally
        self._bar.reset(
            self._bar_id, total=episodes, description=f"{name} {iteration}: episodes", note=""
        )
        self._line(f"{name} {iteration}: {counted(episodes, 'episode')} ...")

    def on_episode_ended(self, episode: Episode, entries: Sequence[ScoreEntry]) -> None:
        """Count one more finished episode."""
        self._tally.add(episode, entries)
        self._bar.update(self._bar_id, advance=1, note=self._tally.sentence())
        if self._tally.episodes == self._bar.tasks[0].total:
            self._line(f"  {self._tally.sentence()}")

    def on_update_ended(self, agent: str, iteration: int, metrics: Mapping[str, float]) -> None:
        """Name the agent that has just been updated."""
        seconds = metrics.get("seconds", 0.0)
        self._bar.update(
            self._bar_id,
            description=f"iteration {iteration}: updated {agent}",
            note=f"{seconds:.0f} s",
        )

    def on_iteration_ended(self, figures: IterationFigures, seconds: float) -> None:
        """Add a row to the table."""
        self._agents = tuple(agent.agent for agent in figures.agents)
        tokens = sum(agent.tokens for agent in figures.agents)
        scores = tuple(
            "-" if agent.mean_score is None else f"{agent.mean_score:.1f}"
            for agent in figures.agents
        )
        rate = figures.success_rate
        row = (
            str(figures.iteration),
            str(figures.episodes),
            "-" if rate is None else f"{rate:.0%}",
            *scores,
            str(tokens),
            f"{self._tallies.pop(figures.iteration).tokens_per_second:.0f}",
            f"{seconds:.0f} s",
        )
        self._rows.append(row)
        named = " ".join(
            f"{agent}={score}" for agent, score in zip(self._agents, scores, strict=True)
        )
        result = f"right {row[2]}, mean scores {named}, {tokens} tokens, {row[-1]}"
        # One step off, the next iteration's lines stand before this one.
        self._line(f"  iteration {figures.iteration}: {result}")

    def _line(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(text)

    def _table(self) -> Table:
        columns = ("iteration", "episodes", "right", *self._agents, "tokens", "tok/s", "time")
        title = "mean coach score per agent (0-10)"
        return make_table(title, columns, self._rows, numbers=columns)

    def _render(self) -> Group:
        return Group(*([self._table()] if self._rows else []), self._bar)


class _Tally:
    """What the episodes of one phase have come to so far."""

    def __init__(self) -> None:
        self.episodes = self.right = self.failed = self.tokens = 0
        self.scores: list[float] = []
        self.started = self.ended = time.perf_counter()
        self._began = datetime.now(UTC)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.ended - self.started, 1e-9)

    def add(self, episode: Episode, entries: Sequence[ScoreEntry]) -> None:
        self.episodes += 1
        self.right += bool(episode.outcome and episode.outcome.success)
        self.failed += episode.stop_reason is StopReason.FAILED
        # What a resumed run finds in the store was not sampled now.
        new = (turn.action for turn in episode.turns if turn.action.started_at >= self._began)
        self.tokens += sum(len(action.token_ids) for action in new)
        self.scores += [e.score.value for e in entries if isinstance(e.score, CoachScore)]
        self.ended = time.perf_counter()

    def sentence(self) -> str:
        parts = [f"right {self.right}/{self.episodes}"]
        if self.tokens:
            parts.append(f"{self.tokens_per_second:.0f} tokens/s")
        if self.scores:
            parts.insert(1, f"mean score {sum(self.scores) / len(self.scores):.1f}")
        if self.failed:
            parts.append(f"{self.failed} failed")
        return ", ".join(parts)
