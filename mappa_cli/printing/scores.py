"""A score in full, for people: who was asked what, what came back, what it took."""

from rich.console import Console
from rich.text import Text

from mappa_cli.printing.console import print_facts
from mappa_core.core.records.scores import CoachScore, ScoreEntry


def print_score_in_full(console: Console, entry: ScoreEntry) -> None:
    """The exact prompt and reply of a score, versions, cost and latency."""
    print_facts(console, "score", score_facts(entry))
    request = entry.score.request
    texts = [] if request is None else [("system", request.system), ("prompt", request.prompt)]
    if entry.score.raw_reply is not None:
        texts.append(("reply", entry.score.raw_reply))
    for title, text in texts:
        console.print(Text(f"--- {title}", style="dim"))
        console.print(Text(text), soft_wrap=True)


def score_facts(entry: ScoreEntry) -> list[tuple[str, str]]:
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
