"""What a promotion knows of the coach: an audit of the moment, not the one that is stored."""

from mappa_core.app.databases import Records
from mappa_core.app.promotion import considered
from mappa_core.audit.run_audit import audit_run
from mappa_core.audit.store import AuditStore
from mappa_core.evaluate.registration import register_policies
from mappa_core.store.store import Store
from tests.builders import make_run
from tests.fakes.tracking import MemoryRegistry

RUN = make_run("biased-1")


def test_findings_of_another_margin_certify_nothing(audit: AuditStore, store: Store) -> None:
    registry = MemoryRegistry()
    register_policies(RUN, 2, registry=registry, store=store)
    wide = audit_run(audit, RUN.name, 9.0, record=True, simulations=0)
    assert wide.result.verdict == "equivalent"
    case = considered(Records(store=store, audit=audit, registry=registry), RUN.name, None)
    assert case.verdict == "biased"
    # Looking again at the same rows is the same look.
    assert len(audit.findings(RUN.id, "look")) == 1
    # What is stored is what was decided by.
    kinds = [f for f in audit.findings(RUN.id) if f.kind == "task_type"]
    assert {finding.margin for finding in kinds} == {0.5}
