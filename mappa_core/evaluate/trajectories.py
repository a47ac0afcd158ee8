"""One row per action: TRL's conversational `prompt` and `completion`, and what became of it.

parquet   trajectories.parquet
jsonl     trajectories.jsonl
hf        data/trajectories.parquet and a README.md that `datasets.load_dataset` understands
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

import pyarrow as pa
from pyarrow.parquet import ParquetWriter

from mappa_core.core.records.runs import ExportedAction

Layout: TypeAlias = Literal["parquet", "jsonl", "hf"]
ROWS_AT_ONCE = 1000

CARD = """\
---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/trajectories.parquet
---

# Trajectories of a MAPPA run

One row per action of a team of language-model agents: `prompt` and `completion` as TRL reads them,
the coach's `score` (0 to 10, null where `unscored_reason` says why there is none) and `rationale`,
the `advantage` and `weight` the update gave it, and the exact token ids and log-probabilities that
were sampled; `given` has the first and the end of those that were put there to end a thought, and
train nothing. Ids join the rows to the run's records under `rows/`, which `mappa db import` reads.
"""

_CHAT = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
SCHEMA = pa.schema(
    [
        ("prompt", _CHAT),
        ("completion", _CHAT),
        ("score", pa.float64()),
        ("rationale", pa.string()),
        ("unscored_reason", pa.string()),
        ("coach", pa.string()),
        ("advantage", pa.float64()),
        ("weight", pa.float64()),
        ("left_out", pa.string()),
        ("success", pa.bool_()),
        ("agent", pa.string()),
        ("policy_step", pa.int32()),
        ("phase", pa.string()),
        ("iteration", pa.int32()),
        ("task_type", pa.string()),
        ("rollout_index", pa.int32()),
        ("turn_index", pa.int32()),
        ("action_id", pa.string()),
        ("episode_id", pa.string()),
        ("problem_id", pa.string()),
        ("prompt_token_ids", pa.list_(pa.int32())),
        ("completion_token_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("given", pa.list_(pa.int32())),
    ]
)


def write_trajectories(actions: Iterable[ExportedAction], folder: Path, layout: Layout) -> int:
    """Write the actions into an existing folder; returns how many."""
    match layout:
        case "parquet":
            return _write_parquet(actions, folder / "trajectories.parquet")
        case "jsonl":
            return _write_jsonl(actions, folder / "trajectories.jsonl")
        case "hf":
            (folder / "data").mkdir()
            (folder / "README.md").write_text(CARD)
            return _write_parquet(actions, folder / "data" / "trajectories.parquet")


def _write_parquet(actions: Iterable[ExportedAction], path: Path) -> int:
    count = 0
    with ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for some in _batches(actions):
            writer.write_table(pa.Table.from_pylist([_row(action) for action in some], SCHEMA))
            count += len(some)
    return count


def _write_jsonl(actions: Iterable[ExportedAction], path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for action in actions:
            # A log-probability can be minus infinity, which JSON has no number for.
            file.write(json.dumps(_row(action), allow_nan=True) + "\n")
            count += 1
    return count


def _batches(actions: Iterable[ExportedAction]) -> Iterator[Sequence[ExportedAction]]:
    remaining = iter(actions)
    while some := tuple(islice(remaining, ROWS_AT_ONCE)):
        yield some


def _row(action: ExportedAction) -> dict[str, object]:
    """The action as the schema has it; what has the schema's name goes in as it is."""
    return {
        **{name: getattr(action, name) for name in SCHEMA.names if hasattr(action, name)},
        "prompt": [_message(message.role, message.content) for message in action.messages],
        "completion": [_message("assistant", action.text)],
        "rationale": _text(action.rationale),
        "action_id": str(action.action_id),
        "episode_id": str(action.episode_id),
        "problem_id": str(action.problem_id),
        "completion_token_ids": action.token_ids,
    }


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": _text(content) or ""}


def _text(text: str | None) -> str | None:
    """`text` as Unicode: a lone surrogate, which no file can hold, becomes a question mark."""
    return None if text is None else text.encode("utf-8", "replace").decode()
