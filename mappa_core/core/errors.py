"""Every error MAPPA raises on purpose, one class per boundary.

    MappaError
    ├── UserError            bad input: exit code 2, nothing was written
    ├── PromotionRefused     a promotion that the evidence does not support: exit code 1
    └── OutsideError         something outside failed: exit code 1, the run can be resumed
        └── Unreachable        it does not answer, or hung up: worth waiting for

Each message is one line: what is wrong, and how to mend it.
"""


class MappaError(Exception):
    """Root of the tree. `str(error)` is one line for a person."""


class UserError(MappaError):
    """The input is wrong; nothing has been written."""


class ConfigError(UserError):
    """A key, a value or a combination of values that cannot be run."""


class Unplanned(ConfigError):
    """A run, or a model, that no memory plan is made for."""


class ModelNotFound(UserError):
    """A model path or id does not resolve to weights and a tokenizer."""


class ArchiveError(UserError):
    """An export or a backup is damaged, of another version, or does not fit the database."""


class RunBusy(UserError):
    """Another process trains or evaluates this run."""


class NotFound(UserError):
    """No such run, episode or checkpoint in the store."""


class PromotionRefused(MappaError):
    """The gain is not certified, or the audit says biased; nothing was moved."""


class OutsideError(MappaError):
    """Something outside this process failed."""


class Unreachable(OutsideError):
    """What is outside does not answer, or hung up; the same work may succeed later."""


class StoreError(OutsideError):
    """Postgres is unreachable, refused a write, or is full."""


class StoreUnreachable(StoreError, Unreachable):
    """No Postgres answers, or it hung up."""


class SchemaMismatch(StoreError):
    """The database was made by an older or a newer version of MAPPA."""


class EngineError(OutsideError):
    """The inference engine died and could not be brought back."""


class ClusterError(OutsideError):
    """The cluster does not answer, or has no room for the run."""


class SandboxError(OutsideError):
    """The sandbox itself failed; a program that exits 1 is data, not this."""


class SandboxUnavailable(SandboxError):
    """None of the isolation mechanisms of this machine passed its probe."""


class ToolServerError(OutsideError):
    """A server of tools cannot be started, or died; a call that fails is data, not this."""


class WorkspaceError(OutsideError):
    """The files of an episode cannot be read or written."""


class CoachError(OutsideError):
    """The coach cannot work at all; a single failed score is an `Unscored`."""


class LearnerError(OutsideError):
    """An update could not be computed or saved."""


class TrackerError(OutsideError):
    """MLflow is unreachable or refused a write."""


class TrackerUnreachable(TrackerError, Unreachable):
    """No MLflow answers, or its database does not."""


class PortBusy(OutsideError):
    """An address that a server needs is taken by another process."""


class DiskFull(OutsideError):
    """No space left where something had to be written."""


def first_line(error: BaseException) -> str:
    """What an error says in its first line; its type where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
