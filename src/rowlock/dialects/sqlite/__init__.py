"""SQLite: one writer at a time, so the file's write lock is taken first, and keys are locked
within the process.
"""

from __future__ import annotations

from rowlock.dialects.registry import Dialect

_HERE = "rowlock.dialects.sqlite"

SQLITE = Dialect(
    name="sqlite",
    drivers=frozenset({"aiosqlite", "sqlite3"}),
    parts={
        "locker": "rowlock.locks.locker:InMemoryLocker",
        "locks": f"{_HERE}.locks:SqliteLocks",
        "transactions": f"{_HERE}.transactions:SqliteTransactions",
        "leases": f"{_HERE}.leases:SqliteLeases",
        "rows": f"{_HERE}.rows:SqliteRows",
        "streams": "rowlock.streams.dialects.sqlite:SqliteStreams",
        "folds": "rowlock.streams.dialects.sqlite:SqliteFolds",
        "insight": "rowlock.insight.dialects:SqliteInsight",
    },
    has_partial_indexes=True,
)
