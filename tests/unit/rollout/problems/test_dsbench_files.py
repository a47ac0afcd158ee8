"""DSBench's layout, on the published lists where they are and on small data made here."""

# Lambdas spoil files.
# pyright: reportUnknownLambdaType=false

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import MEASURED
from mappa_core.grading.metrics import METRICS
from mappa_core.grading.submissions import grade, parse_key
from mappa_core.rollout.config import ProblemsConfig
from mappa_core.rollout.problems import problem_source
from tests.dsbench_layout import Layout

DATA = Path(__file__).parents[4].parent / "shared" / "data"


def published() -> dict[str, dict[str, object]]:
    file = DATA / "dsbench_modeling_cleaned_prompts.json"
    if not file.exists():
        pytest.skip(f"{file} is not here")
    return json.loads(file.read_text())


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path)
    made.add("a", ["y"])
    made.add("b", ["y", "z"], metric="mcrmse")
    made.add("c", ["k"], metric="accuracy", kind="classification")
    return made


def test_tasks_come_with_files_key_and_labels(layout: Layout):
    source = layout.source(["a", "b"], ["c"])
    problem = next(p for p in source.train() if "of b" in p.statement)
    key = parse_key(problem.answer)
    assert (key.metric, key.targets, key.id_column) == ("mcrmse", ("y", "z"), "Id")
    assert source.files(problem)["sample_submission.csv"] == b"Id,y,z\n7,0,0\n8,0,0\n"
    assert source.labels(problem) == b"Id,y,z\n7,0.01,0.01\n8,1,1\n"
    assert source.held_out()[0].task_type == "classification"
    assert source.files(source.held_out()[0])["sample_submission.csv"].startswith(b"Id,k\n7,2.5")


def test_a_sample_is_stratified(layout: Layout):
    layout.add("d", ["k"], metric="accuracy", kind="classification")
    kinds = Counter(p.task_type for p in layout.source(["a", "b", "d"], ["c"], size=2).train())
    assert kinds == {"classification": 1, "regression": 1}


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda root: (root / "data_resplit/a/test.csv").unlink(), "test.csv cannot be read"),
        (lambda root: (root / "answers/a/test_answer.csv").unlink(), "test_answer.csv cannot"),
        (
            lambda root: (root / "answers/a/test_answer.csv").write_text("Id,other\n7,1\n"),
            "has no column y",
        ),
        (lambda root: (root / "data_resplit/a/train.csv").write_bytes(b"\xff"), "not UTF-8"),
        (
            lambda root: (root / "data_resplit/a/test.csv").write_text("Id,x,y\n7,1,2\n"),
            "test.csv has the column y, which is what the agents are to predict",
        ),
        (
            lambda root: (root / "answers/a/test_answer.csv").write_text("Id,y\n7,1\n8,2,3\n"),
            "test_answer.csv is no table: .* Expected 2 fields in line 3, saw 3",
        ),
        (
            lambda root: (root / "answers/a/test_answer.csv").write_bytes(
                b"Id,y\n" + b"7,1\n" * 2**14 + b"8,\xe9\n"
            ),
            "test_answer.csv is not UTF-8",
        ),
        (
            lambda root: (root / "answers/a/test_answer.csv").write_text("Id,y\n7,1\n8,\n"),
            "test_answer.csv cannot be graded with: 1 cells of y are empty",
        ),
    ],
)
def test_data_that_is_not_there_is_refused_at_the_start(
    layout: Layout, spoil: Callable[[Path], object], complaint: str
):
    spoil(layout.root)
    with pytest.raises(ConfigError, match=complaint):
        layout.source(["a"], ["c"])


def test_data_that_leaves_no_room_to_work_in_is_refused_at_the_start(layout: Layout):
    with (layout.root / "data_resplit/a/train.csv").open("a") as file:
        file.write("3,4,5\n" * 2**18)
    with pytest.raises(ConfigError, match=r"task a has 1\.5 MiB .* sandbox.workspace_mib to 4 "):
        layout.source(["a"], ["c"], workspace_mib=3)
    assert layout.source(["a"], ["c"], workspace_mib=4).train()
    assert layout.source(["a"], ["c"]).train()


def test_what_cannot_be_graded_is_refused(layout: Layout):
    with pytest.raises(ConfigError, match="task stranger has no cleaned prompt"):
        layout.source(["a", "stranger"], ["c"])
    layout.prompts["b"]["task_type"] = "classification"  # pyright: ignore
    with pytest.raises(ConfigError, match="called classification and measured by mcrmse"):
        layout.source(["a", "b"], ["c"])
    layout.prompts["a"]["metric"] = "vibes"  # pyright: ignore
    with pytest.raises(ConfigError, match="measured by vibes"):
        layout.source(["a"], ["c"])


def test_the_same_data_under_another_name_is_not_held_out(layout: Layout):
    layout.add("a-again", ["y"])
    for part in ("data_resplit/{}/train.csv", "data_resplit/{}/test.csv"):
        copy = (layout.root / part.format("a")).read_bytes()
        (layout.root / part.format("a-again")).write_bytes(copy)
    with pytest.raises(ConfigError, match="shares data"):
        layout.source(["a"], ["a-again"])
    with pytest.raises(ConfigError, match="shares data"):
        layout.source(["a"], ["a"])


