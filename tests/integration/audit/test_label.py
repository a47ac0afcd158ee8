"""`mappa label` as a person uses it, and what the audit then makes of the labels."""

import json
from typing import Protocol

import pytest
from typer.testing import CliRunner, Result

from mappa_cli.commands.label import as_score
from mappa_cli.main import app
from mappa_core.audit.run_audit import audit_run
from mappa_core.audit.store import AuditStore
from mappa_core.core.errors import ConfigError, NotFound
from tests.builders import make_run

RUN = make_run("biased-1")


class Mappa(Protocol):
    """The command; `keys` are what a person types."""

    def __call__(self, *arguments: str, keys: str = "") -> Result: ...


@pytest.fixture
def mappa(monkeypatch: pytest.MonkeyPatch, biased_url: str) -> Mappa:
    monkeypatch.setenv("MAPPA_DATABASE_URL", biased_url)

    def call(*arguments: str, keys: str = "") -> Result:
        result = CliRunner().invoke(app, list(arguments), input=keys)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


def test_a_sitting_is_blind_and_can_be_gone_on_with(mappa: Mappa, audit: AuditStore) -> None:
    keys = "7\nn too terse\neleven\n3.5\nq\n"
    first = mappa("label", "biased-1", "--reviewer", "ada", keys=keys)
    assert "2 labelled by ada, 2 in all" in first.output
    assert "eleven is none of these" in first.output
    assert "as the evidence says" not in first.output
    labels = audit.labels(RUN.id, "ada")
    assert [(one.score, one.note, one.picked) for one in labels] == [
        (7.0, "too terse", "random"),
        (3.5, "", "random"),
    ]
    second = mappa("label", "biased-1", "--reviewer", "ada", keys="s\n5\nb\n6\nq\n")
    assert "3 in all" in second.output
    assert {one.score for one in audit.labels(RUN.id, "ada")} == {7.0, 3.5, 6.0}
    assert audit.labels(RUN.id, "bob") == ()


def test_contested_actions_come_first_and_do_not_speak_for_all(
    mappa: Mappa, rich_url: str, audit: AuditStore
) -> None:
    mappa("label", "biased-1", "--reviewer", "bob", "--limit", "4", keys="5\n6\n7\n8\n")
    assert [one.picked for one in audit.labels(RUN.id, "bob")] == ["contested", "random"] * 2
    wanted = audit.to_label(RUN.id, 1_000)
    assert 0 < len(wanted["contested"]) < len(wanted["random"]) == 72


def test_the_sample_takes_every_kind_in_proportion(audit: AuditStore) -> None:
    order = audit.to_label(RUN.id, 1_000)["random"]
    assert len({one.action_id for one in order}) == 72
    for count in (10, 20, 40):
        regression = sum(one.task_type == "regression" for one in order[:count])
        assert abs(regression - count / 2) <= 1
    assert audit.to_label(RUN.id, 5)["random"] == order[:5]


def test_for_an_audit_every_agent_and_type_has_as_many_labels(
    mappa: Mappa, audit: AuditStore
) -> None:
    with pytest.raises(ConfigError, match="without --only"):
        mappa("label", "biased-1", "--for-audit", "--only", "random")
    keys = "".join(f"{3 + number % 5}\n" for number in range(12))
    mappa("label", "biased-1", "--reviewer", "ada", "--for-audit", "--limit", "12", keys=keys)
    order = audit.to_label(RUN.id, 1_000)
    labelled = {one.action_id for one in audit.labels(RUN.id, "ada")}
    assert {one.picked for one in audit.labels(RUN.id, "ada")} == {"audit"}
    kinds = [one.task_type for one in order["audit"] if one.action_id in labelled]
    assert sorted(kinds) == ["classification"] * 6 + ["regression"] * 6
    # Within a type both samples walk in one order, so that together they are a sample as well.
    for kind in ("classification", "regression"):
        evenly, all_over = (
            [one.action_id for one in order[sample] if one.task_type == kind]
            for sample in ("audit", "random")
        )
        assert evenly == all_over
    found = audit_run(audit, "biased-1", 0.5, record=False, simulations=0).result.findings
    apart = {f.stratum: f for f in found if f.kind == "people" and f.against == "people"}
    assert set(apart) == {"classification", "regression", "classification rather than regression"}
    assert {each.actions for each in apart.values()} == {6, 12}
    assert "mean score people would give" not in {f.subject for f in found}


def test_labels_from_the_command_line_reach_the_audit(mappa: Mappa, audit: AuditStore) -> None:
    keys = "".join(f"{3 + number % 5}\n" for number in range(12))
    mappa("label", "biased-1", "--reviewer", "ada", "--limit", "12", keys=keys)
    said = json.loads(mappa("audit", "biased-1", "--json", "--simulations", "0").stdout)
    people = {f["subject"]: f for f in said["findings"] if f["kind"] == "people"}
    agreed, mean = people["the coach and people"], people["mean score people would give"]
    assert (agreed["unit"], agreed["actions"]) == ("Krippendorff's alpha", 12)
    assert agreed["low"] <= agreed["estimate"] <= agreed["high"]
    assert "kappa" in agreed["detail"]
    assert (mean["actions"], mean["low"] < mean["estimate"] < mean["high"]) == (12, True)


def test_only_a_sample_speaks_for_all(mappa: Mappa, rich_url: str, audit: AuditStore) -> None:
    mappa("label", "biased-1", "--reviewer", "eve", "--only", "contested", keys="5\n" * 3 + "q\n")
    assert {one.picked for one in audit.labels(RUN.id, "eve")} == {"contested"}
    findings = audit_run(audit, RUN.name, 0.5, record=False, simulations=0).result.findings
    people = {f.subject: f for f in findings if f.kind == "people"}
    # Ada labelled twenty, ten of them drawn at random; Eve's three may be among either.
    assert people["the coach and people"].actions >= 20
    assert people["mean score people would give"].actions == 10


@pytest.mark.parametrize(
    ("typed", "score"),
    [
        ("7", 7.0),
        ("6,5", 6.5),
        ("0", 0.0),
        ("10", 10.0),
        ("10.5", None),
        ("6.3", None),
        ("x", None),
    ],
)
def test_scores_are_half_points(typed: str, score: float | None) -> None:
    assert as_score(typed) == score


def test_bad_input_is_refused(mappa: Mappa) -> None:
    with pytest.raises(ConfigError, match="choose contested"):
        mappa("label", "biased-1", "--only", "worst")
    with pytest.raises(ConfigError, match="is a name"):
        mappa("label", "biased-1", "--reviewer", " ")
    with pytest.raises(NotFound, match="nothing to label"):
        mappa("label", "biased-1", "--reviewer", "ada", "--only", "contested")
