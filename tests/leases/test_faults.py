"""The question whether an error passes: a table of errors."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import asyncpg
import pytest
from sqlalchemy import exc

from rowlock.database.faults import (
    is_after_an_error,
    is_conflict,
    is_of_the_schema,
    is_outage,
    is_transient,
    may_be_of_the_size,
)
from rowlock.errors import HostCodeError, LeaseLost, OutcomeError, TransactionTimeout

PASSING = (
    *("40001", "40P01", "55P03", "57014", "57P01", "57P02", "57P03", "25006", "53000", "53100"),
    *("53200", "53300", "08000", "08003", "08006", "08P01", "58000", "58030", "58P01", "53400"),
    *("XX000", "XX001", "57P04", "57P05", "25P02", "25P03", "25P04", "55000", "55006", "40000"),
    *("40003", "26000", "28000", "28P01", "3D000", "42P05", "72000", "F0000", "HV000", "00000"),
    *("03000", "AB123", "99999"),
)
"""Of the server and the way to it, of transactions, of others, and of nobody knows what."""
LASTING = (
    *("23505", "23502", "23503", "22001", "22P02", "42703", "42P01", "42501", "0A000", "54000"),
    *("09000", "0F000", "0L000", "0P000", "0Z000", "10608", "20000", "21000", "24000", "27000"),
    *("2B000", "2D000", "2F000", "34000", "38000", "39000", "3B000", "3F000", "40002", "44000"),
    *("54001", "55P02", "P0000", "P0001"),
)
"""Of the statement or its values."""
OUTAGES = (
    *("08006", "25006", "25P03", "28P01", "3D000", "40001", "40P01", "53300", "55P03", "57P01"),
    *("57014", "F0000"),
)
OF_ONE_ROW_PERHAPS = (
    *("58030", "58P01", "XX000", "XX001", "25P02", "26000", "55000", "55006", "72000", "HV000"),
    *("AB123",),
)
PASSING_ON_SQLITE = (
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR),
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL),
    *(sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_CORRUPT),
    *(sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_INTERNAL, 250),
)
LASTING_ON_SQLITE = (
    *(sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH),
    *(sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_RANGE),
)


class DriverError(Exception):
    def __init__(self, sqlstate: str | None) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


class OtherDriverError(Exception):
    def __init__(self, pgcode: str) -> None:
        super().__init__(pgcode)
        self.pgcode = pgcode


class SqliteError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.sqlite_errorcode = code | 7 << 8


def database_error(
    kind: type[exc.DBAPIError], orig: BaseException, *, cut: bool = False
) -> exc.DBAPIError:
    return kind("SELECT 1", {}, orig, connection_invalidated=cut)


# ---------------------------------------------------------------- the table


@pytest.mark.parametrize("kind", [exc.OperationalError, exc.DBAPIError, exc.ProgrammingError])
@pytest.mark.parametrize("sqlstate", PASSING)
def test_states_that_pass(kind: type[exc.DBAPIError], sqlstate: str) -> None:
    """An outcome would fail for a deadlock or a restart."""
    assert is_transient(database_error(kind, DriverError(sqlstate)))
    assert is_transient(database_error(kind, OtherDriverError(sqlstate)))


@pytest.mark.parametrize("kind", [exc.OperationalError, exc.InterfaceError, exc.DBAPIError])
@pytest.mark.parametrize("sqlstate", LASTING)
def test_states_that_last(kind: type[exc.DBAPIError], sqlstate: str) -> None:
    """An outcome that breaks a constraint would be tried until its lease has ended, instead of
    failing.
    """
    assert not is_transient(database_error(kind, DriverError(sqlstate)))
    assert not is_transient(database_error(kind, OtherDriverError(sqlstate)))


@pytest.mark.parametrize(
    "error",
    [
        TransactionTimeout(purpose="x", timeout_s=1),
        TimeoutError(),
        ConnectionRefusedError(),
        ConnectionResetError(),
        OSError(28, "No space left on device"),
        exc.TimeoutError(),
        asyncpg.InternalClientError("cannot switch to state 12"),
        asyncpg.InterfaceError("the connection is closed"),
        sqlite3.OperationalError("disk I/O error"),
        database_error(exc.DBAPIError, DriverError("42703"), cut=True),
        database_error(exc.ProgrammingError, DriverError(None), cut=True),
        database_error(exc.InternalError, DriverError(None)),
        database_error(exc.DatabaseError, DriverError(None)),
        asyncpg.IdleSessionTimeoutError("a host's own use of the driver"),
    ],
    ids=repr,
)
def test_errors_that_pass(error: BaseException) -> None:
    """An outage would be taken for a fault of the outcome."""
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        LookupError(),
        asyncio.CancelledError(),
        KeyboardInterrupt(),
        LeaseLost(pipeline="P", row_id=1),
        OutcomeError("text"),
        exc.StatementError("text", "SELECT 1", {}, ValueError()),
        exc.NoResultFound(),
        database_error(exc.IntegrityError, DriverError(None)),
        database_error(exc.DataError, DriverError(None)),
        database_error(exc.ProgrammingError, DriverError(None)),
        database_error(exc.NotSupportedError, DriverError(None)),
        asyncpg.UniqueViolationError("a host's own use of the driver"),
    ],
    ids=repr,
)
def test_errors_that_last(error: BaseException) -> None:
    """The same mistake would be made again and again."""
    assert not is_transient(error)


@pytest.mark.parametrize("code", PASSING_ON_SQLITE)
def test_codes_that_pass(code: int) -> None:
    """A finished result would be dropped for want of memory, or for a code that a later SQLite
    has.
    """
    assert is_transient(database_error(exc.OperationalError, SqliteError(code)))
    assert is_transient(database_error(exc.DatabaseError, SqliteError(code)))


@pytest.mark.parametrize("code", LASTING_ON_SQLITE)
def test_codes_that_last(code: int) -> None:
    """An outcome that breaks a constraint would be tried until its lease has ended, instead of
    failing.
    """
    assert not is_transient(database_error(exc.OperationalError, SqliteError(code)))


@pytest.mark.parametrize("error_class", [DriverError, OtherDriverError])
def test_states_of_a_conflict(error_class: Any) -> None:
    """A deadlock that rolled an outcome back would be counted among those whose end is unknown."""
    conflicts = ("40001", "40P01")
    assert all(
        is_conflict(database_error(exc.DBAPIError, error_class(sqlstate))) for sqlstate in conflicts
    )
    others = (*PASSING, *LASTING)
    assert not any(
        is_conflict(database_error(exc.DBAPIError, error_class(sqlstate)))
        for sqlstate in others
        if sqlstate not in conflicts
    )


@pytest.mark.parametrize("error_class", [DriverError, OtherDriverError])
def test_the_state_of_a_transaction_that_has_failed(error_class: Any) -> None:
    """An `also` that swallowed an error of the database would not be told so, or any failure
    would be taken for that.
    """
    assert is_after_an_error(database_error(exc.DBAPIError, error_class("25P02")))
    assert not is_after_an_error(database_error(exc.DBAPIError, error_class("40001")))
    assert not is_after_an_error(ValueError("25P02"))


def hosts_own(cause: BaseException, *, told_as: type[Exception] = RuntimeError) -> Exception:
    """Return what a host's ``handle_error`` listener raises instead of `cause`."""
    between = KeyError("between")
    between.__cause__ = cause
    error = told_as("the database is away")
    error.__cause__ = between
    return error


