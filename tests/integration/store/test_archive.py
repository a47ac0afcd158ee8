"""A run leaves as files and comes back to the last bit; what is damaged leaves nothing behind."""

import gzip
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mappa_core.audit.records import CorrectedScore, Correction
from mappa_core.audit.store import AuditStore
from mappa_core.core import ids
from mappa_core.core.errors import ArchiveError, StoreError
from mappa_core.evaluate.trajectories import Layout, write_trajectories
from mappa_core.store.store import Store
from mappa_core.store.tables import METADATA
from tests.builders import make_episode, make_policy, make_problem, make_run, make_score, make_turn
from tests.conftest import NewDatabase
from tests.integration.store.conftest import fill

RUN = make_run()


@pytest.fixture(scope="module")
def source(new_database: NewDatabase) -> Iterator[Store]:
    """A store with the run of `fill`, words no file likes, and a second run that stays behind."""
    store = Store.open(new_database())
    fill(store)
    odd = make_episode(RUN, make_problem("odd"))
    store.episodes.add_problems([odd.problem])
    store.episodes.open_episode(odd)
    text = '\x00 \ud800 ␛ \\ "quoted" \n\r\t é 漢 🎈'
    store.episodes.add_turn(odd, make_turn(make_policy(RUN), text=text))
    store.scores.add_scores([make_score(odd, 0, 0.1 + 0.2)])
    store.runs.add_run(make_run("another"))
    yield store
    store.close()


@pytest.fixture(scope="module")
def exported(source: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    write(source, folder, "jsonl")
    return folder


def write(store: Store, folder: Path, layout: Layout) -> int:
    return store.export_run(
        RUN, folder, lambda actions: write_trajectories(actions, folder, layout)
    )


@pytest.fixture
def empty(new_database: NewDatabase) -> Iterator[Store]:
    store = Store.open(new_database())
    yield store
    store.close()


def test_a_run_comes_back_to_the_last_bit(exported: Path, empty: Store, tmp_path: Path) -> None:
    manifest = empty.import_run(exported)
    assert empty.runs.list_runs() == (RUN,)
    write(empty, tmp_path, "jsonl")
    again = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert len(again) == 2 + len(METADATA.tables)
    for path in again:
        assert path.read_bytes() == (exported / path.relative_to(tmp_path)).read_bytes()
    assert manifest.tables["coach_score"].rows == 9
    # Twice is once.
    assert empty.import_run(exported) == manifest


def test_what_was_written_by_hand_reads_the_same(
    source: Store, exported: Path, empty: Store
) -> None:
    empty.import_run(exported)
    for summary in source.episodes.list_episodes(RUN.id):
        episode = str(summary.id)
        assert empty.episodes.get_episode(episode) == source.episodes.get_episode(episode)
        assert empty.scores.scores_of_episode(summary.id) == source.scores.scores_of_episode(
            summary.id
        )
        assert empty.updates.updates_of_episode(summary.id) == source.updates.updates_of_episode(
            summary.id
        )
    odd = str(make_episode(RUN, make_problem("odd")).id)
    assert empty.episodes.get_episode(odd) == source.episodes.get_episode(odd)


def test_a_correction_travels_with_its_run_and_with_those_that_trained_with_it(
    new_database: NewDatabase, empty: Store, tmp_path: Path
) -> None:
    url = new_database()
    store, audit = Store.open(url), AuditStore.open(url)
    fill(store)
    estimated_on = make_run("another")
    store.runs.add_run(estimated_on)
    correction = Correction(
        id=ids.content_id("correction", 1),
        run_id=estimated_on.id,
        iteration=1,
        coach="rule",
        rubric_sha256="ab" * 32,
        terms=(),
    )
    audit.add([correction])
    (score, _) = store.scores.scores_of_episode(make_episode(RUN, make_problem()).id)
    changed = CorrectedScore(score_id=score.id, correction_id=correction.id, raw=9.0, corrected=8.0)
    audit.add([changed])
    for run in (RUN, estimated_on):
        store.export_run(run, tmp_path / run.name, lambda _: None)
        manifest = empty.import_run(tmp_path / run.name)
        assert manifest.tables["correction"].rows == 1
    imported = AuditStore(empty.database)
    assert imported.correction(str(correction.id)) == correction
    for opened in (store, audit, imported):
        opened.close()


def test_another_run_of_the_same_id_is_not_overwritten(exported: Path, empty: Store) -> None:
    empty.episodes.add_problems([make_problem("odd", task_type="something else")])
    with pytest.raises(ArchiveError, match=r"other rows of run quickstart-1.*problem"):
        empty.import_run(exported)
    assert empty.runs.list_runs() == ()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("manifest.json", None, "has no manifest.json"),
        ("manifest.json", b"{", "is damaged"),
        ("rows/action.jsonl.gz", None, "is missing or damaged"),
        ("rows/action.jsonl.gz", gzip.compress(b"", mtime=0), "is not what the manifest says"),
    ],
)
def test_what_is_damaged_is_named(
    exported: Path,
    empty: Store,
    tmp_path: Path,
    name: str,
    content: bytes | None,
    said: str,
) -> None:
    folder = shutil.copytree(exported, tmp_path / "copy")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(ArchiveError, match=said):
        empty.import_run(folder)
    assert empty.runs.list_runs() == ()


