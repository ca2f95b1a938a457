"""PostgreSQL's error codes.

Only those that speak of the statement or of its values are final; an unknown one is the server's
trouble.

Source: PostgreSQL, Appendix A "Error Codes".
"""

from __future__ import annotations

from rowlock.database.fault_dialect import ErrorVerdict, FaultDialect

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
_SERVER_SQLSTATES = ("08", "25006", "25P03", "25P04", "28", "3D", "53300", "57P", "58", "F0")
"""Beginnings of those that speak of the server which the connection leads to, or of the
connection: a standby, a server that shuts down, a disk that was taken away.
"""
_SQLSTATES_OF_THE_SIZE = frozenset(
    {
        "53200",  # out_of_memory
        "55P03",  # lock_not_available: lock_timeout
        "57014",  # query_canceled: statement_timeout
    }
)


class PostgresqlFaults(FaultDialect):
    """Judges by the SQLSTATE."""

    def fault_of(self, raised: BaseException | None) -> ErrorVerdict | None:
        """Return what the SQLSTATE says, whatever the driver calls its attribute."""
        if type(raised).__name__ == "InvalidCachedStatementError":
            # Prepared before a migration: it is prepared anew the next time. SQLAlchemy's own error
            # of that name has no SQLSTATE.
            return ErrorVerdict(passes=True, concerns_every_row=True)
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
