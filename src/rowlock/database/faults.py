"""Which database errors pass by themselves, and which come back every time.

The one idea: an outage says nothing about an outcome, so it is waited out while trust lasts; a
constraint violation says all about it, so it is the outcome's own failure. Errors are judged by
their class, and only those that speak of the statement or of its values are final. Everything else,
an unknown code included, is the server's trouble: to wait once too often costs a delay
(`lock_timeout` at most), to fail once too early costs the work.

Source: PostgreSQL, Appendix A "Error Codes"; SQLite, "Result and Error Codes".
"""

from __future__ import annotations

import sqlite3

from sqlalchemy import exc

from rowlock.errors import LockWaitTimeout, RowlockError, TransactionTimeout

CAUSES_MAX = 10
"""So many exceptions may stand between one of the host's own and what the database said."""

_FINAL_SQLSTATES = (
    "09",  # triggered action: the host's trigger failed
    "0A",  # feature not supported: the statement asks for it
    "0F",  # locator: a value
    "0L",  # invalid grantor: the statement's
    "0P",  # invalid role specification: the statement's
    "0Z",  # diagnostics: the host's routine asks for them in the wrong place
    "10",  # XQuery: a value
    "20",  # case not found: the host's routine met a value that it has no branch for
    "21",  # cardinality: a subquery of the statement gave several rows
    "22",  # data: a value
    "23",  # integrity constraint: the values
    "24",  # cursor state: the host's routine
    "27",  # triggered data change: the host's trigger changed the row that is being changed
    "2B",  # dependent privileges: the statement
    "2D",  # transaction termination: the host's routine commits inside of the statement
    "2F",  # SQL routine: the host's routine
    "34",  # cursor name: the statement
    "38",  # external routine: the host's routine
    "39",  # external routine invocation: the host's routine or trigger
    "3B",  # savepoint: the statement names one that is not there
    "3F",  # schema name: the statement names one that is not there
    "40002",  # transaction integrity constraint violation: of class 40, but about the values
    "42",  # syntax error or access rule: the statement
    "44",  # WITH CHECK OPTION: the values
    "54",  # program limit: the statement or its values are too large
    "55P02",  # the statement sets what can be set at the server's start alone
    "P0",  # PL/pgSQL: the host's routine or trigger raised it
)
"""Beginnings of the SQLSTATEs that speak of the statement or of its values.

What is left passes. 08, 57, 58, F0, XX: the server or the way to it. 28, 3D: the account or the
database is being changed. 25: of the transaction, not of the statement: read-only before a
promotion (25006), ended by a timeout (25P03, 25P04), or aborted by an error that is not this one
(25P02). 26: a pooler gave the connection of a prepared statement to another client. 40, 55, 72:
others were in the way. 53: resources. HV: a foreign server.
"""
_PASSING_SQLSTATES = ("42P05",)
"""Exceptions of those: a prepared statement of this name is there already, which a pooler left
on the connection.
"""
_SCHEMA_SQLSTATES = ("3F", "42")
_OUTAGE_SQLSTATES = ("08", "25006", "25P03", "25P04", "28", "3D", "40", "53", "55P03", "57", "F0")
"""Beginnings of the SQLSTATEs that speak of the server, the connection or other transactions,
and of no row.
"""

_FINAL_SQLITE_CODES = frozenset(
    {
        sqlite3.SQLITE_ERROR,  # the statement, or a value that a function cannot read
        sqlite3.SQLITE_TOOBIG,  # a value
        sqlite3.SQLITE_CONSTRAINT,  # the values
        sqlite3.SQLITE_MISMATCH,  # a value
        sqlite3.SQLITE_RANGE,  # a parameter that the statement does not have
    }
)
_SQLITE_CODES_OF_ROWS = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_INTERNAL})
"""Codes that pass, and that may come of the page on which one row stands."""

# Without a code there is nothing better than what the driver calls it.
_FINAL_KINDS = (exc.DataError, exc.IntegrityError, exc.NotSupportedError, exc.ProgrammingError)
_DRIVERS = frozenset({"aiosqlite", "asyncpg", "psycopg", "sqlite3"})
_TRANSIENT_TYPES = (TransactionTimeout, LockWaitTimeout, TimeoutError, OSError, exc.TimeoutError)


def is_transient(error: BaseException) -> bool:
    """Whether the same statement may well succeed later without anybody changing it.

    Drivers let ``ConnectionRefusedError`` and ``TimeoutError`` through unwrapped, so this looks at
    more than SQLAlchemy's own. An exception that comes from no database passes by nothing.
    """
    error = _of_database(error)
    if isinstance(error, _TRANSIENT_TYPES) or _is_of_the_connection(error):
        return True
    if not _is_of_a_driver(error):
        return False
    if (sqlstate := _sqlstate(error)) is not None:
        return sqlstate in _PASSING_SQLSTATES or not sqlstate.startswith(_FINAL_SQLSTATES)
    if (code := _sqlite_code(error)) is not None:
        return code not in _FINAL_SQLITE_CODES
    return not isinstance(error, _FINAL_KINDS)


