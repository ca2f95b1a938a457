"""Which database errors pass by themselves, and which come back every time.

The one idea: an outage says nothing about an outcome, so it is waited out while trust lasts; a constraint violation says all about
it, so it is the outcome's own failure.
"""

from __future__ import annotations

import sqlite3

from sqlalchemy import exc

from rowlock.errors import LockWaitTimeout, TransactionTimeout

_TRANSIENT_SQLSTATES = frozenset(
    {
        "40001",  # serialization_failure
        "40P01",  # deadlock_detected
        "55P03",  # lock_not_available
        "57014",  # query_canceled: statement_timeout
        "57P01",  # admin_shutdown
        "57P02",  # crash_shutdown
        "57P03",  # cannot_connect_now
        "25006",  # read_only_sql_transaction: a replica before its promotion
        "53000",  # insufficient_resources
        "53100",  # disk_full
        "53200",  # out_of_memory
        "53300",  # too_many_connections
    }
)
_TRANSIENT_SQLITE_CODES = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
    }
)
_DRIVERS = frozenset({"aiosqlite", "asyncpg", "psycopg", "sqlite3"})
_TRANSIENT_TYPES = (TransactionTimeout, LockWaitTimeout, TimeoutError, OSError, exc.TimeoutError)


def is_transient(error: BaseException) -> bool:
    """Whether the same statement may well succeed later without anybody changing it.

    Drivers let ``ConnectionRefusedError`` and ``TimeoutError`` through unwrapped, so this looks at more than SQLAlchemy's own.
    """
    if isinstance(error, _TRANSIENT_TYPES) or _is_unwrapped(error):
        return True
    if not isinstance(error, exc.DBAPIError):
        return False
    # A statement that was prepared before a migration is prepared anew the next time.
    if error.connection_invalidated or type(error.orig).__name__ == "InvalidCachedStatementError":
        return True
    sqlstate = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
    if sqlstate is not None:
        return str(sqlstate) in _TRANSIENT_SQLSTATES or str(sqlstate).startswith("08")
    if (sqlite_errorcode := getattr(error.orig, "sqlite_errorcode", None)) is not None:
        # The low byte is the code; the rest says more about it. A missing table is an OperationalError here, too.
        return sqlite_errorcode & 0xFF in _TRANSIENT_SQLITE_CODES
    return isinstance(error, exc.OperationalError | exc.InterfaceError)


def is_conflict(error: BaseException) -> bool:
    """Whether the database rolled the whole transaction back for another one's sake: a serialization failure, or a deadlock.

    It is certain then that nothing of it was committed, also if that was the answer to its COMMIT.
    """
    if not isinstance(error, exc.DBAPIError):
        return False
    sqlstate = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
    return sqlstate in {"40001", "40P01"}


def may_be_of_the_size(error: BaseException) -> bool:
    """Whether a transaction may have failed because it did so much, and one that does less may succeed."""
    if isinstance(error, TransactionTimeout) or is_conflict(error):
        return True
    return isinstance(error, exc.DBAPIError) and getattr(error.orig, "sqlstate", None) in _SQLSTATES_OF_THE_SIZE


_SQLSTATES_OF_THE_SIZE = frozenset(
    {
        "53200",  # out_of_memory
        "55P03",  # lock_not_available: lock_timeout
        "57014",  # query_canceled: statement_timeout
    }
)


def is_of_the_schema(error: BaseException) -> bool:
    """Whether the database refused a statement as such, whichever rows it is about: a column or a table is not there, say."""
    if not isinstance(error, exc.DBAPIError):
        return False
    sqlstate = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
    if sqlstate is not None:
        return str(sqlstate).startswith("42")
    # SQLite has one code for all that is wrong with a statement, values that a function cannot read among it.
    return getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR and "no such " in str(error.orig)


def _is_unwrapped(error: BaseException) -> bool:
    # SQLAlchemy wraps what a statement raises; what reaches us bare is the driver's trouble with its connection, such as
    # asyncpg's InternalClientError on one that is being torn down.
    return type(error).__module__.partition(".")[0] in _DRIVERS
