"""Steps for the host's own migrations: the columns of `DispatchColumns`, and the indexes that keep submissions and fetches flat.

All indexes are partial, over active rows only: settled rows cost nothing, however many there are. As in ``rows/migrations.py``,
what a step does never changes, and the host's Alembic runs it. Rows that are there were never submitted: they are adopted as
completed, with no key, and nobody works on them.

Locks, on PostgreSQL: ``ACCESS EXCLUSIVE`` for a moment, nothing is rewritten. SQLite rebuilds the table, twice, since it can
neither add a column whose default is the present time nor change a default.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Column, Index, Integer, String, Text, text

from rowlock.dispatch.columns import empty_object
from rowlock.dispatch.states import ACTIVE_SQL
from rowlock.rows.database_time import UtcDateTime, database_now
from rowlock.rows.due_index import due_index
from rowlock.rows.migrations import MigrationOperations
from rowlock.rows.sqlite_rebuild import refuse_lossy_rebuild


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
        Column("stages", JSON, nullable=False, server_default=empty_object()),
        Column("losses", Integer, nullable=False, server_default="0"),
        Column("error", Text, nullable=True),
        Column("superseded_by", String(255), nullable=True),
    ]


def dispatch_indexes(table_name: str, *, key: str = "id") -> tuple[Index, ...]:
    """Return the three indexes, for the model's ``__table_args__``.

    One active row for each key; the order of claims; the order in which waiting rows are brought forward.

    Args:
        table_name: the host's table.
        key: name of the primary key.
    """
    active: dict[str, Any] = {"postgresql_where": text(ACTIVE_SQL), "sqlite_where": text(ACTIVE_SQL)}
    return (
        Index(f"ux_{table_name}_dedup_key", "dedup_key", unique=True, **active),
        due_index(table_name, ready=ACTIVE_SQL, column=("due_at", key)),
        Index(f"ix_{table_name}_submitted_at", "submitted_at", key, **active),
    )


def add_dispatch_columns(op: MigrationOperations, table_name: str, *, schema: str | None = None) -> None:
    """Add the columns of `DispatchColumns`. Rows that are there are completed, and have no key.

    Raises:
        ConfigurationError: on SQLite, the rebuild would lose something; nothing was done.
    """
    columns = dispatch_columns()
    context = op.get_context()
    if context.dialect.name == "sqlite" and not context.as_sql:
        refuse_lossy_rebuild(op.get_bind(), table_name, added=[new.name for new in columns], schema=schema)
    adopted = {"dedup_key": "", "status": "completed"}
    with op.batch_alter_table(table_name, schema=schema) as batch:
        for new in columns:
            default = adopted.get(new.name)
            batch.add_column(
                new if default is None else Column(new.name, new.type, nullable=False, server_default=default)
            )
    with op.batch_alter_table(table_name, schema=schema) as batch:
        batch.alter_column("dedup_key", existing_type=String(255), existing_nullable=False, server_default=None)
        batch.alter_column("status", existing_type=String(16), existing_nullable=False, server_default="pending")


def drop_dispatch_columns(op: MigrationOperations, table_name: str, *, schema: str | None = None) -> None:
    """Take back `add_dispatch_columns`. Stop the pipelines and drop the indexes first."""
    for old in reversed(dispatch_columns()):
        op.drop_column(table_name, old.name, schema=schema)


def add_dispatch_indexes(
    op: MigrationOperations, table_name: str, *, key: str = "id", schema: str | None = None
) -> None:
    """Add what `dispatch_indexes` returns. PostgreSQL: writes wait (``SHARE``) for as long as reading the table takes."""
    for index in dispatch_indexes(table_name, key=key):
        columns: list[Any] = [
            part if isinstance(part, str) else part.name for part in index.expressions or index.columns
        ]
        options = {
            name: index.dialect_options[name.split("_")[0]]["where"] for name in ("postgresql_where", "sqlite_where")
        }
        op.create_index(index.name, table_name, columns, unique=index.unique, schema=schema, **options)


def drop_dispatch_indexes(
    op: MigrationOperations, table_name: str, *, key: str = "id", schema: str | None = None
) -> None:
    """Take back `add_dispatch_indexes`."""
    for index in reversed(dispatch_indexes(table_name, key=key)):
        op.drop_index(index.name, table_name, schema=schema)
