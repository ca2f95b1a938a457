"""Transactions on PostgreSQL: any of them may write, and a statement is one round trip. And what
its error codes say: only those that speak of the statement or of its values are final; an unknown
one is the server's trouble.

Source: PostgreSQL, Appendix A "Error Codes".
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text

from rowlock.dialects.contract import Connects, ErrorVerdict, FaultDialect, TransactionDialect


class PostgresqlTransactions(TransactionDialect):
    commits_single_statements = True
    claims_at_once = None
    is_ended_by_server = True

    def is_begun_before(self, error: Exception) -> bool:
        """Whether this is what psycopg raises then; asyncpg's transaction is ended."""
        kind = type(error)
        return (
            kind.__module__.startswith("psycopg")
            and kind.__name__ == "ProgrammingError"
            and "'autocommit'" in str(error)
        )

    async def end_stalled(
        self, connection: Connection, driver: Any, separate_pool: Connects, *, older_than_s: float
    ) -> bool:
        """Have the server end it. That may not be reached, or still run a statement; then a later
        attempt may succeed.
        """
        has_pid = hasattr(driver, "get_server_pid")
        pid = driver.get_server_pid() if has_pid else driver.info.backend_pid
        async with separate_pool.connect(connection.engine) as other:
            return bool(await other.scalar(_TERMINATE, {"pid": pid, "seconds": older_than_s / 2}))


# Behind a pooler the number may be another connection's: then no transaction of ours waits for so
# long there. The trap: asyncpg flushes between Parse and Bind without a Sync, and a server that
# waits for the Bind says "active".
_TERMINATE = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = :pid AND usename ="
    " current_user AND (state LIKE 'idle in transaction%' OR state = 'active' AND wait_event ="
    " 'ClientRead') AND xact_start < clock_timestamp() - make_interval(secs => :seconds)"
)


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
_SERVER_SQLSTATES = ("08", "25006", "25P03", "25P04", "26", "28", "3D", "53300", "57P", "58", "F0")
"""Beginnings of those that speak of the server which the connection leads to, or of the
connection: a standby, a server that shuts down, a disk that was taken away, prepared statements
that the server no longer has.
"""
_SQLSTATES_OF_THE_SIZE = frozenset(
    {
        "53200",  # out_of_memory
        "55P03",  # lock_not_available: lock_timeout
        "57014",  # query_canceled: statement_timeout
    }
)


class PostgresqlFaults(FaultDialect):
    def fault_of(self, raised: BaseException | None) -> ErrorVerdict | None:
        """Return what the SQLSTATE says, whatever the driver calls its attribute."""
        # psycopg raises an error of features that are not supported; the function tells it apart.
        function = getattr(getattr(raised, "diag", None), "source_function", None)
        is_cached = type(raised).__name__ == "InvalidCachedStatementError"
        if is_cached or function == "RevalidateCachedQuery":
            # Prepared before a migration. SQLAlchemy's own error of the first name has no SQLSTATE;
            # psycopg would go on to send what it has prepared, unless a transaction is rolled back.
            return ErrorVerdict(passes=True, concerns_every_row=True, is_of_the_server=True)
        sqlstate = getattr(raised, "sqlstate", None) or getattr(raised, "pgcode", None)
        if sqlstate is None:
            return None
        code = str(sqlstate)
        return ErrorVerdict(
            passes=code in _PASSING_SQLSTATES or not code.startswith(_FINAL_SQLSTATES),
            concerns_every_row=code.startswith(_OUTAGE_SQLSTATES),
            is_of_the_server=code.startswith(_SERVER_SQLSTATES),
            is_conflict=code in {"40001", "40P01"},
            is_after_an_error=code == "25P02",
            is_of_the_size=code in _SQLSTATES_OF_THE_SIZE,
            is_of_the_schema=code.startswith(_SCHEMA_SQLSTATES),
            is_of_the_values=code.startswith("22"),
        )
