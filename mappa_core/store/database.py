"""The transactions that all repositories use: repeated after an outage, refused without a claim."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar
from uuid import UUID

from sqlalchemy import Connection, Engine

from mappa_core.core.outage import OutageRetry
from mappa_core.store.claims import Claim
from mappa_core.store.connection import boundary

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R", bound="Repository")


class Database:
    """Runs work in transactions; safe to share between threads."""

    def __init__(self, engine: Engine, outage_retry: OutageRetry) -> None:
        self.engine = engine
        self.outage_retry = outage_retry
        self._claims = tuple[Claim, ...]()

    def transaction(self, work: Callable[[Connection], T]) -> T:
        """The result of `work`, committed; repeated where Postgres went away meanwhile."""

        def attempt() -> T:
            for claim in self._claims:
                claim.check()
            with boundary(self.engine.url), self.engine.begin() as connection:
                return work(connection)

        return self.outage_retry.run(attempt)

    def claim(self, run_id: UUID) -> Claim:
        """Keep other processes off a run; once the claim is lost, every transaction is refused."""
        claim = Claim(self.engine, run_id)
        self._claims = (*(earlier for earlier in self._claims if not earlier.over), claim)
        return claim


class Repository:
    """Holds the statements about one kind of record."""

    def __init__(self, database: Database) -> None:
        self.database = database


def transaction(
    method: Callable[Concatenate[R, Connection, P], T],
) -> Callable[Concatenate[R, P], T]:
    """Give a repository's method the connection of a transaction of its own.

    It is committed when the method returns, and the method runs again after an outage.
    """

    @wraps(method)
    def committed(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.database.transaction(
            lambda connection: method(self, connection, *args, **kwargs)
        )

    return committed
