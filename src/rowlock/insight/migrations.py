"""Steps for the host's own migrations: the optional tables of the windows, up and down.

As in ``rowlock.migrations``, what a step does never changes, and the host's Alembic runs it. The
tables of the host's metadata are made of the same columns (``tables.py``); a later table or column
will come as a later step. The history has steps of its own: a host that has the other tables
decides about this one by itself, since it is the one that costs something with each outcome.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import JSON, Boolean, Column, Float, Index, Integer, MetaData, String, Table, false

from rowlock import UtcDateTime
from rowlock.insight.insight_dialect import ENTRY_NUMBER
from rowlock.migrations import MigrationOperations

REPLICAS: Final = "rowlock_replicas"
CONTROLS: Final = "rowlock_controls"
NAME_CHARS_MAX: Final = 255  # longest name of a pipeline, a replica or a host, in characters
PERSON_CHARS_MAX: Final = 100  # longest name of a person, in characters
REASON_CHARS_MAX: Final = 200  # longest reason of an action, in characters


def replicas_columns() -> list[Column[Any]]:
    """Return new columns of the table in which replicas write every few seconds that they live."""
    return [
        Column("mark", String(8), primary_key=True),
        Column("name", String(NAME_CHARS_MAX), nullable=False),
        Column("host", String(NAME_CHARS_MAX), nullable=False),
        Column("pid", Integer, nullable=False),
        Column("version", String(64), nullable=False),
        Column("started_at", UtcDateTime, nullable=False),
        Column("seen_at", UtcDateTime, nullable=False),
        Column("draining", Boolean, nullable=False, server_default=false()),
        Column("report", JSON, nullable=False),
    ]


def controls_columns() -> list[Column[Any]]:
    return [
        Column("pipeline", String(NAME_CHARS_MAX), primary_key=True),
        Column("paused_at", UtcDateTime, nullable=False),
        Column("paused_by", String(PERSON_CHARS_MAX), nullable=False),
        Column("reason", String(REASON_CHARS_MAX), nullable=False),
        Column("until", UtcDateTime, nullable=True),
    ]


def add_insight_tables(
    op: MigrationOperations,
    *,
    replicas: bool = True,
    controls: bool = True,
    schema: str | None = None,
) -> None:
    """Create the tables, empty.

    Args:
        op: Alembic's, handed in by the migration.
        replicas: whether the one in which replicas say that they live.
        controls: whether that of the pauses.
        schema: where the tables are to be: that of the host's metadata.
    """
    if replicas:
        op.create_table(REPLICAS, *replicas_columns(), schema=schema)
    if controls:
        op.create_table(CONTROLS, *controls_columns(), schema=schema)


def drop_insight_tables(
    op: MigrationOperations,
    *,
    replicas: bool = True,
    controls: bool = True,
    schema: str | None = None,
) -> None:
    """Take back `add_insight_tables`; the arguments are the same.

    Stop the replicas first whose manager has the gate of the pauses: without the table each of
    their claims fails.
    """
    for name, is_there in ((CONTROLS, controls), (REPLICAS, replicas)):
        if is_there:
            op.drop_table(name, schema=schema)


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
