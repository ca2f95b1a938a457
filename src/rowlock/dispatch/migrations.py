"""Steps for the host's own migrations: the columns of `DispatchColumns`, and the indexes that keep submissions and fetches flat.

All indexes are partial, over active rows only: settled rows cost nothing, however many there are. As in ``rows/migrations.py``,
what a step does never changes.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Column, Index, Integer, String, Text, text

from rowlock.dispatch.states import ACTIVE_SQL
from rowlock.rows.database_time import UtcDateTime, database_now
from rowlock.rows.due_index import due_index


def dispatch_columns() -> list[Column[Any]]:
    """Return new columns as `DispatchColumns` has them, for a batch of the host's own."""
    return [
        Column("dedup_key", String(255), nullable=False),
        Column("status", String(16), nullable=False, server_default="pending"),
        Column("submitted_at", UtcDateTime, nullable=False, server_default=database_now()),
        Column("started_at", UtcDateTime, nullable=True),
        Column("finished_at", UtcDateTime, nullable=True),
        Column("worker", String(255), nullable=True),
        Column("progress", String(256), nullable=True),
        Column("stages", JSON, nullable=False, server_default="{}"),
        Column("losses", Integer, nullable=False, server_default="0"),
        Column("error", Text, nullable=True),
        Column("superseded_by", String(255), nullable=True),
    ]


def dispatch_indexes(table_name: str, *, key: str = "id") -> tuple[Index, ...]:
    """Return the three indexes for the model's ``__table_args__``.

    One active row for each key; the order of claims; the order in which waiting rows are brought forward, which is also what the
    ceiling counts.

    Args:
        table_name: the host's table.
        key: name of the primary key.
    """
    active: dict[str, Any] = {"postgresql_where": text(ACTIVE_SQL), "sqlite_where": text(ACTIVE_SQL)}
    return (
        Index(f"ux_{table_name}_dedup_key", "dedup_key", unique=True, **active),
        due_index(table_name, ready=ACTIVE_SQL, column=("due_at", key)),
        Index(f"ix_{table_name}_submitted_at", "status", "submitted_at", key, **active),
    )
