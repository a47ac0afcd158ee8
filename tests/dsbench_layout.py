"""Tasks on disk as DSBench publishes them: lists, cleaned prompts, and CSV files made here."""

import json
from collections.abc import Sequence
from pathlib import Path

from mappa_core.grading.submissions import parse_key
from mappa_core.rollout.config import ProblemsConfig
from mappa_core.rollout.problems import problem_source
from mappa_core.rollout.problems.tabular import bundled_task
from mappa_core.rollout.problems.tabular_recipes import RECIPES
from mappa_core.rollout.problems.tasks import TEST, TRAIN
from mappa_core.rollout.protocols import TaskSource


class Layout:
    """A DSBench folder with as much in it as a test wants."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.prompts: dict[str, object] = {}

    def add(
        self, name: str, targets: list[str], metric: str = "rmse", kind: str = "regression"
    ) -> None:
        """A task of three rows."""
        seen = len(self.prompts)
        header, values = ",".join(targets), ",".join(f"{seen}.5" for _ in targets)
        first, second = (",".join([value] * len(targets)) for value in (f"{seen / 100}", "1"))
        self._write(
            name,
            train=f"Id,x,{header}\n1,{seen},{values}\n".encode(),
            test=f"Id,x\n7,{seen}\n8,2\n".encode(),
            answers=f"Id,{header},note\n7,{first},{seen}\n8,{second},n\n".encode(),
        )
        self.prompts[name] = {
            "cleaned_prompt": f"Task: predict {targets[0]} of {name}.",
            "metric": metric,
            "task_type": kind,
            "target_column": targets if len(targets) > 1 else targets[0],
            "id_column": "Id",
        }

    def add_bundled(self, name: str) -> None:
        """A bundled task, from which something can be learnt."""
        task = bundled_task(next(recipe for recipe in RECIPES if recipe.name == name), 0)
        files, key = task.files(), parse_key(task.problem.answer)
        self._write(name, train=files[TRAIN], test=files[TEST], answers=task.labels())
        self.prompts[name] = {
            "cleaned_prompt": task.problem.statement,
            "metric": key.metric,
            "task_type": task.problem.task_type,
            "target_column": key.targets,
            "id_column": key.id_column,
        }

    def _write(self, name: str, *, train: bytes, test: bytes, answers: bytes) -> None:
        data, hidden = self.root / "data_resplit" / name, self.root / "answers" / name
        data.mkdir(parents=True)
        hidden.mkdir(parents=True)
        (data / "train.csv").write_bytes(train)
        (data / "test.csv").write_bytes(test)
        (hidden / "test_answer.csv").write_bytes(answers)

    def config(
        self,
        train: Sequence[str],
        held_out: Sequence[str],
        size: int = 8,
        *,
        skip_unusable: bool = False,
    ) -> ProblemsConfig:
        """Write prompts and lists; returns what names them."""
        (self.root / "prompts.json").write_text(json.dumps(self.prompts))
        for file, names in (("train.json", train), ("eval.json", held_out)):
            lines = [json.dumps({"prompt": "p", "metadata": {"task_id": name}}) for name in names]
            (self.root / file).write_text("\n".join(lines) + "\n")
        return ProblemsConfig(
            source="dsbench",
            folder=self.root,
            prompts_file=self.root / "prompts.json",
            train_files=(self.root / "train.json",),
            held_out_files=(self.root / "eval.json",),
            train_size=size,
            held_out_size=size,
            skip_unusable=skip_unusable,
        )

    def source(
        self,
        train: Sequence[str],
        held_out: Sequence[str],
        size: int = 8,
        workspace_mib: int | None = None,
        *,
        skip_unusable: bool = False,
    ) -> TaskSource:
        """The tasks as a run opens them."""
        config = self.config(train, held_out, size, skip_unusable=skip_unusable)
        found = problem_source(config, workspace_mib)
        assert isinstance(found, TaskSource)
        return found
