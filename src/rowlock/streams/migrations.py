"""Steps for the host's own migrations: the wing's tables, up and down.

The host's Alembic runs them. The tables of the models are made of the same columns (``tables.py``).
A later column comes as a step of its own, too, which passes over what a newer `add_stream_tables`
has made: a history of migrations leads to the same tables, whichever version runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Identity,
    Index,
    Integer,
    String,
    Text,
    Uuid,
    column,
    false,
    inspect,
    table,
    text,
)

from rowlock import UtcDateTime, database_now
from rowlock.rows.migrations import (
    FILLFACTOR,
    MigrationOperations,
    lock_columns,
    schedule_columns,
    set_fillfactor,
)
from rowlock.spi import partial_index_options
from rowlock.streams.dialects.stream_dialect import KEEPS_COUNTING, POSITION, STREAMS, StreamDialect

FLOWS: Final = "rowlock_stream_flows"
SHARDS: Final = "rowlock_stream_shards"
STEPS: Final = "rowlock_stream_steps"
PARTS: Final = "rowlock_stream_parts"
STATE: Final = "rowlock_stream_state"
OUTPUTS: Final = "rowlock_stream_outputs"
CURSORS: Final = "rowlock_stream_cursors"
EXCHANGE: Final = "rowlock_stream_exchange"
REPLICAS: Final = "rowlock_stream_replicas"
LOG: Final = "rowlock_stream_log"
APPENDS: Final = "rowlock_stream_appends"
NAME_CHARS_MAX: Final = 255
"""Longest name of a flow, a log, an output, a consumer or a producer, and longest key, in
characters.
"""
FILLFACTORS: Final = {FLOWS: FILLFACTOR, SHARDS: FILLFACTOR, STATE: 50}
"""Share of a page that PostgreSQL fills at first, in percent, by table: steps write new versions of
these rows, and with room beside them no index is written.
"""


def _shards_checks() -> list[Column[Any]]:
    return [Column("state_keys", BigInteger), Column("state_keys_at", BigInteger)]


def _flows_checks() -> list[Column[Any]]:
    return [
        Column("begins_after", JSON),
        Column("differs", Text),
        Column("differs_at", BigInteger),
    ]


_TABLES: Final[dict[str, Callable[[], list[Column[Any]]]]] = {
    FLOWS: lambda: [
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        Column("name", String(NAME_CHARS_MAX), nullable=False, unique=True),
        Column("fingerprint", String(64), nullable=False),
        Column("declaration", Text),
        Column("code_version", String(NAME_CHARS_MAX), nullable=False, server_default=text("''")),
        Column("state", String(16), nullable=False, server_default="running"),
        Column("next_step", BigInteger, nullable=False, server_default="0"),
        Column("upto", JSON, nullable=False),
        Column("now", UtcDateTime),
        Column("checkpoint_requested", Boolean, nullable=False, server_default=false()),
        Column("shards_wanted", Integer),
        Column("kept_snapshot", BigInteger),
        Column("kept_until", UtcDateTime),
        Column("kept_by", Integer, nullable=False, server_default="0"),
        Column("snapshots_requested", Integer, nullable=False, server_default="0"),
        Column("frontier", BigInteger, nullable=False, server_default="0"),
        Column("stalled", Text),
        *_flows_checks(),
        *lock_columns(),
        *schedule_columns(),
    ],
    SHARDS: lambda: [
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        Column("flow_id", BigInteger, nullable=False),
        Column("lo", Integer, nullable=False),
        Column("hi", Integer, nullable=False),
        Column("step", BigInteger, nullable=False, server_default="0"),
        Column("version", BigInteger, nullable=False, server_default="0"),
        Column("snapshot", BigInteger),
        Column("replica", Uuid),
        Column("failures", Integer, nullable=False, server_default="0"),
        Column("failed_step", BigInteger),
        *_shards_checks(),
        *lock_columns(),
        *schedule_columns(),
    ],
    STEPS: lambda: [
        Column("flow_id", BigInteger, primary_key=True, autoincrement=False),
        Column("step", BigInteger, primary_key=True, autoincrement=False),
        Column("upto", JSON, nullable=False),
        Column("now", UtcDateTime, nullable=False),
        Column("checkpoint", Boolean, nullable=False),
        Column("snapshot", Boolean, nullable=False),
        Column("bytes", BigInteger, nullable=False, server_default="0"),
    ],
    PARTS: lambda: [
        Column("flow_id", BigInteger, primary_key=True, autoincrement=False),
        Column("step", BigInteger, primary_key=True, autoincrement=False),
        Column("lo", Integer, primary_key=True, autoincrement=False),
        Column("hi", Integer, nullable=False),
        Column("rows", Integer, nullable=False),
        Column("input_digest", String(64), nullable=False),
        Column("outputs", Integer, nullable=False),
        Column("output_digest", String(64), nullable=False),
        Column("seconds", Float, nullable=False),
    ],
    STATE: lambda: [
        Column("flow_id", BigInteger, primary_key=True, autoincrement=False),
        Column("name", String(NAME_CHARS_MAX), primary_key=True),
        Column("key", String(NAME_CHARS_MAX), primary_key=True),
        Column("bucket", Integer, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("value", Text),
        Column("timer_at", UtcDateTime),
        Column("snapshot_version", BigInteger),
        Column("snapshot_value", Text),
        Column("snapshot_timer_at", UtcDateTime),
    ],
    OUTPUTS: lambda: [
        Column("flow_id", BigInteger, primary_key=True, autoincrement=False),
        Column("output", String(NAME_CHARS_MAX), primary_key=True),
        Column("step", BigInteger, primary_key=True, autoincrement=False),
        Column("lo", Integer, primary_key=True, autoincrement=False),
        Column("seq", Integer, primary_key=True, autoincrement=False),
        Column("bucket", Integer, nullable=False),
        Column("key", String(NAME_CHARS_MAX)),
        Column("payload", Text, nullable=False),
    ],
    CURSORS: lambda: [
        Column("flow_id", BigInteger, primary_key=True, autoincrement=False),
        Column("output", String(NAME_CHARS_MAX), primary_key=True),
        Column("consumer", String(NAME_CHARS_MAX), primary_key=True),
        Column("step", BigInteger, nullable=False),
        Column("at", UtcDateTime, nullable=False),
    ],
    EXCHANGE: lambda: [
        Column("flow_id", BigInteger, primary_key=True, autoincrement=False),
        Column("step", BigInteger, primary_key=True, autoincrement=False),
        Column("stage", String(NAME_CHARS_MAX), primary_key=True),
        Column("lo", Integer, primary_key=True, autoincrement=False),
        Column("to_lo", Integer, primary_key=True, autoincrement=False),
        Column("hi", Integer, nullable=False),
        Column("to_hi", Integer, nullable=False),
        Column("payload", Text, nullable=False),
    ],
    REPLICAS: lambda: [
        Column("flow_id", BigInteger, primary_key=True, autoincrement=False),
        Column("id", Uuid, primary_key=True),
        Column("name", String(NAME_CHARS_MAX), nullable=False),
        Column("code_version", String(NAME_CHARS_MAX), nullable=False),
        Column("shards", Integer, nullable=False),
        Column("started_at", UtcDateTime, nullable=False),
        Column("seen_at", UtcDateTime, nullable=False),
        Column("busy_lo", Integer),
        Column("busy_stage", String(NAME_CHARS_MAX)),
        Column("busy_key", String(NAME_CHARS_MAX)),
        Column("busy_since", UtcDateTime),
    ],
    LOG: lambda: [
        # A serial on PostgreSQL: a comparison of models with SQLite, where nothing is an
        # identity, would find a difference for ever.
        Column("position", POSITION, primary_key=True),
        Column("stream", String(NAME_CHARS_MAX), nullable=False),
        Column("bucket", Integer, nullable=False),
        Column("key", String(NAME_CHARS_MAX), nullable=False),
        Column("payload", Text, nullable=False),
        Column("at", UtcDateTime, nullable=False, server_default=database_now()),
    ],
    APPENDS: lambda: [
        Column("stream", String(NAME_CHARS_MAX), primary_key=True),
        Column("producer", String(NAME_CHARS_MAX), primary_key=True),
        Column("seq", BigInteger, primary_key=True, autoincrement=False),
        Column("rows", Integer, nullable=False),
        Column("digest", String(64), nullable=False),
        Column("first", BigInteger, nullable=False),
        Column("last", BigInteger, nullable=False),
        Column("at", UtcDateTime, nullable=False, server_default=database_now()),
    ],
}
_CHECKS: Final = {SHARDS: _shards_checks, FLOWS: _flows_checks}
OPTIONS: Final[dict[str, dict[str, Any]]] = {LOG: KEEPS_COUNTING}
"""Of tables when they are created."""


def stream_columns(table_name: str) -> list[Column[Any]]:
    return _TABLES[table_name]()


def stream_indexes(table_name: str) -> list[Index]:
    match table_name:
        case "rowlock_stream_shards":
            return [Index(f"ux_{SHARDS}_flow_id_lo", "flow_id", "lo", unique=True)]
        case "rowlock_stream_state":
            has_timer = partial_index_options(column("timer_at").is_not(None))
            return [Index(f"ix_{STATE}_timer_at", "flow_id", "timer_at", **has_timer)]
        case "rowlock_stream_log":
            return [Index(f"ix_{LOG}_stream_position", "stream", "position")]
        case "rowlock_stream_appends":
            return [Index(f"ix_{APPENDS}_stream_at", "stream", "at")]
        case _:
            return []


def add_stream_tables(op: MigrationOperations, *, schema: str | None = None) -> None:
    """Create the tables of the wing, empty.

    Args:
        op: Alembic's, handed in by the migration.
        schema: where the tables are to be: that of the host's metadata.
    """
    for name in _TABLES:
        op.create_table(name, *stream_columns(name), schema=schema, **OPTIONS.get(name, {}))
        for index in stream_indexes(name):
            options = {key: index.dialect_kwargs[key] for key in index.dialect_kwargs}
            columns: list[Any] = [str(part) for part in index.expressions]
            op.create_index(
                index.name, name, columns, unique=index.unique, schema=schema, **options
            )
    for name, percent in FILLFACTORS.items():
        set_fillfactor(op, name, percent, schema=schema)


def drop_stream_tables(op: MigrationOperations, *, schema: str | None = None) -> None:
    """Drop the tables of the wing with all that is in them. Stop the flows first: what they have
    computed is in the results and states that go with these tables, and in the host's own.
    """
    for name in reversed(_TABLES):
        for index in stream_indexes(name):
            op.drop_index(index.name, name, schema=schema)
        op.drop_table(name, schema=schema)


def add_stream_checks(op: MigrationOperations, *, schema: str | None = None) -> None:
    """Add to tables that an earlier version has made what flows are checked by: how many keys of a
    shard have a state, where a flow began, and which step has other events than it was done with.
    Shards count their keys when they are opened next; nothing is rewritten, and replicas of that
    version go on. Columns that are there are passed over.

    Args:
        op: Alembic's, handed in by the migration.
        schema: where the tables are.
    """
    connection = op.get_context().connection
    for name, columns in _CHECKS.items():
        seen = [] if connection is None else inspect(connection).get_columns(name, schema=schema)
        there = {one["name"] for one in seen}
        with op.batch_alter_table(name, schema=schema, recreate="never") as table:
            for added in (each for each in columns() if each.name not in there):
                table.add_column(added)


def drop_stream_checks(op: MigrationOperations, *, schema: str | None = None) -> None:
    """Take back `add_stream_checks`. End the replicas that need it first."""
    for name, columns in _CHECKS.items():
        with op.batch_alter_table(name, schema=schema, recreate="never") as table:
            for added in columns():
                table.drop_column(added.name)


def event_columns() -> list[Column[Any]]:
    """Return the columns of `EventColumns`, for a table that is created:
    ``op.create_table("payments", *event_columns(), ..., sqlite_autoincrement=True)``.
    """
    return [
        Column("position", POSITION, Identity(always=True), primary_key=True),
        Column("bucket", Integer),
    ]


def add_event_columns(
    op: MigrationOperations, table_name: str, *, schema: str | None = None
) -> None:
    """Add the bucket of `EventColumns` to a table that has a position of its own, such as a key
    that the database assigns: ``TableSource(..., bucket=Payment.bucket)``.

    Rows that are there have none: each replica reads them, and the owner of their key works on
    them. Nothing is rewritten.

    Args:
        op: Alembic's, handed in by the migration.
        table_name: of the host's table.
        schema: where the table is.
    """
    with op.batch_alter_table(table_name, schema=schema, recreate="never") as table:
        table.add_column(Column("bucket", Integer))


def drop_event_columns(
    op: MigrationOperations, table_name: str, *, schema: str | None = None
) -> None:
    """Drop the bucket again. Stop the flows that read the table first."""
    with op.batch_alter_table(table_name, schema=schema, recreate="never") as table:
        table.drop_column("bucket")


def add_event_guard(
    op: MigrationOperations,
    table_name: str,
    columns: Sequence[str],
    *,
    deletes: bool = True,
    schema: str | None = None,
) -> None:
    """Have the database refuse changes of events by all writers: a trigger of the table.

    Args:
        op: Alembic's, handed in by the migration.
        table_name: of the host's table.
        columns: that never change: all that flows read.
        deletes: refuse deletions, too; False where rows are deleted that all flows have done.
        schema: where the table is.
    """
    dialect, quoted = _quoted(op, table_name, schema)
    names = [op.get_context().dialect.identifier_preparer.quote(one) for one in columns]
    for each in dialect.event_guard(quoted, names, name=_guard(table_name), deletes=deletes):
        op.execute(text(each.replace(":", r"\:")))


def drop_event_guard(
    op: MigrationOperations, table_name: str, *, schema: str | None = None
) -> None:
    """Take back `add_event_guard`."""
    dialect, quoted = _quoted(op, table_name, schema)
    for each in dialect.no_event_guard(quoted, name=_guard(table_name)):
        op.execute(text(each.replace(":", r"\:")))


def _guard(table_name: str) -> str:
    return f"rowlock_events_{sha256(table_name.encode()).hexdigest()[:12]}"


def _quoted(
    op: MigrationOperations, table_name: str, schema: str | None
) -> tuple[StreamDialect, str]:
    dialect = op.get_context().dialect
    quoted = dialect.identifier_preparer.format_table(table(table_name, schema=schema))
    return STREAMS.on(dialect.name), quoted
