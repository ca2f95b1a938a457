"""Steps for the host's own migrations: adopt a table, index it, and undo both.

The one idea: the host's migration stays in charge. It hands in Alembic's ``op``, which runs the
steps in the host's order and in the host's transaction; this room imports no Alembic and begins
nothing. And what a step does to columns never changes: a migration that was written once must do
the same in three years, so they are spelt here a second time, and a later column will come as a
later step. An index is what the claims of this version want.

Locks, on PostgreSQL: adding and dropping columns takes ``ACCESS EXCLUSIVE`` for a moment and
rewrites nothing (``now()`` is stable, so even ``due_at`` is a change of the catalogue alone). The
moment begins when older transactions let go of the table, and whoever comes later queues behind it:
run ``SET LOCAL lock_timeout = '3s'`` first, and try again.

Not here: what the indexes are made of (``rows/indexes.py``), and the columns as a
model has them (``columns.py``).

Source: PostgreSQL, "ALTER TABLE", "CREATE INDEX" and "Heap-Only Tuples"; Alembic, "Running batch
migrations".
"""

from __future__ import annotations

from typing import Any, TypeAlias

from sqlalchemy import Column, ColumnElement, Integer, String, Text, Uuid, table, text

from rowlock.dialects.contract import ROWS, RowDialect
from rowlock.rows.database_time import UtcDateTime, due_at_once
from rowlock.rows.indexes import (
    KEY,
    DueOrder,
    due_index_name,
    due_index_parts,
    parked_index_name,
    parked_index_parts,
)

FILLFACTOR = 70
"""Advised share of a page that PostgreSQL fills at first, in percent; the rest is for updates."""

MigrationOperations: TypeAlias = Any
"""Alembic's ``op``, or an ``Operations`` object: Alembic is the host's dependency and not ours."""


def lock_columns() -> list[Column[Any]]:
    """Return new columns as `LockColumns` has them."""
    return [
        Column("lock_token", Uuid, nullable=True),
        Column("lock_owner", String(255), nullable=True),
        Column("lock_expires_at", UtcDateTime, nullable=True),
        Column("last_processed_at", UtcDateTime, nullable=True),
    ]


def schedule_columns() -> list[Column[Any]]:
    """Return new columns as `ScheduleColumns` has them."""
    return [
        Column("due_at", UtcDateTime, nullable=False, server_default=due_at_once()),
        Column("attempts", Integer, nullable=False, server_default="0"),
        Column("last_error", Text, nullable=True),
        Column("parked_at", UtcDateTime, nullable=True),
        Column("deadline_at", UtcDateTime, nullable=True),
    ]


def add_lock_columns(
    op: MigrationOperations, table_name: str, *, schema: str | None = None
) -> None:
    """Add the columns of `LockColumns`. Rows that are there have never been processed, and nobody
    holds them.

    Reads and writes no row, on both databases. PostgreSQL: ``ACCESS EXCLUSIVE`` for a moment.
    """
    for new in lock_columns():
        op.add_column(table_name, new, schema=schema)


def drop_lock_columns(
    op: MigrationOperations, table_name: str, *, schema: str | None = None
) -> None:
    """Take back `add_lock_columns`. Stop the pipelines and drop the index first.

    PostgreSQL: ``ACCESS EXCLUSIVE`` for a moment, nothing is rewritten. SQLite (3.35 or newer)
    rewrites the rows.
    """
    for old in reversed(lock_columns()):
        op.drop_column(table_name, old.name, schema=schema)


def add_schedule_columns(
    op: MigrationOperations, table_name: str, *, schema: str | None = None
) -> None:
    """Add the columns of `ScheduleColumns`. Rows that are there are due now.

    Reads and writes no row, on both databases. PostgreSQL: ``ACCESS EXCLUSIVE`` for a moment.
    """
    for new in schedule_columns():
        op.add_column(table_name, new, schema=schema)


def drop_schedule_columns(
    op: MigrationOperations, table_name: str, *, schema: str | None = None
) -> None:
    """Take back `add_schedule_columns`. Locks and costs are those of `drop_lock_columns`."""
    for old in reversed(schedule_columns()):
        op.drop_column(table_name, old.name, schema=schema)


