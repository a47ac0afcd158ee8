"""The one place that chooses adapters.

    async with open_services(config, settings) as services:   real ones, as configured
    with use(services):                                       anything else, in tests

Order matters when something is wrong: what the user can mend is checked before anything is
written (problems, model, sandbox), then the database, then what takes long (engines).
"""

from mappa_core.bootstrap.coaches import (
    ProbedCoach,
    check_coach,
    open_coach,
    open_coaches,
    opened_coach,
)
from mappa_core.bootstrap.databases import (
    Databases,
    Records,
    backup_database,
    database_url,
    databases_of,
    open_store,
    opened_audit,
    opened_mlflow,
    opened_records,
    opened_store,
    ping_mlflow,
    ping_store,
    restore_database,
    upgrade_database,
    vacuum_database,
)
from mappa_core.bootstrap.engines import start_engine, warming
from mappa_core.bootstrap.inputs import check_effects, check_inputs, check_weights, desk_of
from mappa_core.bootstrap.learning import Learning, open_learning
from mappa_core.bootstrap.machine import SPARE_BYTES, check_space, code_version, sandbox_tier
from mappa_core.bootstrap.wiring import Services, open_services, services, use, watching

__all__ = [
    "SPARE_BYTES",
    "Databases",
    "Learning",
    "ProbedCoach",
    "Records",
    "Services",
    "backup_database",
    "check_coach",
    "check_effects",
    "check_inputs",
    "check_space",
    "check_weights",
    "code_version",
    "database_url",
    "databases_of",
    "desk_of",
    "open_coach",
    "open_coaches",
    "open_learning",
    "open_services",
    "open_store",
    "opened_audit",
    "opened_coach",
    "opened_mlflow",
    "opened_records",
    "opened_store",
    "ping_mlflow",
    "ping_store",
    "restore_database",
    "sandbox_tier",
    "services",
    "start_engine",
    "upgrade_database",
    "use",
    "vacuum_database",
    "warming",
    "watching",
]
