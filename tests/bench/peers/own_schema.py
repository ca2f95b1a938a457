"""A schema for a peer that cannot take its tables away itself: made anew before a drain, dropped
after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import make_conninfo

SCHEMA = "bench_peer"


@contextmanager
def own_schema(dsn: str) -> Iterator[str]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        connection.execute(f"CREATE SCHEMA {SCHEMA}")
        try:
            yield make_conninfo(dsn, options=f"-c search_path={SCHEMA}")
        finally:
            connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


def analyze(dsn: str) -> None:
    """Have the planner know what is there, as autovacuum would in a while."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ANALYZE")