def test_what_a_host_raises_instead_is_judged_by_what_the_database_said() -> None:
    """A host that gives errors of the database names of its own would have finished work dropped
    in every outage.
    """
    assert is_transient(hosts_own(ConnectionResetError()))
    assert is_transient(hosts_own(database_error(exc.DBAPIError, DriverError("57P01"))))
    assert is_outage(hosts_own(database_error(exc.DBAPIError, DriverError("57P01"))))
    assert is_conflict(hosts_own(database_error(exc.DBAPIError, DriverError("40P01"))))
    assert is_after_an_error(hosts_own(database_error(exc.DBAPIError, DriverError("25P02"))))
    assert is_of_the_schema(hosts_own(database_error(exc.DBAPIError, DriverError("42P01"))))
    assert may_be_of_the_size(hosts_own(database_error(exc.DBAPIError, DriverError("57014"))))
    assert not is_transient(hosts_own(database_error(exc.DBAPIError, DriverError("23505"))))


def test_what_host_code_raised_is_its_own() -> None:
    """An `also` whose file server is away would be tried again and again, as if the database
    were.
    """
    assert not is_transient(hosts_own(ConnectionResetError(), told_as=HostCodeError))


@pytest.mark.parametrize("sqlstate", OUTAGES)
def test_states_of_the_whole_server(sqlstate: str) -> None:
    """In an outage each of 500 outcomes would be tried by itself, one round trip after the
    other.
    """
    assert is_outage(database_error(exc.DBAPIError, DriverError(sqlstate)))


@pytest.mark.parametrize("sqlstate", [*OF_ONE_ROW_PERHAPS, *LASTING])
def test_states_that_may_be_of_one_row(sqlstate: str) -> None:
    """One row that cannot be written, by a page or by a trigger of the host's, would keep all
    others from being written.
    """
    assert not is_outage(database_error(exc.DBAPIError, DriverError(sqlstate)))


def test_what_else_is_an_outage() -> None:
    """A connection that was cut would have each outcome tried by itself; a damaged page would
    keep all others back.
    """
    assert is_outage(TimeoutError())
    assert is_outage(database_error(exc.DBAPIError, DriverError("XX000"), cut=True))
    assert is_outage(database_error(exc.OperationalError, DriverError(None)))
    assert is_outage(database_error(exc.OperationalError, SqliteError(sqlite3.SQLITE_BUSY)))
    assert not is_outage(database_error(exc.OperationalError, SqliteError(sqlite3.SQLITE_CORRUPT)))
    assert not is_outage(ValueError())


@pytest.mark.parametrize("sqlstate", ["42703", "42P01", "42501", "3F000"])
def test_states_of_the_schema(sqlstate: str) -> None:
    """All rows would be claimed and fail because a migration was not run."""
    assert is_of_the_schema(database_error(exc.ProgrammingError, DriverError(sqlstate)))
    assert not is_of_the_schema(
        database_error(exc.ProgrammingError, DriverError(sqlstate), cut=True)
    )


@pytest.mark.parametrize("sqlstate", ["42P05", "23505", "40001", "XX000", "3D000", None])
def test_states_that_say_nothing_of_the_schema(sqlstate: str | None) -> None:
    """One row's failure would keep all rows of the table from being claimed."""
    assert not is_of_the_schema(database_error(exc.DBAPIError, DriverError(sqlstate)))
