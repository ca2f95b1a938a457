"""Steps for the host's own migrations: the optional tables of the windows, up and down.

As in ``rows/migrations.py``, what a step does never changes, and the host's Alembic runs it. The
tables of the host's metadata are made of the same columns (``tables.py``); a later table or column
will come as a later step.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import JSON, Boolean, Column, Integer, String, false

from rowlock import UtcDateTime
from rowlock.rows.migrations import MigrationOperations

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
