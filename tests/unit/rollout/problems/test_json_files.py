"""AIME and AMC files: read as they are, overlaps refused, damage named by file and row."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Problem
from mappa_core.rollout.config import ProblemsConfig
from mappa_core.rollout.problems import problem_source
from mappa_core.rollout.problems.base import FixedProblems
from mappa_core.rollout.problems.json_files import open_problems

DATA = Path(os.environ.get("MAPPA_PROBLEM_FILES") or Path(__file__).parents[5] / "shared" / "data")
published = pytest.mark.skipif(
    not DATA.is_dir(), reason="MAPPA_PROBLEM_FILES names no folder with the published files"
)


def source(train: Path, held_out: Path, **more: object) -> FixedProblems:
    wanted = {"train_size": 2000, "held_out_size": 2000, **more}
    files = {"source": "json", "train_files": (train,), "held_out_files": (held_out,)}
    return open_problems(ProblemsConfig.model_validate({**files, **wanted}), None)


def write(path: Path, *rows: object) -> Path:
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def row(prompt: str, answer: object = 1) -> dict[str, object]:
    return {"prompt": prompt, "answer": answer, "id": 7}


def answers(problems: tuple[Problem, ...]) -> list[str]:
    return [problem.answer for problem in problems]


@published
def test_amc_answers_are_whole_numbers_in_words() -> None:
    problems = source(DATA / "amc_32.json", DATA / "amc_eval_32.json", drop_overlap=True)
    assert len(problems.held_out()) == 32
    assert len(problems.train()) == 32 - 7
    assert "142" in answers(source(DATA / "amc.json", DATA / "aime_2025.json").train())
    assert not any("." in answer for answer in answers(problems.train()))
    assert {problem.dataset for problem in problems.train()} == {"amc"}


@published
def test_the_overlap_of_the_aime_sets_is_refused_with_its_size() -> None:
    with pytest.raises(ConfigError) as caught:
        source(DATA / "AIME_1983_2024.json", DATA / "aime_eval_32.json")
    assert str(caught.value).startswith("18 held-out problems are also in the training files: ")
    with pytest.raises(ConfigError, match=r"^8 held-out problems"):
        source(DATA / "aime_2025.json", DATA / "aime_eval_32.json")


@published
def test_the_overlap_is_left_out_of_training_where_asked() -> None:
    problems = source(DATA / "AIME_1983_2024.json", DATA / "aime_eval_32.json", drop_overlap=True)
    assert len(problems.held_out()) == 32
    assert len(problems.train()) == 933 - 18
    assert not {one.id for one in problems.train()} & {one.id for one in problems.held_out()}


@published
def test_a_degree_mark_is_no_part_of_an_answer() -> None:
    problems = source(DATA / "amc.json", DATA / "aime_2025.json").held_out()
    assert "336" in answers(problems)
    assert all(answer.isdigit() for answer in answers(problems))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (142.0, "142"),
        (0.5, "0.5"),
        (7, "7"),
        (-3.0, "-3"),
        (" 12 ", "12"),
        ("025", "025"),
        ("336^\\circ", "336"),
        ("336^{\\circ}", "336"),
        ("336°", "336"),
        ("either of two", "either of two"),
    ],
)
def test_answers_as_text(tmp_path: Path, answer: object, text: str) -> None:
    train = write(tmp_path / "train.json", row("a", answer))
    held_out = write(tmp_path / "held_out.json", row("b"))
    assert answers(source(train, held_out).train()) == [text]


def test_white_space_and_case_do_not_make_a_problem_new(tmp_path: Path) -> None:
    train = write(tmp_path / "train.json", row("What  is\n1 + 1?"), row("other"), row("OTHER"))
    held_out = write(tmp_path / "held_out.json", row("what is 1 + 1?"))
    with pytest.raises(ConfigError, match=r"^1 held-out problems"):
        source(train, held_out)
    assert len(source(train, held_out, drop_overlap=True).train()) == 1


@pytest.mark.parametrize(
    ("train", "held_out", "same"),
    [
        ("Let $x$ , $y$ be real. Find $x$ .", "Let $x$, $y$ be real.\nFind $x$.", True),
        ("Find the area of it. [asy] draw(A--B); [/asy]", "Find the area of it.", True),
        ("Find the area of it. [asy] never closed", "Find the area of it.", True),
        ("a b c d e f g h i", "a b c d e f g h j", True),
        ("a b c d e f g h", "a b c d e f g i", False),
        ("Find $m+n$ for 12 pens.", "Find $m+n$ for 13 cups.", False),
        ("???", "!!!", False),
        ("???", " ??? ", True),
    ],
)
def test_the_same_problem_in_other_clothes(
    tmp_path: Path, train: str, held_out: str, same: bool
) -> None:
    files = (
        write(tmp_path / "train.json", row(train), row("quite another one")),
        write(tmp_path / "held_out.json", row(held_out)),
    )
    kept = source(*files, drop_overlap=True).train()
    assert len(kept) == (1 if same else 2)


def test_sizes_cut_both_sets(tmp_path: Path) -> None:
    train = write(tmp_path / "train.json", *(row(f"t{index}") for index in range(5)))
    held_out = write(tmp_path / "held_out.json", *(row(f"h{index}") for index in range(5)))
    cut = source(train, held_out, train_size=3, held_out_size=2)
    assert [one.statement for one in cut.train()] == ["t0", "t1", "t2"]
    assert [one.statement for one in cut.held_out()] == ["h0", "h1"]


def test_nothing_left_to_train_on_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "same.json", row("a"))
    with pytest.raises(ConfigError, match="nothing is left to train on"):
        source(file, file, drop_overlap=True)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", " is not JSON that can be read"),
        (b"nope", " is not JSON that can be read"),
        (b'{"prompt": "a"}\n{"prompt": "b"}', " is not JSON that can be read"),
        (b"[" * 100_000, " is not JSON that can be read"),
        (b'[{"prompt": "a", "answer": ' + b"1" * 5000 + b"}]", " is not JSON that can be read"),
        (b"\xff\xfe", " is not UTF-8 text"),
        (b"[]", " holds no problems"),
        (b"{}", " should be a list of"),
        (b"[1]", ", row 1: should be {"),
        (b'[{"prompt": "a", "answer": 1}, {"answer": 2}]', ", row 2: prompt: field required"),
        (b'[{"prompt": "a"}]', ", row 1: answer: field required"),
        (b'[{"prompt": " ", "answer": 1}]', ", row 1: prompt: string should have at least 1"),
        (b'[{"prompt": "a", "answer": ""}]', ", row 1: answer: string should have at least 1"),
        (b'[{"prompt": "a", "answer": null}]', ", row 1: answer: should be text or a finite"),
        (b'[{"prompt": "a", "answer": true}]', ", row 1: answer: should be text or a finite"),
        (b'[{"prompt": "a", "answer": NaN}]', ", row 1: answer: should be text or a finite"),
        (b'[{"prompt": "a", "answer": 1e999}]', ", row 1: answer: should be text or a finite"),
        (b'[{"prompt": "\\ud800", "answer": 1}]', ", row 1: prompt: "),
    ],
)
def test_a_damaged_file_is_one_line_with_file_and_row(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    train = tmp_path / "train.json"
    train.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        source(train, write(tmp_path / "held_out.json", row("b")))
    message = str(caught.value)
    assert message.startswith(f"problem file {train}{complaint}")
    assert "\n" not in message


@pytest.mark.parametrize("missing", ["no-such.json", "."])
def test_a_file_that_cannot_be_opened(tmp_path: Path, missing: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: (No such file|Is a directory)"):
        source(tmp_path / missing, write(tmp_path / "held_out.json", row("b")))


def test_files_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"needs problems.train_files and"):
        problem_source(ProblemsConfig(source="json"))


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["prompt", "answer", "x"]), inner, max_size=3)
        ),
    )
)
def test_any_json_is_problems_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, value: object
) -> None:
    folder = tmp_path_factory.mktemp("any")
    train = folder / "train.json"
    train.write_text(json.dumps(value), encoding="utf-8")
    held_out = write(folder / "held_out.json", row("held out, and not in train"))
    try:
        read = [f"{one.statement}{one.answer}" for one in source(train, held_out).train()]
    except ConfigError as error:
        read = [str(error)] if "\n" not in str(error) else []
    assert read
    assert all(read)


def aime(year: int, number: int, part: str | None = None) -> dict[str, object]:
    """A row in the layout of AIME_1983_2024.json."""
    name = "-".join(str(each) for each in (year, part, number) if each)
    return {
        "prompt": f"Find the answer of {name}, which no other asks for in {year * number} words.",
        "answer": "70",
        "id": name,
        "year": year,
        "problem_number": number,
        "part": part,
    }


def test_a_stratum_is_the_contest_and_the_third_of_it(tmp_path: Path) -> None:
    numbers = (1, 5, 6, 10, 11, 15, 16)
    train = write(tmp_path / "AIME_1983_2024.json", *(aime(1990, number) for number in numbers))
    page = "https://artofproblemsolving.com/wiki/index.php/2022_AIME_I_Problems/Problem_10"
    paged = row("Find the first.") | {"url": page}
    held_out = write(tmp_path / "amc_eval.json", row("Find the other."), paged)
    problems = source(train, held_out)
    assert [(one.task_type, one.level) for one in problems.train()] == [
        ("aime early", 1),
        ("aime early", 1),
        ("aime middle", 2),
        ("aime middle", 2),
        ("aime late", 3),
        ("aime late", 3),
        ("aime", 0),
    ]
    # A paper of AMC has 25 problems.
    assert [(one.task_type, one.level) for one in problems.held_out()] == [
        ("amc", 0),
        ("amc middle", 2),
    ]


def test_what_is_known_of_a_problem_is_kept_as_its_attributes(tmp_path: Path) -> None:
    train = write(tmp_path / "AIME_1983_2024.json", aime(1990, 12), aime(2001, 3, part="II"))
    page = "https://artofproblemsolving.com/wiki/index.php/2022_AIME_I_Problems/Problem_10"
    held_out = write(tmp_path / "aime_2025.json", row("Bare."), row("Paged.") | {"url": page})
    problems = source(train, held_out)
    assert [one.attributes for one in (*problems.train(), *problems.held_out())] == [
        {"contest": "aime", "year": 1990, "number": 12, "difficulty": "late"},
        {"contest": "aime", "year": 2001, "paper": "II", "number": 3, "difficulty": "early"},
        {"contest": "aime", "year": 2025},
        {"contest": "aime", "year": 2022, "paper": "I", "number": 10, "difficulty": "middle"},
    ]
    (bare,) = source(train, write(tmp_path / "amc.json", row("Bare, too."))).held_out()
    assert bare.attributes == {"contest": "amc"}


def test_a_seeded_sample_is_of_the_whole_file_and_stratified(tmp_path: Path) -> None:
    rows = [aime(year, number) for year in range(1983, 1993) for number in range(1, 16)]
    train = write(tmp_path / "AIME_1983_2024.json", *rows)
    held_out = write(tmp_path / "amc.json", row("Another one?"))

    def sample(**more: object) -> list[str]:
        problems = source(train, held_out, train_size=30, **more).train()
        kinds = Counter(problem.task_type for problem in problems)
        assert kinds == {"aime early": 10, "aime middle": 10, "aime late": 10}
        return [problem.statement for problem in problems]

    # As stored runs have it.
    assert sample() == [str(each["prompt"]) for each in rows[:30]]
    drawn = sample(sample="seeded")
    assert drawn == sample(sample="seeded")
    assert len(set(drawn)) == 30
    assert set(drawn) != set(sample(sample="seeded", seed=1))
    assert len({statement.split()[4][:4] for statement in drawn}) > 5


@pytest.mark.parametrize("seed", range(4))
def test_within_a_third_a_sample_is_of_all_decades(tmp_path: Path, seed: int) -> None:
    """Two years are of the eighties, and one of each other decade."""
    years = (1984, 1995, 2010)
    rows = [aime(year, number) for year in (*years, 1985) for number in range(1, 16)]
    train = write(tmp_path / "AIME_1983_2024.json", *rows)
    held_out = write(tmp_path / "amc.json", row("Another one?"))
    given = {"train_size": 9, "sample": "seeded", "seed": seed}
    drawn = source(train, held_out, **given).train()
    strata = Counter((one.task_type, int(one.attributes["year"]) // 10) for one in drawn)
    assert set(strata.values()) == {1}
    assert len(strata) == 9


@published
def test_the_published_aime_problems_are_sampled_over_years_and_thirds() -> None:
    problems = source(
        DATA / "AIME_1983_2024.json", DATA / "aime_2025.json", train_size=512, sample="seeded"
    ).train()
    kinds = Counter(problem.task_type for problem in problems)
    assert kinds == {"aime early": 171, "aime late": 171, "aime middle": 170}
    first = source(DATA / "AIME_1983_2024.json", DATA / "aime_2025.json", train_size=512).train()
    assert 200 < len(set(problems) & set(first)) < 350
