"""The states of keys: in the memory of the shard that holds them, and in the database.

The holder of a shard is the only one who writes its states, so what it has read or written is what
the database has, or will have. If a transaction fails it does not know any more, and drops all of
it. The cache runs no SQL, and is not shared between threads: a step is computed while its shard
waits.

The database has the latest value of each, and beside it that of the last snapshot, as long as they
differ: two versions of all states need one more value in the rows that were written since, and no
copy. The first write after a snapshot moves the value that it replaces aside. Every function of the
store joins the transaction of the connection that is its first parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Table, and_, bindparam, case, delete, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.spi import ROWS, RowDialect, kept_statement
from rowlock.streams.computing.compute import NO_STATE, KeyState
from rowlock.streams.computing.hashing import BucketRange
from rowlock.streams.dialects.stream_dialect import delete_some, in_ranges, write_rows

STALE_MAX = 64
"""So many more entries than timers may stand in the heap, beside one for each, before it is made
anew.
"""


class TimerHeap:
    def __init__(self) -> None:
        self.known: dict[str, datetime] = {}
        self._heap: list[tuple[datetime, str]] = []

    def set(self, key: str, at: datetime | None) -> None:
        """Note the timer of `key`; None: it has none."""
        if at is None:
            self.known.pop(key, None)
        elif self.known.get(key) != at:
            self.known[key] = at
            heappush(self._heap, (at, key))
            if len(self._heap) > 2 * len(self.known) + STALE_MAX:
                self._heap = [(due, name) for name, due in self.known.items()]
                heapify(self._heap)

    @property
    def earliest(self) -> datetime | None:
        heap = self._heap
        while heap and self.known.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: datetime) -> list[str]:
        """Return the keys whose timer is due; they are unknown until a step sets or keeps them."""
        keys = []
        while (at := self.earliest) is not None and at <= now:
            key = heappop(self._heap)[1]
            del self.known[key]
            keys.append(key)
        return keys


class StageCache:
    def __init__(self) -> None:
        self.timers = TimerHeap()
        self.dirty: set[str] = set()  # keys whose state is newer than that in the database
        self.grown = 0  # how many more keys have a state than in the database
        self._states: dict[str, KeyState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def missing(self, keys: Iterable[str]) -> list[str]:
        known = self._states
        return [key for key in keys if key not in known]

    def read(self, keys: Iterable[str], states: Mapping[str, KeyState]) -> None:
        for key in keys:
            self._states.setdefault(key, states.get(key, NO_STATE))

    def states(self, keys: Iterable[str]) -> dict[str, KeyState]:
        """Return the states of `keys`, all of which are known."""
        known = self._states
        return {key: known[key] for key in keys}

    def change(self, states: Mapping[str, KeyState]) -> None:
        for key, state in states.items():
            # Behind all others, so that what has not been written for long is forgotten first.
            before = self._states.pop(key, NO_STATE)
            self._states[key] = state
            self.grown += (state != NO_STATE) - (before != NO_STATE)
            self.timers.set(key, state.timer_at)
        self.dirty.update(states)

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            del self._states[key]

    def shrink(self, keys_max: int) -> None:
        """Forget clean states, the least recently used first, down to `keys_max`."""
        surplus = len(self._states) - keys_max
        if surplus <= 0:
            return
        dirty = self.dirty
        clean = (key for key in self._states if key not in dirty)
        for key in [key for key, _ in zip(clean, range(surplus), strict=False)]:
            del self._states[key]


class ShardCache:
    def __init__(self, stages: Iterable[str]) -> None:
        self._stages = {name: StageCache() for name in stages}
        # All timers up to this time are known; None: all are
        self.timers_read_until: datetime | None = None

    def __iter__(self) -> Iterator[tuple[str, StageCache]]:
        return iter(self._stages.items())

    def __getitem__(self, stage: str) -> StageCache:
        return self._stages[stage]

    def shrink(self, keys_max: int) -> None:
        """Forget clean states down to `keys_max`; stages share it, unused shares go to others."""
        stages, left = sorted(self._stages.values(), key=len), keys_max
        for count, stage in zip(range(len(stages), 0, -1), stages, strict=True):
            stage.shrink(max(0, left // count))
            left -= len(stage)

    @property
    def dirty(self) -> int:
        """How many states are newer than those in the database."""
        return sum(len(stage.dirty) for stage in self._stages.values())

    @property
    def earliest_timer(self) -> datetime | None:
        """No timer is due before this; None if there is none."""
        known = [stage.timers.earliest for stage in self._stages.values()]
        known.append(self.timers_read_until)
        return min((at for at in known if at is not None), default=None)


# ---------------------------------------------------------------- store


STATES_COUNTED_MAX = 10_000
"""So many states of a shard are counted at most."""
TIMERS_READ_MAX = 10_000
"""Most timers of a shard that are read at once; the next ones are read when these are over."""

_WRITTEN = ("flow_id", "name", "key", "bucket", "version", "value", "timer_at", "snapshot_version")


class PageBounds(NamedTuple):
    keys: int
    bytes: int


class StateWrite(NamedTuple):
    name: str  # of the stage
    key: str
    bucket: int
    version: int  # the step at whose start it is the state
    state: KeyState
    # The step at whose start the last snapshot of the shard is; None if it has none
    snapshot: int | None = None


class StoredTimer(NamedTuple):
    name: str
    key: str
    at: datetime


async def read_states(
    connection: AsyncConnection, table: Table, flow_id: int, *, name: str, keys: Sequence[str]
) -> dict[str, KeyState]:
    """Return the latest states of those of `keys` that have one, or a timer."""
    dialect = ROWS.of(connection)
    states: dict[str, KeyState] = {}
    found = select(table.c.key, table.c.value, table.c.timer_at).where(
        table.c.flow_id == bindparam("flow"),
        table.c.name == bindparam("stage"),
        dialect.is_among(table.c.key, "keys"),
    )
    for begin in range(0, len(keys), dialect.rows_max):
        some = dialect.among_parameter(keys[begin : begin + dialect.rows_max])
        given = {"flow": flow_id, "stage": name, "keys": some}
        rows = await connection.execute(found, given)
        states.update((key, KeyState(value, at)) for key, value, at in rows)
    return states


class CountedStates(NamedTuple):
    """How many keys have a state or timer, `STATES_COUNTED_MAX` at most, and their last version."""

    keys: int
    newest: int


async def count_states(
    connection: AsyncConnection, table: Table, flow_id: int, *, buckets: BucketRange
) -> CountedStates:
    own = table.c
    has_state = or_(own.value.is_not(None), own.timer_at.is_not(None))
    some = select(own.version).where(
        own.flow_id == flow_id, in_ranges(own.bucket, [buckets]), has_state
    )
    found = some.limit(STATES_COUNTED_MAX).subquery().c.version
    counted = select(func.count(found), func.coalesce(func.max(found), 0))
    return CountedStates(*(await connection.execute(counted)).one())


async def read_timers(
    connection: AsyncConnection,
    table: Table,
    flow_id: int,
    *,
    buckets: BucketRange,
    after: datetime | None,
) -> list[StoredTimer]:
    """Return the earliest timers later than `after`, and all of the last one's time."""
    columns = (table.c.name, table.c.key, table.c.timer_at)
    of_flow = [
        table.c.flow_id == flow_id,
        table.c.timer_at.is_not(None),
        in_ranges(table.c.bucket, [buckets]),
    ]
    if after is not None:
        of_flow.append(table.c.timer_at > after)
    first = select(*columns).where(*of_flow).order_by(table.c.timer_at).limit(TIMERS_READ_MAX)
    timers = [StoredTimer(*row) for row in await connection.execute(first)]
    if len(timers) < TIMERS_READ_MAX:
        return timers
    last = timers[-1].at
    same = select(*columns).where(*of_flow, table.c.timer_at == last)
    equal = [StoredTimer(*row) for row in await connection.execute(same)]
    return [timer for timer in timers if timer.at < last] + equal


