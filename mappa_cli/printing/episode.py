"""Prints an episode: the whole conversation, with what was run, scored and learned from it."""

from collections.abc import Sequence
from uuid import UUID

from rich.console import Console
from rich.text import Text

from mappa_cli.printing.console import print_boxed, print_facts, print_heading
from mappa_core.core import ids
from mappa_core.core.records.episodes import Episode, Turn
from mappa_core.core.records.scores import CoachScore, ScoreEntry
from mappa_core.core.records.tools import ToolResult
from mappa_core.core.records.updates import Update, UpdateEntry
from mappa_core.store.store import Store

SHOWN_IDS = 24
"""Token ids printed from each end of a long list."""


def print_episode(
    console: Console, store: Store, episode: Episode, *, in_full: bool = False
) -> None:
    """Print the whole conversation of an episode, with what was run, scored and learned from it.

    `in_full`: also what each coach was asked and answered, word for word.
    """
    scores = store.scores.scores_of_episode(episode.id)
    updates = store.updates.updates_of_episode(episode.id)
    print_facts(console, "episode", _facts(episode))
    for turn in episode.turns:
        print_heading(console, f"turn {turn.index}: {turn.agent}")
        _print_turn(console, turn)
        for entry in scores:
            if entry.turn_index == turn.index:
                _print_score(console, entry)
                if in_full:
                    _print_score_in_full(console, entry)
        action = ids.action_id(episode.id, turn.index)
        _print_update(console, action, updates.get(action))


def _facts(episode: Episode) -> list[tuple[str, str]]:
    outcome = episode.outcome
    verdict = "none" if outcome is None else ("right" if outcome.success else "wrong")
    answered = "" if outcome is None else f", answered {outcome.answer or 'nothing'}"
    return [
        ("id", str(episode.id)),
        ("run", str(episode.run_id)),
        ("played", f"{episode.phase}, iteration {episode.iteration}"),
        ("problem", f"{episode.problem.task_type}: {episode.problem.statement}"),
        ("expected", episode.problem.answer),
        ("outcome", f"{verdict}{answered}"),
        ("ended", episode.stop_reason.value if episode.stop_reason else "still running"),
        *([("error", episode.error)] if episode.error else []),
    ]


def _print_turn(console: Console, turn: Turn) -> None:
    action = turn.action
    for message in turn.observation.messages:
        console.print(Text(f"{message.role}> ", style="dim"), Text(message.content), sep="")
    console.print(Text(f"{turn.agent}> ", style="bold cyan"), Text(action.text), sep="")
    given = "" if action.given is None else f", {action.given[1] - action.given[0]} of them given"
    facts = (
        f"{len(action.prompt_token_ids)} prompt ids, {len(action.token_ids)} sampled "
        f"({action.finish_reason.value}{given}), log-prob {sum(action.logprobs):.3f} in all, "
        f"temperature {action.temperature:g}, seed {action.seed}, "
        f"{action.seconds:.2f} s, policy {action.policy_version_id}"
    )
    console.print(Text(facts, style="dim"))
    console.print(Text(f"prompt ids  {_shortened(action.prompt_token_ids)}", style="dim"))
    console.print(Text(f"sampled ids {_shortened(action.token_ids)}", style="dim"))
    rounded = tuple(round(logprob, 3) for logprob in action.logprobs)
    console.print(Text(f"log-probs   {_shortened(rounded)}", style="dim"))
    if turn.tool_result is not None:
        _print_tool(console, turn.tool_result)


def _shortened(values: Sequence[float]) -> str:
    if len(values) <= 2 * SHOWN_IDS:
        return " ".join(str(value) for value in values)
    ends = (values[:SHOWN_IDS], values[-SHOWN_IDS:])
    left, right = (" ".join(str(value) for value in end) for end in ends)
    return f"{left} ... {len(values) - 2 * SHOWN_IDS} more ... {right}"


