"""The wing's own tables, in the metadata of the host: two that are leased, and what shards write.

The one idea: whatever a flow knows is a row that stands in the host's database, beside the host's
own rows: so one transaction of the host's database moves all of it. Keys of the leased tables
follow from names, so that replicas which create a flow at the same time create the same rows.

Not here: the tables of the host that are streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, Protocol, cast
from uuid import UUID

from sqlalchemy import Connection, MetaData, Table, event
from sqlalchemy.orm import (
    DeclarativeMeta,
    MappedAsDataclass,
    registry,
)
from sqlalchemy.orm.decl_api import DeclarativeAttributeIntercept

from rowlock.errors import ConfigurationError
from rowlock.spi import ROWS, mapper_of, single_table
from rowlock.streams.migrations import (
    FILLFACTORS,
    FLOWS,
    OPTIONS,
    SHARDS,
    stream_columns,
    stream_indexes,
)

_PLAIN: Final = (
    *("steps", "parts", "state", "outputs", "cursors", "exchange", "replicas", "log", "appends"),
)
KEY_BITS: Final = 63
"""Keys are positive and fit into eight bytes."""


class FlowRow(Protocol):
    """A row of the flows, as a coordinator holds it."""

    id: int  # follows from the name (`key_of`)
    name: str
    # Of its sources, stages, states and outputs: replicas with another one are refused
    fingerprint: str
    declaration: str | None  # what the fingerprint is of, in words; null: it is not known
    code_version: str  # of the replica that wrote it last
    state: str  # ``running``, ``paused`` or ``stopped``
    next_step: int  # the first step that is not cut
    upto: dict[str, int]  # by source, the last position of the last step
    now: datetime | None  # of the last step; null as long as there is none
    checkpoint_requested: bool
    shards_wanted: int | None  # how many shards there are to be; null: as many as there are
    kept_snapshot: int | None  # the step at whose start the last snapshot is; null: there was none
    kept_until: datetime | None  # it is kept for its readers no longer than this; null: it has none
    kept_by: int  # how many readers it has
    snapshots_requested: int  # how many readers wait for the next one
    frontier: int  # every shard has completed all steps below it, as the coordinator knows
    stalled: str | None  # why the frontier does not advance; null: it does
    # By source, the position behind which it began; null: it is not known
    begins_after: dict[str, int] | None
    # How the events of a step, `differs_at`, differ from those that it was done with; null: those
    # of the last steps that were verified do not
    differs: str | None
    differs_at: int | None


class ShardRow(Protocol):
    """A row of the shards: the computation over the buckets from `lo` to below `hi`."""

    id: int  # follows from the flow and `lo` (`key_of`)
    flow_id: int
    lo: int
    hi: int
    step: int  # what it does next: results of all earlier steps are written
    version: int  # the step at whose start its state in the database is; never above `step`
    snapshot: int | None  # the step of the older version that is kept; null: none
    replica: UUID | None  # which process has it, or had it last
    failures: int  # failed attempts at `failed_step`
    failed_step: int | None
    state_keys: int | None  # so many keys have a state, at least; null: that is not known
    state_keys_at: int | None  # the version that they were counted at


@dataclass(frozen=True, eq=False)
class StreamTables:
    flow_model: type[FlowRow]
    shard_model: type[ShardRow]
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
                **{name: _table(f"rowlock_stream_{name}", metadata) for name in _PLAIN},
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
    parts = (*stream_columns(name), *stream_indexes(name))
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