async def write_states(
    connection: AsyncConnection, table: Table, flow_id: int, *, states: Sequence[StateWrite]
) -> None:
    """Store states, each as the latest of its key; what belongs to a snapshot stays."""
    dialect = ROWS.of(connection)
    kept = [one for one in states if one.state != NO_STATE or one.snapshot is not None]
    if kept:
        statement = kept_statement(table, (write_states, dialect), lambda: _upsert(dialect, table))
        rows = [
            (flow_id, one.name, one.key, one.bucket, one.version, *one.state, one.snapshot)
            for one in kept
        ]
        await write_rows(connection, statement, names=_WRITTEN, rows=rows, text="value")
    dropped: dict[str, list[str]] = {}
    for one in states:
        if one.state == NO_STATE and one.snapshot is None:
            dropped.setdefault(one.name, []).append(one.key)
    for name, keys in dropped.items():
        gone = delete(table).where(
            table.c.flow_id == bindparam("flow"),
            table.c.name == bindparam("stage"),
            dialect.is_among(table.c.key, "keys"),
        )
        given = {"flow": flow_id, "stage": name, "keys": dialect.among_parameter(keys)}
        await connection.execute(gone, given)


def _upsert(dialect: RowDialect, table: Table) -> Any:
    inserted = dialect.insert(table, _WRITTEN)
    new = inserted.excluded
    return inserted.on_conflict_do_update(
        index_elements=[table.c.flow_id, table.c.name, table.c.key],
        set_={
            "bucket": new.bucket,
            "version": new.version,
            "value": new.value,
            "timer_at": new.timer_at,
            **_moved_aside(table, new),
        },
    )


