"""Steps for the host's own migrations: adopt a table, index it, and undo both; and what Alembic's
autogenerate needs to write them.

The host's migration hands in Alembic's ``op``, which runs the steps in its order and transaction.
What a step does to columns never changes: a migration that was written once must do the same in
three years. An index is what the claims of this version want.

Locks, on PostgreSQL: adding and dropping columns takes ``ACCESS EXCLUSIVE`` for a moment and
rewrites nothing (``now()`` is stable, so even ``due_at`` is a change of the catalogue alone). The
moment begins when older transactions let go of the table, and whoever comes later queues behind it:
run ``SET LOCAL lock_timeout = '3s'`` first, and try again. SQLite (3.35 or newer) rewrites the rows
where a column is dropped.

Source: PostgreSQL, "ALTER TABLE", "CREATE INDEX" and "Heap-Only Tuples"; Alembic, "Running batch
migrations".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from sqlalchemy import Column, ColumnElement, table, text

from rowlock import LockColumns, ScheduleColumns, due_index, parked_index
from rowlock.spi import (
    KEY,
    PARKED,
    ROWS,
    DueIndex,
    DueOrder,
    ParkedIndex,
    columns_of,
    due_at_once,
    index_name,
)

__all__ = [
    "FILLFACTOR",
    "add_due_index",
    "add_lock_columns",
    "add_parked_index",
    "add_schedule_columns",
    "autogenerate_options",
    "drop_due_index",
    "drop_lock_columns",
    "drop_parked_index",
    "drop_schedule_columns",
    "due_at_once",
    "due_index",
    "lock_columns",
    "parked_index",
    "schedule_columns",
    "set_fillfactor",
]

FILLFACTOR = 70
"""Advised share of a page that PostgreSQL fills at first, in percent; the rest is for updates."""

MigrationOperations: TypeAlias = Any
"""Alembic's ``op``, or an ``Operations`` object: Alembic is the host's dependency and not ours."""


def lock_columns() -> list[Column[Any]]:
    """Return new columns as `LockColumns` has them."""
    return columns_of(LockColumns)


def schedule_columns() -> list[Column[Any]]:
    """Return new columns as `ScheduleColumns` has them."""
    return columns_of(ScheduleColumns)


def add_columns(
    op: MigrationOperations, table_name: str, new: Iterable[Column[Any]], *, schema: str | None
) -> None:
    """Add columns to a table."""
    for column in new:
        op.add_column(table_name, column, schema=schema)


def drop_columns(
    op: MigrationOperations, table_name: str, old: list[Column[Any]], *, schema: str | None
) -> None:
    """Drop columns of a table, the last one first."""
    for column in reversed(old):
        op.drop_column(table_name, column.name, schema=schema)


def add_lock_columns(
    op: MigrationOperations, table_name: str, *, schema: str | None = None
) -> None:
    """Add the columns of `LockColumns`. Rows that are there have never been processed, and nobody
    holds them.
    """
    add_columns(op, table_name, lock_columns(), schema=schema)


def drop_lock_columns(
    op: MigrationOperations, table_name: str, *, schema: str | None = None
) -> None:
    """Take back `add_lock_columns`. Stop the pipelines and drop the index first."""
    drop_columns(op, table_name, lock_columns(), schema=schema)


def add_schedule_columns(
    op: MigrationOperations, table_name: str, *, schema: str | None = None
) -> None:
    """Add the columns of `ScheduleColumns`. Rows that are there are due now."""
    add_columns(op, table_name, schedule_columns(), schema=schema)


def drop_schedule_columns(
    op: MigrationOperations, table_name: str, *, schema: str | None = None
) -> None:
    """Take back `add_schedule_columns`."""
    drop_columns(op, table_name, schedule_columns(), schema=schema)


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
    ready, in the order of claims; without parked rows, if they are claimed by ``due_at``.

    So a claim costs the same however many settled rows there are. One for each pipeline, if several
    share the table.

    Args:
        op: Alembic's.
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
    names = name or index_name(table_name, column), table_name
    _build(op, names, DueIndex(ready, column), schema=schema, concurrently=concurrently)


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
    names = name or index_name(table_name, column), table_name
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

    The arguments are those of `add_due_index`; the index is named ``ix_<table>_parked_at`` by
    default, and `key` is the primary key.
    """
    names = name or index_name(table_name, PARKED), table_name
    _build(op, names, ParkedIndex(key), schema=schema, concurrently=concurrently)


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
    names = name or index_name(table_name, PARKED), table_name
    _drop(op, names, schema=schema, concurrently=concurrently)


def _build(
    op: MigrationOperations,
    names: tuple[str, str],
    made_of: DueIndex | ParkedIndex,
    *,
    schema: str | None,
    concurrently: bool,
) -> None:
    columns, options = made_of.parts(names[1])
    concurrent = _rows(op).concurrently if concurrently else None
    if concurrent is None:
        op.create_index(*names, columns, schema=schema, **options)
        return
    # An interrupted build leaves an invalid index of this name, which costs every write and serves
    # no read.
    _drop(op, names, schema=schema, concurrently=True)
    with op.get_context().autocommit_block():
        op.create_index(*names, columns, schema=schema, **concurrent, **options)


def _drop(
    op: MigrationOperations, names: tuple[str, str], *, schema: str | None, concurrently: bool
) -> None:
    concurrent = _rows(op).concurrently if concurrently else None
    if concurrent is None:
        op.drop_index(*names, schema=schema)
        return
    with op.get_context().autocommit_block():
        op.drop_index(*names, schema=schema, if_exists=True, **concurrent)


def set_fillfactor(
    op: MigrationOperations,
    table_name: str,
    percent: int | None = FILLFACTOR,
    *,
    schema: str | None = None,
) -> None:
    """Leave room in each page of a PostgreSQL table, so that a heartbeat writes the row's new
    version beside the old one, and touches no index (a heap-only update).

    Pages that are full already stay so until their rows move. Takes ``SHARE UPDATE EXCLUSIVE``,
    which lets reads and writes go on. Does nothing on SQLite.

    `percent` is how far a page is filled at first, 10 to 100; None takes the setting back.
    """
    preparer = op.get_context().dialect.identifier_preparer
    quoted = preparer.format_table(table(table_name, schema=schema))
    statement = _rows(op).set_fillfactor(quoted, percent)
    if statement is not None:
        op.execute(text(statement.replace(":", r"\:")))  # a colon would begin a parameter


def _rows(op: MigrationOperations) -> Any:
    return ROWS.on(op.get_context().dialect.name)


def autogenerate_options(
    *, render_item: Any = None, process_revision_directives: Any = None
) -> dict[str, Any]:
    """Return options for ``context.configure`` in ``env.py``, with which ``alembic revision
    --autogenerate`` writes migrations that run as they are:
    ``context.configure(..., **autogenerate_options())``.

    - The types and defaults of the columns are rendered with what the migration imports.
    - The index of `due_index` is built by `add_due_index`, on both databases. In a table that is
      there, it is built ``CONCURRENTLY``, in a migration of its own, which comes last.
    - Pages of a new or newly adopted table get room for heartbeats, by `set_fillfactor`.

    Functions of the host's own go in: `render_item` is asked first, and
    `process_revision_directives` called last, with what is to be written.
    """
    from rowlock.migrations.autogenerate import directives_hook, item_renderer  # noqa: PLC0415 - Alembic is the host's

    return {
        "render_item": item_renderer(render_item),
        "process_revision_directives": directives_hook(process_revision_directives),
    }