def _print_tool(console: Console, result: ToolResult) -> None:
    what = "call" if result.tier.startswith("mcp") else "program"
    left = "" if result.exit_code is None else f", exit code {result.exit_code}"
    title = f"{what}: {result.status.value}{left}, {result.seconds:.2f} s"
    body = Text(result.code.rstrip())
    for name, stream in (("stdout", result.stdout), ("stderr", result.stderr)):
        if stream:
            body.append(f"\n--- {name}\n", style="dim")
            body.append(stream.rstrip())
    print_boxed(console, title, body, result.tier)


def _print_score(console: Console, entry: ScoreEntry) -> None:
    scorer = f"{entry.identity.coach} coach {entry.identity.model_version}"
    trained = "" if entry.trained else " (not trained on)"
    if isinstance(entry.score, CoachScore):
        console.print(Text(f"{scorer}: {entry.score.value:g} of 10{trained}", style="bold green"))
        console.print(Text(entry.score.rationale))
    else:
        unscored = f"{scorer}: unscored, {entry.score.reason}: {entry.score.detail}{trained}"
        console.print(Text(unscored, style="bold red"))


def _print_score_in_full(console: Console, entry: ScoreEntry) -> None:
    """Print the exact prompt and reply of a score, versions, cost and latency."""
    print_facts(console, "score", _score_facts(entry))
    request = entry.score.request
    texts = [] if request is None else [("system", request.system), ("prompt", request.prompt)]
    if entry.score.raw_reply is not None:
        texts.append(("reply", entry.score.raw_reply))
    for title, text in texts:
        console.print(Text(f"--- {title}", style="dim"))
        console.print(Text(text), soft_wrap=True)


def _score_facts(entry: ScoreEntry) -> list[tuple[str, str]]:
    """All of a score but its long texts, named."""
    identity, score = entry.identity, entry.score
    settings = score.request.settings if score.request is not None else {}
    said: list[tuple[str, str | None]] = [
        ("id", str(entry.id)),
        ("coach", f"{identity.coach}, {identity.model}"),
        ("model version", identity.model_version),
        ("rubric", f"{identity.rubric_version}, sha256 {identity.rubric_sha256}"),
        ("repeat", str(entry.repeat_index)),
        ("trained on", "yes" if entry.trained else "no"),
        ("knew of the truth", entry.visibility.value),
        ("asked with", ", ".join(f"{name} {value}" for name, value in settings.items()) or None),
        ("calls", str(score.attempts)),
        ("latency", f"{score.seconds:.3f} s"),
        ("tokens", _tokens(entry)),
        ("cost", None if score.cost_usd is None else f"{score.cost_usd:.6f} dollars"),
        ("flags", ", ".join(score.flags) or None),
    ]
    if isinstance(score, CoachScore):
        marks = ", ".join(f"{mark.name} {mark.mark:g}" for mark in score.criteria)
        said += [
            ("criteria", marks or None),
            ("blamed", score.blamed),
            ("correction", score.correction),
        ]
    return [(name, value) for name, value in said if value is not None]


def _tokens(entry: ScoreEntry) -> str | None:
    score = entry.score
    if score.prompt_tokens is None:
        return None
    return (
        f"{score.prompt_tokens} prompt ({score.cached_tokens or 0} cached), "
        f"{score.reply_tokens or 0} reply, {score.thought_tokens or 0} thought"
    )


def _print_update(
    console: Console, action: UUID, learned: tuple[Update, UpdateEntry] | None
) -> None:
    if learned is None:
        console.print(Text(f"action {action}; entered no update", style="dim"))
        return
    update, entry = learned
    how = (
        f"left out: {entry.left_out}"
        if entry.left_out is not None
        else f"advantage {entry.advantage:+.3f}, weight {entry.weight:.4f}"
    )
    console.print(
        Text(
            f"action {action}; {how}; update {update.id} (iteration {update.iteration}) made "
            f"policy {update.to_policy_id}",
            style="dim",
        )
    )
