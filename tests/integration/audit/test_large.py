"""The audit of large and small runs, as `mappa bench audit` measures them."""

import pytest

from mappa_cli.benches.audit import LARGE, audit_process, bench_audit, fill
from mappa_core.audit.run_audit import audit_run
from mappa_core.audit.store import AuditStore
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings


def test_what_the_bench_measures_is_an_audit(database_url: str) -> None:
    fill(database_url, LARGE, 4_000)
    audit = AuditStore.open(database_url)
    audited = audit_run(audit, LARGE, 0.5, record=False, simulations=0)
    audit.close()
    overall = audited.result.effects[0]
    assert (overall.subject, overall.actions, overall.problems) == ("regression", 4_000, 100)
    low, high = overall.estimate.interval()
    assert low <= 0.25 <= high


def test_a_bench_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="actions=NUMBER"):
        bench_audit(["actions=3"], Settings())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_actions(database_url: str) -> None:
    fill(database_url, LARGE, 1_000_000)
    taken = audit_process(LARGE, {"MAPPA_DATABASE_URL": database_url})
    assert taken.seconds < 60
    assert taken.peak_gib < 2
    audit = AuditStore.open(database_url)
    found = [each for each in audit.findings(audit.run(LARGE).id) if each.kind == "task_type"]
    (overall,) = [each for each in found if each.stratum == "all" and each.subject == "regression"]
    audit.close()
    assert overall.actions == 1_000_000
    assert overall.estimate == pytest.approx(0.25, abs=0.05)
    # A quarter of a point is real, and too small to matter.
    assert overall.verdict == "equivalent"
