"""Steps for the host's own migrations: the columns of `DispatchColumns`, and the indexes that keep
submissions and fetches flat.

All indexes are partial, over active rows only: settled rows cost nothing, however many there are.
As in ``rowlock.migrations``, what a step does never changes, and the host's Alembic runs it. Rows
that are there were never submitted: they are adopted as completed, with no key, and are not worked
on.

Locks, on PostgreSQL: ``ACCESS EXCLUSIVE`` for a moment, nothing is rewritten. SQLite cannot change
a default, so there the rows are written once.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, DefaultClause, Index, String, column, table, text

from rowlock import due_index
from rowlock.dispatch.columns import ACTIVE_SQL, DispatchColumns
from rowlock.migrations import MigrationOperations, add_columns, drop_columns
from rowlock.spi import ROWS, columns_of, partial_index_options


def dispatch_columns() -> list[Column[Any]]:
    """Return new columns as `DispatchColumns` has them."""
    return columns_of(DispatchColumns)


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
    columns = dispatch_columns()
    if can_alter:
        next(one for one in columns if one.name == "status").server_default = DefaultClause(
            "completed"
        )
    add_columns(op, table_name, columns, schema=schema)
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
    drop_columns(op, table_name, dispatch_columns(), schema=schema)


def add_dispatch_indexes(
    op: MigrationOperations, table_name: str, *, key: str = "id", schema: str | None = None
) -> None:
    """Add what `dispatch_indexes` returns. PostgreSQL: writes wait (``SHARE``) for as long as
    reading the table takes.
    """
    for index in dispatch_indexes(table_name, key=key):
        names, options = (index.name, table_name), index.dialect_kwargs
        columns = list(index.expressions)
        op.create_index(*names, columns, unique=index.unique, schema=schema, **options)


def drop_dispatch_indexes(
    op: MigrationOperations, table_name: str, *, key: str = "id", schema: str | None = None
) -> None:
    """Take back `add_dispatch_indexes`."""
    for index in reversed(dispatch_indexes(table_name, key=key)):
        op.drop_index(index.name, table_name, schema=schema)
