"""The wing's own tables: in the metadata of the host, two that are leased, and what shards write;
and the steps of the host's own migrations that make them, up and down.

The one idea: whatever a flow knows is a row that stands in the host's database, beside the host's
own rows: so one transaction of the host's database moves all of it. Keys of the leased tables
follow from names, so that replicas which create a flow at the same time create the same rows.

The host's Alembic runs the steps. A later column comes as a step of its own, too, which passes over
what a newer `add_stream_tables` has made: a history of migrations leads to the same tables,
whichever version runs it.

Not here: the tables of the host that are streams.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from hashlib import sha256
from typing import Any, Final, Protocol, TypeVar, cast

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Identity,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    Uuid,
    column,
    event,
    false,
    inspect,
    table,
    text,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeMeta, MappedAsDataclass, registry
from sqlalchemy.orm.decl_api import DeclarativeAttributeIntercept

from rowlock import UtcDateTime, database_now
from rowlock.errors import ConfigurationError
from rowlock.migrations import (
    FILLFACTOR,
    MigrationOperations,
    lock_columns,
    schedule_columns,
    set_fillfactor,
)
from rowlock.spi import (
    ROWS,
    LeasedTable,
    bind_of,
    in_transaction,
    mapper_of,
    partial_index_options,
    single_table,
)
from rowlock.streams.dialects.stream_dialect import KEEPS_COUNTING, POSITION, STREAMS, StreamDialect

T = TypeVar("T")

FLOWS: Final = "rowlock_stream_flows"
SHARDS: Final = "rowlock_stream_shards"
STATE: Final = "rowlock_stream_state"
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
    return [
        Column("state_keys", BigInteger),  # so many keys have a state, at least; null: not known
        Column("state_keys_at", BigInteger),  # the version that they were counted at
    ]


def _flows_checks() -> list[Column[Any]]:
    return [
        # By source, the position behind which it began; null: it is not known
        Column("begins_after", JSON),
        # How the events of a step, `differs_at`, differ from those that it was done with; null:
        # those of the last steps that were verified do not
        Column("differs", Text),
        Column("differs_at", BigInteger),
    ]


_TABLES: Final[dict[str, Callable[[], list[Column[Any]]]]] = {
    FLOWS: lambda: [
        # Follows from the name (`key_of`)
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        Column("name", String(NAME_CHARS_MAX), nullable=False, unique=True),
        # Of its sources, stages, states and outputs: replicas with another one are refused
        Column("fingerprint", String(64), nullable=False),
        Column("declaration", Text),  # what that is of, in words; null: it is not known
        # Of the replica that wrote it last
        Column("code_version", String(NAME_CHARS_MAX), nullable=False, server_default=text("''")),
        # ``running``, ``paused`` or ``stopped``
        Column("state", String(16), nullable=False, server_default="running"),
        # The first step that is not cut
        Column("next_step", BigInteger, nullable=False, server_default="0"),
        Column("upto", JSON, nullable=False),  # by source, the last position of the last step
        Column("now", UtcDateTime),  # of the last step; null as long as there is none
        Column("checkpoint_requested", Boolean, nullable=False, server_default=false()),
        Column("shards_wanted", Integer),  # null: as many as there are
        # The step at whose start the last snapshot is; null: there was none
        Column("kept_snapshot", BigInteger),
        # It is kept for its readers, so many, no longer than this; null: it has none
        Column("kept_until", UtcDateTime),
        Column("kept_by", Integer, nullable=False, server_default="0"),
        # How many readers wait for the next one
        Column("snapshots_requested", Integer, nullable=False, server_default="0"),
        # Every shard has completed all steps below it, as the coordinator knows
        Column("frontier", BigInteger, nullable=False, server_default="0"),
        Column("stalled", Text),  # why the frontier does not advance; null: it does
        *_flows_checks(),
        *lock_columns(),
        *schedule_columns(),
    ],
    SHARDS: lambda: [
        # Follows from the flow and `lo` (`key_of`)
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        Column("flow_id", BigInteger, nullable=False),
        # It computes the buckets from `lo` to below `hi`
        Column("lo", Integer, nullable=False),
        Column("hi", Integer, nullable=False),
        # What it does next: results of all earlier steps are written
        Column("step", BigInteger, nullable=False, server_default="0"),
        # The step at whose start its state in the database is; never above `step`
        Column("version", BigInteger, nullable=False, server_default="0"),
        Column("snapshot", BigInteger),  # the step of the older version that is kept; null: none
        Column("replica", Uuid),  # which process has it, or had it last
        # Failed attempts at `failed_step`
        Column("failures", Integer, nullable=False, server_default="0"),
        Column("failed_step", BigInteger),
        *_shards_checks(),
        *lock_columns(),
        *schedule_columns(),
    ],
    "rowlock_stream_steps": lambda: [
        Column("flow_id", BigInteger, primary_key=True, autoincrement=False),
        Column("step", BigInteger, primary_key=True, autoincrement=False),
        Column("upto", JSON, nullable=False),
        Column("now", UtcDateTime, nullable=False),
        Column("checkpoint", Boolean, nullable=False),
        Column("snapshot", Boolean, nullable=False),
        Column("bytes", BigInteger, nullable=False, server_default="0"),
    ],
    "rowlock_stream_parts": lambda: [
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
    "rowlock_stream_outputs": lambda: [
        Column("flow_id", BigInteger, primary_key=True, autoincrement=False),
        Column("output", String(NAME_CHARS_MAX), primary_key=True),
        Column("step", BigInteger, primary_key=True, autoincrement=False),
        Column("lo", Integer, primary_key=True, autoincrement=False),
        Column("seq", Integer, primary_key=True, autoincrement=False),
        Column("bucket", Integer, nullable=False),
        Column("key", String(NAME_CHARS_MAX)),
        Column("payload", Text, nullable=False),
    ],
    "rowlock_stream_cursors": lambda: [
        Column("flow_id", BigInteger, primary_key=True, autoincrement=False),
        Column("output", String(NAME_CHARS_MAX), primary_key=True),
        Column("consumer", String(NAME_CHARS_MAX), primary_key=True),
        Column("step", BigInteger, nullable=False),
        Column("at", UtcDateTime, nullable=False),
    ],
    "rowlock_stream_exchange": lambda: [
        Column("flow_id", BigInteger, primary_key=True, autoincrement=False),
        Column("step", BigInteger, primary_key=True, autoincrement=False),
        Column("stage", String(NAME_CHARS_MAX), primary_key=True),
        Column("lo", Integer, primary_key=True, autoincrement=False),
        Column("to_lo", Integer, primary_key=True, autoincrement=False),
        Column("hi", Integer, nullable=False),
        Column("to_hi", Integer, nullable=False),
        Column("payload", Text, nullable=False),
    ],
    "rowlock_stream_replicas": lambda: [
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
    for name, columns_of in _TABLES.items():
        op.create_table(name, *columns_of(), schema=schema, **OPTIONS.get(name, {}))
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


# ---------------------------------------------------------------- in the metadata of the host


LOOK_TIMEOUT: Final = timedelta(seconds=5)
"""How long a look at the wing's tables may take, where no other time is given."""
KEY_BITS: Final = 63
"""Keys are positive and fit into eight bytes."""


