"""How the store reaches Postgres, and how Postgres's complaints become ours."""

from collections.abc import Generator
from contextlib import contextmanager

import psycopg
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from mappa_core.core.errors import (
    DiskFull,
    SchemaMismatch,
    StoreError,
    StoreUnreachable,
    first_line,
)

_DRIVER = "postgresql+psycopg"
_DISK_FULL = "53100"
_MISSING_TABLE = ("42P01", "3F000")
_GOING_AWAY = ("57P01", "57P02", "57P03")
"""The server is being stopped, has crashed, or is starting."""


def normalised(url: str) -> URL:
    """The address with our driver: `postgres://` and `postgresql://` mean psycopg 3 here.

    Raises:
        StoreError: It is not the address of a Postgres.
    """
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):
        address = None
    if address is None or address.get_backend_name() not in ("postgresql", "postgres"):
        raise StoreError(
            "the database address is not one of Postgres; "
            "set MAPPA_DATABASE_URL to postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        )
    return address.set(drivername=_DRIVER)


def for_psql(url: str) -> str:
    """The address as psql and every other program on libpq reads it, password included.

    Raises:
        StoreError: It is not the address of a Postgres.
    """
    plain = normalised(url).set(drivername="postgresql")
    # How our own connections call themselves is not how a guest should.
    plain = plain.difference_update_query(["application_name"])
    address, mark, query = plain.render_as_string(hide_password=False).partition("?")
    # SQLAlchemy writes a space as a plus, which libpq takes as a plus.
    return address + mark + query.replace("+", "%20")


def connect(url: str, *, pool_size: int = 8) -> Engine:
    """A pool of connections, opened when needed; safe to share between threads.

    Args:
        url: Any spelling of a Postgres address.
        pool_size: Connections kept; three times as many can be in use at once.

    Raises:
        StoreError: `url` is not the address of a Postgres; later, from a connection: the database's
            encoding is not UTF8.
    """
    engine = create_engine(
        normalised(url),
        pool_size=pool_size,
        max_overflow=2 * pool_size,
        # A server that was restarted costs one reconnect, not a failed write.
        pool_pre_ping=True,
        connect_args={
            "connect_timeout": 10,
            "application_name": "mappa",
            "client_encoding": "utf8",
        },
    )
    event.listen(engine, "connect", _only_utf8)
    return engine


def _only_utf8(connection: psycopg.Connection, _record: object) -> None:
    """Refuse a database that would keep what models write in another encoding, or in none."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        name = connection.info.dbname
        raise StoreError(
            f"the encoding of database {name} is {encoding} and has to be UTF8; make it with "
            f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0"
        )


def ping(url: str) -> str:
    """The server's version, e.g. `18.4`, where Postgres answers at `url`.

    Raises:
        StoreError: It does not answer.
    """
    with transaction_at(url) as connection:
        return str(connection.execute(text("SHOW server_version")).scalar_one())


@contextmanager
def transaction_at(url: str) -> Generator[Connection]:
    """One transaction on a connection of its own, committed where the block succeeds.

    Raises:
        StoreError: As `boundary`.
    """
    engine = connect(url, pool_size=1)
    try:
        with boundary(engine.url), engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


@contextmanager
def boundary(address: URL) -> Generator[None]:
    """Convert what the driver raises into one line for a person.

    Raises:
        DiskFull: The server has no space left.
        SchemaMismatch: The tables are not there.
        StoreUnreachable: It does not answer, or hung up.
        StoreError: It refused.
    """
    try:
        yield
    except DBAPIError as error:
        cause = error.orig or error
        raise _converted(cause, address, gone=error.connection_invalidated) from error
    except psycopg.Error as error:
        # COPY goes to the driver itself.
        raise _converted(error, address) from error
    except SQLAlchemyError as error:
        raise StoreError(f"Postgres: {first_line(error)}") from error


def _converted(cause: BaseException, address: URL, *, gone: bool = False) -> StoreError | DiskFull:
    state = getattr(cause, "sqlstate", None)
    # A connection that breaks has no code; nor has what the driver itself refuses.
    gone = gone or (state is None and isinstance(cause, psycopg.OperationalError))
    where = address.render_as_string(hide_password=True)
    reason = first_line(cause)
    if state == _DISK_FULL:
        return DiskFull(f"Postgres at {where} has no space left; free some, then run again")
    if state in _MISSING_TABLE:
        return SchemaMismatch(f"Postgres at {where} lacks MAPPA's tables; run `mappa db upgrade`")
    if gone or state in _GOING_AWAY:
        return StoreUnreachable(
            f"no Postgres at {where}: {reason}; start it, or mend MAPPA_DATABASE_URL"
        )
    return StoreError(f"Postgres refused{f' ({state})' if state else ''}: {reason}")