def test_all_that_is_unusable_is_named_in_one_line_and_skipped_on_request(
    layout: Layout, caplog: pytest.LogCaptureFixture
):
    layout.add("d", ["y"])
    (layout.root / "answers/d/test_answer.csv").write_text("Id,y\n7,1\n8,1\n")
    with pytest.raises(ConfigError) as refused:
        layout.source(["a", "stranger", "d"], ["c"])
    (line,) = str(refused.value).splitlines()
    assert "task stranger has no cleaned prompt" in line
    assert "y is the same in every row" in line
    assert "(2 tasks of 4; problems.skip_unusable=true plays the others)" in line
    source = layout.source(["a", "stranger", "d"], ["c"], skip_unusable=True)
    assert [problem.statement.split()[-1] for problem in source.train()] == ["a"]
    (record,) = caplog.records
    assert record.getMessage().startswith("2 tasks left out: task stranger")
    # Checked, and then opened to be played: said once.
    layout.source(["a", "stranger", "d"], ["c"], skip_unusable=True)
    assert len(caplog.records) == 1
    with pytest.raises(ConfigError, match="no training task is left to play"):
        layout.source(["stranger", "d"], ["c"], skip_unusable=True)


@pytest.mark.parametrize("skip", [True, False])
def test_where_nothing_is_usable_one_reason_is_enough(
    layout: Layout, caplog: pytest.LogCaptureFixture, skip: bool
):
    with pytest.raises(ConfigError) as refused:
        layout.source([f"stranger-{n}" for n in range(70)], ["alien"], skip_unusable=skip)
    assert str(refused.value) == (
        "none of 71 tasks can be played, the first because task stranger-0 has no cleaned prompt: "
        "add one, or take its line out of the problem file: see problems.folder"
    )
    assert caplog.records == []


METRICS_PLAYED = (
    ("roc_auc", "classification", ("0", "1", "0", "1"), ("0.2", "0.9", "0.7", "0.6")),
    ("accuracy", "classification", ("oak", "elm", "oak", "ash"), ("oak", "elm", "oak", "oak")),
    ("log_loss", "classification", ("0", "1", "0", "1"), ("0.1", "0.8", "0.3", "0.9")),
    ("map_at_3", "classification", ("a", "b", "a", "c"), ("a b", "b c a", "c a", "b c")),
    ("qwk", "classification", ("3", "5", "4", "6"), ("3", "5.2", "4", "4.6")),
    ("f1", "classification", ("0", "1", "1", "0"), ("0", "1", "1", "1")),
    ("rmse", "regression", ("1.5", "2", "4", "9"), ("1", "2", "4", "8")),
    ("rmsle", "regression", ("10", "20", "40", "90"), ("11", "22", "38", "70")),
    ("smape", "regression", ("1", "2", "4", "9"), ("1.5", "2", "4", "8")),
    ("jaccard", "extraction", ("so good", "bad", "so bad", "fine"), ("good", "bad", "bad", "it")),
)


@pytest.mark.parametrize(("metric", "kind", "labels", "said"), METRICS_PLAYED)
def test_tasks_of_every_kind_of_metric_are_read_played_and_graded(
    layout: Layout, metric: str, kind: str, labels: tuple[str, ...], said: tuple[str, ...]
):
    layout.add("played", ["y"], metric=metric, kind=kind)
    data, answers = (layout.root / part / "played" for part in ("data_resplit", "answers"))
    rows = [f"{10 + number},{number}" for number in range(len(labels))]
    (data / "train.csv").write_text(
        "Id,x,y\n" + "\n".join(f"{row},{y}" for row, y in zip(rows, labels, strict=True))
    )
    (data / "test.csv").write_text("Id,x\n" + "\n".join(rows))
    (answers / "test_answer.csv").write_text(
        "Id,y\n" + "\n".join(f"{10 + n},{y}" for n, y in enumerate(labels))
    )
    source = layout.source(["played"], ["c"])
    (problem,) = source.train()
    key, hidden = parse_key(problem.answer), source.labels(problem)
    # Rows in another order: they are matched by id.
    submission = "Id,y\n" + "\n".join([f"{10 + n},{y}" for n, y in enumerate(said)][::-1])
    outcome = grade(submission.encode(), hidden, key)
    assert outcome.detail is None
    assert outcome.success
    assert 0 < (outcome.skill or 0) < 1
    assert tuple(figure.name for figure in outcome.figures or ()) == MEASURED[kind]
    sample = source.files(problem)["sample_submission.csv"]
    untouched = grade(sample, hidden, key)
    assert (untouched.detail, untouched.success) == (None, False)


def test_a_broken_line_is_named(layout: Layout):
    layout.source(["a"], ["c"])
    (layout.root / "train.json").write_text('{"metadata": {"task_id": "a"}}\n{"prompt": 1}\n')
    config = ProblemsConfig(
        source="dsbench",
        folder=layout.root,
        prompts_file=layout.root / "prompts.json",
        train_files=(layout.root / "train.json",),
        held_out_files=(layout.root / "eval.json",),
    )
    with pytest.raises(ConfigError, match="line 2"):
        problem_source(config)


def test_every_published_task_can_be_read_and_measured(tmp_path: Path):
    rows = published()
    made = Layout(tmp_path)
    for name, row in rows.items():
        targets = row["target_column"]
        names = [targets] if isinstance(targets, str) else targets
        made.add(name, names, row["metric"], row["task_type"])  # pyright: ignore
    assert {row["metric"] for row in rows.values()} <= METRICS.keys()
    lists = [
        [json.loads(line)["metadata"]["task_id"] for line in (DATA / file).read_text().splitlines()]
        for file in ("dsbench_modeling_train.json", "dsbench_modeling_eval.json")
    ]
    train = [name for name in lists[0] if name in rows]
    assert set(lists[0]) - set(train) == {"liverpool-ion-switching"}
    with pytest.raises(ConfigError, match=r"ion-switching has no .* \(1 task of 72; problems.skip"):
        made.source(*lists, size=100)
    source = made.source(*lists, size=100, skip_unusable=True)
    assert (len(source.train()), len(source.held_out())) == (63, 8)