class Transact(Protocol):
    """Runs work in one transaction of its own: `PipelineContext.transact`."""

    async def __call__(
        self,
        work: Callable[[AsyncSession, AsyncConnection], Awaitable[T]],
        *,
        purpose: str,
        writes: bool = True,
        autocommit: bool = False,
    ) -> T: ...


class StreamDatabase:
    """Runs work on a connection, each time in a transaction of its own."""

    def __init__(self, transact: Transact) -> None:
        self.transact = transact

    async def read(
        self,
        purpose: str,
        work: Callable[[AsyncConnection], Awaitable[T]],
        *,
        autocommit: bool = False,
    ) -> T:
        return await self.transact(
            lambda _session, connection: work(connection),
            purpose=purpose,
            writes=False,
            autocommit=autocommit,
        )

    async def write(self, purpose: str, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        return await self.transact(lambda _session, connection: work(connection), purpose=purpose)


@dataclass(frozen=True, eq=False)
class StreamTables:
    flow_model: type[Any]  # a row of each flow, held by its coordinator
    shard_model: type[Any]  # a row of each shard, held by a replica
    steps: Table  # each cut
    parts: Table  # what each shard did in each step
    state: Table  # what handlers keep for each key: the latest value, and that of the snapshot
    outputs: Table  # results, by step
    cursors: Table  # how far consumers of results are
    exchange: Table  # messages between stages
    replicas: Table  # processes that work on a flow
    log: Table  # events of logs
    appends: Table  # what producers have added to logs

    @property
    def flows(self) -> Table:
        return single_table(mapper_of(self.flow_model))

    @property
    def shards(self) -> Table:
        return single_table(mapper_of(self.shard_model))

    @cached_property
    def _leased(self) -> LeasedTable:
        return LeasedTable.of(self.flow_model)

    async def connection(self, session: AsyncSession) -> AsyncConnection:
        """Return the connection of a host's session to the database of these tables."""
        return await session.connection({"bind": bind_of(session, self._leased)})

    def opened_by(
        self, sessions: async_sessionmaker[AsyncSession], *, timeout: timedelta = LOOK_TIMEOUT
    ) -> StreamDatabase:
        """Return the database of these tables, with transactions of a host's sessions."""
        transact: Any = partial(in_transaction, sessions, self._leased, timeout=timeout)
        return StreamDatabase(transact)

    @classmethod
    def of(cls, base: type[Any]) -> StreamTables:
        """Return the tables in the metadata of a declarative base; the first call makes them."""
        metadata = getattr(base, "metadata", None)
        if not isinstance(metadata, MetaData):
            raise ConfigurationError(f"streams need a declarative base, not {base!r:.100}")
        known = metadata.info.get(cls)
        if known is None:
            known = metadata.info[cls] = cls(
                flow_model=_mapped("StreamFlowRow", base, _table(FLOWS, metadata)),
                shard_model=_mapped("StreamShardRow", base, _table(SHARDS, metadata)),
                **{
                    name.removeprefix("rowlock_stream_"): _table(name, metadata)
                    for name in _TABLES
                    if name not in (FLOWS, SHARDS)
                },
            )
        return cast("StreamTables", known)


def key_of(*names: object) -> int:
    """Return the key of a row of a leased table: it follows from what the row is about."""
    digest = sha256("\0".join(map(str, names)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - KEY_BITS)


def _mapped(name: str, base: type[Any], table: Table) -> Any:
    is_plain = type(base) in (DeclarativeMeta, DeclarativeAttributeIntercept)
    if not is_plain or issubclass(base, MappedAsDataclass):
        # Such a base makes more of its subclasses than mapped classes, and not of any table.
        model = type(name, (), {"__module__": __name__})
        registry(metadata=table.metadata).map_imperatively(model, table)
        return model
    # A subclass, so that sessions whose engines are bound to the base find theirs.
    return type(name, (base,), {"__table__": table, "__module__": __name__})


def _table(name: str, metadata: MetaData) -> Table:
    parts = (*_TABLES[name](), *stream_indexes(name))
    table = Table(name, metadata, *parts, **OPTIONS.get(name, {}))
    if name in FILLFACTORS:
        event.listen(
            table, "after_create", lambda table, connection, **_: _leave_room(connection, table)
        )
    return table


def _leave_room(connection: Connection, table: Table) -> None:
    """Do what the step of a migration does, where the host creates its tables without one."""
    quoted = connection.dialect.identifier_preparer.format_table(table)
    rows = ROWS.on(connection.dialect.name)
    statement = rows.set_fillfactor(quoted, FILLFACTORS[table.name])
    if statement is not None:
        connection.exec_driver_sql(statement)