def _moved_aside(table: Table, new: Any) -> dict[str, ColumnElement[Any]]:
    """Return the snapshot's columns: the replaced value, if it belongs to the snapshot."""
    own = table.c
    is_of_snapshot = and_(
        new.snapshot_version.is_not(None),
        # A row that was written since then has set it aside before.
        own.version <= new.snapshot_version,
    )
    return {
        "snapshot_version": case(
            (is_of_snapshot, new.snapshot_version), else_=own.snapshot_version
        ),
        "snapshot_value": case((is_of_snapshot, own.value), else_=own.snapshot_value),
        "snapshot_timer_at": case((is_of_snapshot, own.timer_at), else_=own.snapshot_timer_at),
    }


async def read_snapshot(
    connection: AsyncConnection,
    table: Table,
    flow_id: int,
    *,
    name: str,
    version: int,
    most: PageBounds,
    after: str | None = None,
) -> list[tuple[str, KeyState]]:
    """Return a page of keys and their states at the snapshot `version`, behind `after`."""
    own = table.c
    is_latest = own.version <= version
    is_aside = own.snapshot_version == version
    value = case((is_latest, own.value), (is_aside, own.snapshot_value), else_=None)
    timer = case((is_latest, own.timer_at), (is_aside, own.snapshot_timer_at), else_=None)
    size = ROWS.of(connection).text_bytes(value)
    upto = func.sum(size).over(order_by=own.key, rows=(None, 0))
    found = (
        select(
            own.key,
            value.label("value"),
            timer.label("timer_at"),
            size.label("size"),
            upto.label("upto"),
        )
        .where(own.flow_id == flow_id, own.name == name, value.is_not(None))
        .order_by(own.key)
        .limit(most.keys)
    )
    if after is not None:
        found = found.where(own.key > after)
    page = found.subquery().c
    within = or_(page.upto <= most.bytes, page.upto == page.size)
    rows = await connection.execute(
        select(page.key, page.value, page.timer_at).where(within).order_by(page.key)
    )
    return [(key, KeyState(text, at)) for key, text, at in rows]


async def drop_empty(
    connection: AsyncConnection, table: Table, flow_id: int, *, before: int, limit: int
) -> int:
    """Delete rows of keys without a state that no snapshot needs; return how many."""
    own = table.c
    is_empty = and_(own.value.is_(None), own.timer_at.is_(None), own.version <= before)
    return await delete_some(connection, table, limit, own.flow_id == flow_id, is_empty)