def test_another_schema_is_refused(exported: Path, empty: Store, tmp_path: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / "copy")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"schema_revision": "0001"}))
    with pytest.raises(ArchiveError, match=r"exported at schema 0001.*export it again"):
        empty.import_run(folder)


def clear(store: Store) -> None:
    """Let the store be empty again."""
    names = ", ".join(f"mappa.{table.name}" for table in METADATA.sorted_tables)
    with store.database.engine.begin() as connection:
        connection.exec_driver_sql(f"TRUNCATE {names}")


def refusal(store: Store, folder: Path) -> str | None:
    """Why an import was refused; None where it was not."""
    try:
        store.import_run(folder)
    except (ArchiveError, StoreError) as error:
        return str(error)
    return None


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_no_damage_is_half_imported(
    exported: Path, empty: Store, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Bytes flipped, cut off or doubled in any file: one clear error, and nothing in the store."""
    chance = random.Random(seed)
    folder = shutil.copytree(exported, tmp_path_factory.mktemp("damaged") / "copy")
    files = sorted(path for path in folder.rglob("*") if path.name != "trajectories.jsonl")
    path = chance.choice([path for path in files if path.is_file()])
    content = bytearray(path.read_bytes())
    where = chance.randrange(len(content))
    match chance.randrange(3):
        case 0:
            content[where] ^= 1 << chance.randrange(8)
        case 1:
            del content[where:]
        case _:
            content[where:where] = content[: chance.randrange(1, 40)]
    path.write_bytes(content)
    said = refusal(empty, folder)
    if said is None:
        # A bit of the gzip header, or of the manifest's white space, that means nothing.
        assert empty.runs.list_runs() == (RUN,)
        clear(empty)
    else:
        assert "\n" not in said
        assert empty.runs.list_runs() == ()


@pytest.mark.parametrize("layout", ["parquet", "jsonl", "hf"])
def test_datasets_reads_the_trajectories(source: Store, tmp_path: Path, layout: Layout) -> None:
    from datasets import load_dataset

    assert write(source, tmp_path, layout) == 5
    if layout == "hf":
        data = load_dataset(str(tmp_path), split="train", cache_dir=str(tmp_path / "cache"))
    else:
        kind = "json" if layout == "jsonl" else "parquet"
        file = str(tmp_path / f"trajectories.{layout}")
        data = load_dataset(kind, data_files=file, split="train", cache_dir=str(tmp_path / "cache"))
    assert data.num_rows == 5
    best = max(data, key=lambda row: row["score"] or 0)
    assert best["score"] == 9
    assert best["rationale"] == "as the evidence says"
    assert best["prompt"][0] == {"role": "system", "content": "Solve."}
    assert best["completion"] == [{"role": "assistant", "content": "2 + 3 = 5"}]
    assert best["completion_token_ids"] == [7, 8, 2]
    assert best["logprobs"] == [-0.125, -0.25, -0.375]
    assert best["advantage"] == 0.75
    unscored = [row for row in data if row["unscored_reason"]]
    assert [(row["score"], row["unscored_reason"]) for row in unscored] == [(None, "timeout")]