def add_due_index(
    op: MigrationOperations,
    table_name: str,
    *,
    ready: str | ColumnElement[bool],
    column: DueOrder = "last_processed_at",
    schema: str | None = None,
    name: str | None = None,
    concurrently: bool = False,
) -> None:
    """Add the one index that serves the claim: the due column and the key of the rows that are
    ready, in the order of claims.

    Parked rows are not in the index of ``due_at``.

    So a claim costs the same however many settled rows there are. One for each pipeline, if several
    share the table.

    Args:
        op: Alembic's, handed in by the migration.
        table_name: the host's table.
        ready: what the pipeline's ``ready()`` says, as SQL (``"status = 'submitted'"``); the
            database uses the index only where the claim's condition implies this one.
        column: ``"due_at"`` for models with `ScheduleColumns`; with the primary key, if that is not
            ``id``: ``("due_at", "job_id")``.
        schema: where the table is.
        name: of the index, ``ix_<table>_<column>`` by default.
        concurrently: on PostgreSQL, let reads and writes go on meanwhile. It commits the
            transaction so far and runs outside one, so give it a migration of its own. What an
            interrupted run left behind is dropped first. Without it, writes wait (``SHARE``) for as
            long as reading the table takes. SQLite: no such thing; writes wait.

    Raises:
        ModelError: `ready` mentions a lock column, or `column` is not one by which rows are
            claimed.
    """
    names = name or due_index_name(table_name, column), table_name
    parts = due_index_parts(table_name, ready=ready, column=column)
    _build(op, names, parts, schema=schema, concurrently=concurrently)


def drop_due_index(
    op: MigrationOperations,
    table_name: str,
    *,
    column: DueOrder = "last_processed_at",
    schema: str | None = None,
    name: str | None = None,
    concurrently: bool = False,
) -> None:
    """Take back `add_due_index`; the arguments are the same. PostgreSQL: ``ACCESS EXCLUSIVE``
    unless `concurrently`.
    """
    names = name or due_index_name(table_name, column), table_name
    _drop(op, names, schema=schema, concurrently=concurrently)


def add_parked_index(
    op: MigrationOperations,
    table_name: str,
    *,
    key: str = KEY,
    schema: str | None = None,
    name: str | None = None,
    concurrently: bool = False,
) -> None:
    """Add the index with which parked rows are counted and listed: `parked_at` and the key of those
    rows alone. Claims and heartbeats never write it.

    Args:
        op: Alembic's, handed in by the migration.
        table_name: the host's table, which has the columns of `ScheduleColumns`.
        key: the primary key.
        schema: where the table is.
        name: of the index, ``ix_<table>_parked_at`` by default.
        concurrently: as for `add_due_index`.
    """
    names = name or parked_index_name(table_name), table_name
    _build(op, names, parked_index_parts(key), schema=schema, concurrently=concurrently)


def drop_parked_index(
    op: MigrationOperations,
    table_name: str,
    *,
    schema: str | None = None,
    name: str | None = None,
    concurrently: bool = False,
) -> None:
    """Take back `add_parked_index`; the arguments are the same. PostgreSQL: ``ACCESS EXCLUSIVE``
    unless `concurrently`.
    """
    names = name or parked_index_name(table_name), table_name
    _drop(op, names, schema=schema, concurrently=concurrently)


def set_fillfactor(
    op: MigrationOperations,
    table_name: str,
    percent: int | None = FILLFACTOR,
    *,
    schema: str | None = None,
) -> None:
    """Leave room in each page of a PostgreSQL table, so that a heartbeat writes the row's new
    version beside the old one.

    No index is touched then (a heap-only update). Rewrites nothing: pages that are full already
    stay so until their rows move. Takes ``SHARE UPDATE EXCLUSIVE``, which lets reads and writes go
    on. Does nothing on SQLite.

    Args:
        op: Alembic's, handed in by the migration.
        table_name: the host's table.
        percent: how far a page is filled at first, as PostgreSQL takes it: 10 to 100; None takes
            the setting back.
        schema: where the table is.
    """
    quoted = op.get_context().dialect.identifier_preparer.format_table(
        table(table_name, schema=schema)
    )
    statement = _dialect(op).set_fillfactor(quoted, percent)
    if statement is not None:
        op.execute(text(statement.replace(":", r"\:")))  # a colon would begin a parameter


def _dialect(op: MigrationOperations) -> RowDialect:
    return ROWS.on(op.get_context().dialect.name)


def _build(
    op: MigrationOperations,
    names: tuple[str, str],
    parts: tuple[list[Any], dict[str, Any]],
    *,
    schema: str | None,
    concurrently: bool,
) -> None:
    columns, options = parts
    concurrent = _dialect(op).concurrently if concurrently else None
    if concurrent is None:
        op.create_index(*names, columns, schema=schema, **options)
        return
    with op.get_context().autocommit_block():
        # An interrupted build leaves an invalid index of this name, which costs every write and
        # serves no read.
        op.drop_index(*names, schema=schema, if_exists=True, **concurrent)
        op.create_index(*names, columns, schema=schema, **concurrent, **options)


def _drop(
    op: MigrationOperations, names: tuple[str, str], *, schema: str | None, concurrently: bool
) -> None:
    concurrent = _dialect(op).concurrently if concurrently else None
    if concurrent is None:
        op.drop_index(*names, schema=schema)
        return
    with op.get_context().autocommit_block():
        op.drop_index(*names, schema=schema, if_exists=True, **concurrent)
