"""SQLite's error codes.

Source: SQLite, "Result and Error Codes".
"""

from __future__ import annotations

import sqlite3

from rowlock.database.fault_dialect import ErrorVerdict, FaultDialect

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
_SQLITE_CODES_OF_FILES = frozenset(
    {
        sqlite3.SQLITE_READONLY,  # moved or replaced, or not writable when it was opened
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,  # another file may stand in its place
        sqlite3.SQLITE_CANTOPEN,  # its journal
        sqlite3.SQLITE_NOTADB,
    }
)
"""Codes that speak of the file as the connection has it open."""


class SqliteFaults(FaultDialect):
    """Judges by the primary code."""

    def fault_of(self, raised: BaseException | None) -> ErrorVerdict | None:
        """Return what the low byte of the extended code says; the rest says more about it."""
        extended: int | None = getattr(raised, "sqlite_errorcode", None)
        if extended is None:
            return None
        code = extended & 0xFF
        return ErrorVerdict(
            passes=code not in _FINAL_SQLITE_CODES,
            concerns_every_row=code not in _SQLITE_CODES_OF_ROWS,
            is_of_the_server=code in _SQLITE_CODES_OF_FILES,
            # There is one code for all that is wrong with a statement, values that a function
            # cannot read among it.
            is_of_the_schema=code == sqlite3.SQLITE_ERROR and "no such " in str(raised),
            is_of_the_values=code in {sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH},
        )
