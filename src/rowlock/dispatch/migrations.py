"""Steps for the host's own migrations: the columns of `DispatchColumns`, and the indexes that keep
submissions and fetches flat.

All indexes are partial, over active rows only: settled rows cost nothing, however many there are.
As in ``rows/migrations.py``, what a step does never changes, and the host's Alembic runs it. Rows
that are there were never submitted: they are adopted as completed, with no key, and are not worked
on.

Locks, on PostgreSQL: ``ACCESS EXCLUSIVE`` for a moment, nothing is rewritten. SQLite cannot change
a default, so there the rows are written once.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    Column,
    DefaultClause,
    Index,
    Integer,
    String,
    Text,
    column,
    table,
    text,
)

from rowlock import UtcDateTime, due_index
from rowlock.dispatch.columns import ACTIVE_SQL, empty_object
from rowlock.rows.migrations import MigrationOperations
from rowlock.spi import ROWS, due_at_once, partial_index_options


def dispatch_columns() -> list[Column[Any]]:
    """Return new columns as `DispatchColumns` has them."""
    return [
        Column("dedup_key", String(255), nullable=False, server_default=text("''")),
        Column("status", String(16), nullable=False, server_default="pending"),
        Column("submitted_at", UtcDateTime, nullable=False, server_default=due_at_once()),
        Column("started_at", UtcDateTime, nullable=True),
        Column("finished_at", UtcDateTime, nullable=True),
        Column("worker", String(255), nullable=True),
        Column("progress", String(256), nullable=True),
        Column("stages", JSON, nullable=False, server_default=empty_object()),
        Column("losses", Integer, nullable=False, server_default="0"),
        Column("error", Text, nullable=True),
        Column("superseded_by", String(255), nullable=True),
    ]


def dispatch_indexes(table_name: str, *, key: str = "id") -> tuple[Index, ...]:
    """Return the three indexes, for the model's ``__table_args__``.

    One active row for each key; the order of claims; the order in which waiting rows are brought
    forward.

    Args:
        table_name: the host's table.
        key: name of the primary key.
    """
    active = partial_index_options(text(ACTIVE_SQL))
    return (
        Index(f"ux_{table_name}_dedup_key", "dedup_key", unique=True, **active),
        due_index(table_name, ready=ACTIVE_SQL, column=("due_at", key)),
        Index(f"ix_{table_name}_submitted_at", "submitted_at", key, **active),
    )


def add_dispatch_columns(
    op: MigrationOperations, table_name: str, *, schema: str | None = None
) -> None:
    """Add the columns of `DispatchColumns`. Rows that are there are completed, and have no key."""
    can_alter = ROWS.on(op.get_context().dialect.name).alters_defaults
    for new in dispatch_columns():
        if can_alter and new.name == "status":
            new.server_default = DefaultClause("completed")
        op.add_column(table_name, new, schema=schema)
    if can_alter:
        op.alter_column(
            table_name, "status", existing_type=String(16), server_default="pending", schema=schema
        )
    else:
        op.execute(
            table(table_name, column("status"), schema=schema).update().values(status="completed")
        )


def drop_dispatch_columns(
    op: MigrationOperations, table_name: str, *, schema: str | None = None
) -> None:
    """Take back `add_dispatch_columns`. Stop the pipelines and drop the indexes first."""
    for old in reversed(dispatch_columns()):
        op.drop_column(table_name, old.name, schema=schema)


def add_dispatch_indexes(
    op: MigrationOperations, table_name: str, *, key: str = "id", schema: str | None = None
) -> None:
    """Add what `dispatch_indexes` returns. PostgreSQL: writes wait (``SHARE``) for as long as
    reading the table takes.
    """
    for index in dispatch_indexes(table_name, key=key):
        columns: list[Any] = [
            part if isinstance(part, str) else part.name
            for part in index.expressions or index.columns
        ]
        options = {name: index.dialect_kwargs[name] for name in index.dialect_kwargs}
        op.create_index(
            index.name, table_name, columns, unique=index.unique, schema=schema, **options
        )


def drop_dispatch_indexes(
    op: MigrationOperations, table_name: str, *, key: str = "id", schema: str | None = None
) -> None:
    """Take back `add_dispatch_indexes`."""
    for index in reversed(dispatch_indexes(table_name, key=key)):
        op.drop_index(index.name, table_name, schema=schema)