def is_outage(error: BaseException) -> bool:
    """Whether a transient error says of itself that it concerns every row: others, too, would meet
    it now.

    Of the rest it is not known: a page that cannot be read, or a host's trigger with a code of its
    own, may concern one row.
    """
    error = _of_database(error)
    if not is_transient(error):
        return False
    if isinstance(error, _TRANSIENT_TYPES) or _is_of_the_connection(error):
        return True
    if (sqlstate := _sqlstate(error)) is not None:
        return sqlstate.startswith(_OUTAGE_SQLSTATES)
    code = _sqlite_code(error)
    return code is None or code not in _SQLITE_CODES_OF_ROWS


def is_conflict(error: BaseException) -> bool:
    """Whether the database rolled the whole transaction back for another one's sake: a
    serialization failure, or a deadlock.

    It is certain then that nothing of it was committed, also if that was the answer to its COMMIT.
    """
    error = _of_database(error)
    return _is_of_a_driver(error) and _sqlstate(error) in {"40001", "40P01"}


def is_after_an_error(error: BaseException) -> bool:
    """Whether a statement was refused since an earlier one of its transaction had failed."""
    error = _of_database(error)
    return _is_of_a_driver(error) and _sqlstate(error) == "25P02"


def may_be_of_the_size(error: BaseException) -> bool:
    """Whether a transaction may have failed because it did so much, and one that does less may
    succeed.
    """
    error = _of_database(error)
    if isinstance(error, TransactionTimeout) or is_conflict(error):
        return True
    return _is_of_a_driver(error) and _sqlstate(error) in _SQLSTATES_OF_THE_SIZE


_SQLSTATES_OF_THE_SIZE = frozenset(
    {
        "53200",  # out_of_memory
        "55P03",  # lock_not_available: lock_timeout
        "57014",  # query_canceled: statement_timeout
    }
)


def is_of_the_schema(error: BaseException) -> bool:
    """Whether the database refused a statement as such, whichever rows it is about: a column or
    a table is not there, say.
    """
    error = _of_database(error)
    if not _is_of_a_driver(error) or is_transient(error):
        return False
    if (sqlstate := _sqlstate(error)) is not None:
        return sqlstate.startswith(_SCHEMA_SQLSTATES)
    # SQLite has one code for all that is wrong with a statement, values that a function cannot read
    # among it.
    return _sqlite_code(error) == sqlite3.SQLITE_ERROR and "no such " in str(error)


def _of_database(error: BaseException) -> BaseException:
    """Return what the database said, also where a host's ``handle_error`` listener has put an
    exception of its own in its place.

    What host code raised within a transaction of ours is told as a `HostCodeError`, and says
    nothing of the database.
    """
    cause = error
    for _ in range(CAUSES_MAX):
        if isinstance(cause, (exc.SQLAlchemyError, *_TRANSIENT_TYPES)) or _is_of_a_driver(cause):
            return cause
        if cause.__cause__ is None or isinstance(cause, RowlockError):
            break
        cause = cause.__cause__
    return error


def _is_of_a_driver(error: BaseException) -> bool:
    # SQLAlchemy wraps what a statement raises; what reaches us bare is the driver's trouble with
    # its connection, such as asyncpg's InternalClientError on one that is being torn down, or was
    # raised by a host that uses the driver itself.
    return isinstance(error, exc.DBAPIError) or type(error).__module__.partition(".")[0] in _DRIVERS


def _is_of_the_connection(error: BaseException) -> bool:
    if not isinstance(error, exc.DBAPIError):
        return False
    # A statement that was prepared before a migration is prepared anew the next time.
    return (
        error.connection_invalidated or type(error.orig).__name__ == "InvalidCachedStatementError"
    )


def _sqlstate(error: BaseException) -> str | None:
    raised = error.orig if isinstance(error, exc.DBAPIError) else error
    sqlstate = getattr(raised, "sqlstate", None) or getattr(raised, "pgcode", None)
    return None if sqlstate is None else str(sqlstate)


def _sqlite_code(error: BaseException) -> int | None:
    raised = error.orig if isinstance(error, exc.DBAPIError) else error
    code: int | None = getattr(raised, "sqlite_errorcode", None)
    # The low byte is the code; the rest says more about it.
    return None if code is None else code & 0xFF
