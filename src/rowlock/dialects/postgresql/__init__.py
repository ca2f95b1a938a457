"""PostgreSQL: any number of replicas; row locks keep them apart, and every statement is one
round trip.
"""

from __future__ import annotations

from rowlock.dialects.registry import Dialect

_HERE = "rowlock.dialects.postgresql"

POSTGRESQL = Dialect(
    name="postgresql",
    drivers=frozenset({"asyncpg", "psycopg", "psycopg2"}),
    parts={
        "locker": "rowlock.locks.locker:InDatabaseLocker",
        "locks": f"{_HERE}.locks:PostgresqlLocks",
        "transactions": f"{_HERE}.transactions:PostgresqlTransactions",
        "leases": f"{_HERE}.leases:PostgresqlLeases",
        "rows": f"{_HERE}.rows:PostgresqlRows",
        "streams": "rowlock.streams.dialects.postgresql:PostgresqlStreams",
        "folds": "rowlock.streams.dialects.postgresql:PostgresqlFolds",
        "insight": "rowlock.insight.dialects:PostgresqlInsight",
    },
    has_partial_indexes=True,
)
