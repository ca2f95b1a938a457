"""Transactions on PostgreSQL: any of them may write, and a statement is one round trip. And what
its error codes say: only those that speak of the statement or of its values are final; an unknown
one is the server's trouble.

Source: PostgreSQL, Appendix A "Error Codes".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, text

from rowlock.dialects.contract import (
    ChannelConnection,
    Connect,
    ErrorVerdict,
    TransactionDialect,
)
from rowlock.dialects.postgresql.channels import CHANNELS
from rowlock.errors import ConfigurationError

# Behind a pooler the number may be another connection's: then no transaction of ours waits for so
# long there. The trap: asyncpg flushes between Parse and Bind without a Sync, and a server that
# waits for the Bind says "active".
_TERMINATE = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = :pid AND usename ="
    " current_user AND (state LIKE 'idle in transaction%' OR state = 'active' AND wait_event ="
    " 'ClientRead') AND xact_start < clock_timestamp() - make_interval(secs => :seconds)"
)


_OF_THE_STATEMENT = ("0A", "0L", "0P", "21", "2B", "34", "3B", "3F", "42", "54", "55P02")
"""It asks for what there is not, what is not allowed, or too much."""
_OF_THE_VALUES = ("0F", "10", "22", "23", "40002", "44")
"""40002 is of class 40, but about a constraint."""
_OF_ROUTINES = ("09", "0Z", "20", "24", "27", "2D", "2F", "38", "39", "P0")
"""A trigger or a routine of the host raised it."""
_FINAL_SQLSTATES = _OF_THE_STATEMENT + _OF_THE_VALUES + _OF_ROUTINES
"""Beginnings of the SQLSTATEs that do not pass.

What is left passes. 08, 57, 58, F0, XX: the server or the way to it. 28, 3D: the account or the
database is being changed. 25: of the transaction, not of the statement: read-only before a
promotion (25006), ended by a timeout (25P03, 25P04), or aborted by an error that is not this one
(25P02). 26: a pooler gave the connection of a prepared statement to another client. 40, 55, 72:
others were in the way. 53: resources. HV: a foreign server.
"""
_PASSING_SQLSTATES = ("42P05",)
"""Exceptions of those: a pooler left a prepared statement of this name on the connection."""
_SCHEMA_SQLSTATES = ("3F", "42")
_OUTAGE_SQLSTATES = ("08", "25006", "25P03", "25P04", "28", "3D", "40", "53", "55P03", "57", "F0")
"""Beginnings of the SQLSTATEs that speak of the server, the connection or other transactions,
and of no row.
"""
_SERVER_SQLSTATES = ("08", "25006", "25P03", "25P04", "26", "28", "3D", "53300", "57P", "58", "F0")
"""Beginnings of those for which another connection is better: a standby, a server that shuts down,
a disk that was taken away, prepared statements that the server no longer has.
"""
_SQLSTATES_OF_THE_SIZE = ("53200", "55P03", "57014")
"""Out of memory, `lock_timeout` and `statement_timeout`."""


class PostgresqlTransactions(TransactionDialect):
    commits_single_statements = True
    claims_at_once = None

    async def end_stalled(
        self, engine: Engine, driver: Any, connect: Connect, *, older_than_s: float
    ) -> bool | None:
        """Have the server end it, which may still run a statement."""
        has_pid = hasattr(driver, "get_server_pid")
        pid = driver.get_server_pid() if has_pid else driver.info.backend_pid
        given = {"pid": pid, "seconds": older_than_s / 2}
        async with connect(engine) as other:
            return await other.scalar(_TERMINATE, given) or None

    def fault_of(self, raised: BaseException | None) -> ErrorVerdict | None:
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

    def channel_of(self, driver: str) -> Callable[[Any], ChannelConnection]:
        if driver not in CHANNELS:
            raise ConfigurationError(
                f"notify needs the driver {' or '.join(CHANNELS)}, not {driver}; use"
                f" postgresql+{next(iter(CHANNELS))}://..."
            )
        return CHANNELS[driver]
