"""The optional table of the history, and the steps of a migration that make it.

As in ``insight/migrations.py``, what a step does never changes. The table has steps of its own: a
host that has the other optional tables decides about this one by itself, since it is the one that
costs something with each outcome.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Column, Float, Index, Integer, MetaData, String, Table

from rowlock import UtcDateTime
from rowlock.insight.dialects.insight_dialect import ENTRY_NUMBER
from rowlock.insight.migrations import NAME_CHARS_MAX, PERSON_CHARS_MAX, REASON_CHARS_MAX
from rowlock.rows.migrations import MigrationOperations

HISTORY: Final = "rowlock_history"
KEY_CHARS_MAX: Final = 255
"""Longest key of a row, in characters; a longer one is cut and told apart by a digest."""
COLUMNS_CHARS_MAX: Final = 500  # longest list of names of columns, in characters
ERROR_CHARS_MAX: Final = 1024  # longest error, in characters
_INDEXES: Final = {f"ix_{HISTORY}_row": ("model", "row_id", "id"), f"ix_{HISTORY}_at": ("at",)}


def history_columns() -> list[Column[Any]]:
    return [
        Column("id", ENTRY_NUMBER, primary_key=True),
        Column("at", UtcDateTime, nullable=False),
        Column("model", String(NAME_CHARS_MAX), nullable=False),
        Column("row_id", String(KEY_CHARS_MAX), nullable=False),
        Column("pipeline", String(NAME_CHARS_MAX), nullable=False),
        Column("kind", String(16), nullable=False),
        Column("replica", String(8), nullable=True),
        Column("attempt", Integer, nullable=True),
        Column("columns", String(COLUMNS_CHARS_MAX), nullable=True),
        Column("error", String(ERROR_CHARS_MAX), nullable=True),
        Column("waited_s", Float, nullable=True),
        Column("took_s", Float, nullable=True),
        Column("trace_id", String(32), nullable=True),
        Column("actor", String(PERSON_CHARS_MAX), nullable=True),
        Column("action", String(32), nullable=True),
        Column("reason", String(REASON_CHARS_MAX), nullable=True),
        Column("dropped", Integer, nullable=True),
    ]


def history_table(metadata: MetaData) -> Table:
    columns = history_columns()
    named = {column.name: column for column in columns}
    indexes = [Index(name, *(named[one] for one in of)) for name, of in _INDEXES.items()]
    return Table(HISTORY, metadata, *columns, *indexes)


def add_history_table(op: MigrationOperations, *, schema: str | None = None) -> None:
    """Create the table, empty.

    Args:
        op: Alembic's, handed in by the migration.
        schema: where the table is to be: that of the host's metadata.
    """
    op.create_table(HISTORY, *history_columns(), schema=schema)
    for name, columns in _INDEXES.items():
        op.create_index(name, HISTORY, list(columns), schema=schema)


def drop_history_table(op: MigrationOperations, *, schema: str | None = None) -> None:
    """Take back `add_history_table`. Replicas that run go on, and say once that they cannot
    write it.
    """
    for name in reversed(_INDEXES):
        op.drop_index(name, table_name=HISTORY, schema=schema)
    op.drop_table(HISTORY, schema=schema)
