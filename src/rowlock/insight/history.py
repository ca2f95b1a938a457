"""The entries of the history: what is written of an event, how they wait to be written, and the
statements, which join the caller's transaction.

The one idea: an event is only queued when it is emitted, and becomes an entry later, so that it
costs the outcome a microsecond. What waits is bounded; what is lost is counted, and the count is
written in its place. A batch stays in hand until the database has confirmed it, with the times that
it got at the first try; so the next try can tell whether the first was committed after all.

Of the host's columns the names are kept, never a value; what a text has that no database stores, or
that would forge a line, is shown as what it is.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from sqlalchemy import Table, delete, func, insert, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import events
from rowlock.clock import monotonic
from rowlock.insight.insight_dialect import INSIGHT
from rowlock.insight.migrations import (
    COLUMNS_CHARS_MAX,
    ERROR_CHARS_MAX,
    KEY_CHARS_MAX,
    NAME_CHARS_MAX,
    PERSON_CHARS_MAX,
    REASON_CHARS_MAX,
)
from rowlock.insight.shown import shown
from rowlock.insight.steering import Act
from rowlock.spi import BULK, database_instant, database_time_after, replica_mark

# ---------------------------------------------------------------- spans of attempts


REMEMBERED_MAX: Final = 20_000
"""Most attempts whose span is remembered; the one that began first is forgotten."""


class TraceIds:
    def __init__(self) -> None:
        # A process may have several histories, and one of them may end before the others.
        self._readers: WeakSet[object] = WeakSet()
        self._by_token: OrderedDict[object, str] = OrderedDict()

    @property
    def is_wanted(self) -> bool:
        return bool(self._readers)

    def add_reader(self, reader: object) -> None:
        """Remember spans for `reader` from now on; the same one may call again."""
        self._readers.add(reader)

    def remove_reader(self, reader: object) -> None:
        self._readers.discard(reader)
        if not self.is_wanted:
            self._by_token.clear()

    def remember(self, lock_token: object, trace_id: str) -> None:
        if not self.is_wanted:
            return
        self._by_token[lock_token] = trace_id
        if len(self._by_token) > REMEMBERED_MAX:
            self._by_token.popitem(last=False)

    def get(self, lock_token: object) -> str | None:
        return self._by_token.get(lock_token)

    def forget(self, lock_token: object) -> str | None:
        """Return the trace of an attempt that ends."""
        return self._by_token.pop(lock_token, None) if self._by_token else None


TRACE_IDS: Final = TraceIds()


# ---------------------------------------------------------------- entries


DIGEST_CHARS: Final = 16
NAMES_MAX: Final = 1_000  # most names, and lists of columns, whose text is kept for the next entry
NUMBER_MAX: Final = 2**31 - 1  # largest number of an attempt, and of entries that are missing


class EntryKind(StrEnum):
    APPLIED = "applied"
    RETRIED = "retried"
    RESET = "reset"
    PARKED = "parked"
    STALE = "stale"
    CHANGED = "changed"
    RELEASED = "released"
    LOST = "lost"
    ABANDONED = "abandoned"
    RECOVERED = "recovered"
    ACTION = "action"
    GAP = "gap"


class NotedEvent(NamedTuple):
    """An event that is to be written; `at_s` is a time of the monotonic clock, in seconds."""

    at_s: float
    event: events.ClaimEvent
    trace_id: str | None


class EntryValues(NamedTuple):
    """The columns that a replica writes."""

    at: datetime
    model: str
    row_id: str
    pipeline: str
    kind: str
    replica: str
    attempt: int | None = None
    columns: str | None = None
    error: str | None = None
    waited_s: float | None = None
    took_s: float | None = None
    trace_id: str | None = None
    dropped: int | None = None


_BY_OUTCOME: Final = {
    "Apply": EntryKind.APPLIED,
    "Delete": EntryKind.APPLIED,
    "Retry": EntryKind.RETRIED,
    "Reset": EntryKind.RESET,
    "Park": EntryKind.PARKED,
}
_BY_EVENT: Final[Mapping[type[events.Event], EntryKind]] = {
    events.ItemReleased: EntryKind.RELEASED,
    events.LeaseExpired: EntryKind.LOST,
    events.ItemAbandoned: EntryKind.ABANDONED,
    events.ItemRecovered: EntryKind.RECOVERED,
}
WRITTEN_EVENTS: Final = frozenset({*_BY_EVENT, events.ItemApplied, events.ItemStale})
ENDING_EVENTS: Final = frozenset({events.ItemReleased, events.ItemApplied, events.ItemStale})
"""The last events of a claim."""


def kind_of(event: events.ClaimEvent) -> EntryKind:
    match event:
        case events.ItemApplied():
            return _BY_OUTCOME[event.outcome]
        case events.ItemStale():
            return EntryKind.CHANGED if event.reason == "changed" else EntryKind.STALE
        case _:
            return _BY_EVENT[type(event)]


def entry_of(
    noted: NotedEvent, model: str, *, replica: str, now: datetime, now_s: float
) -> EntryValues:
    """Return the entry of an event; `now` is the database's time at `now_s`."""
    at_s, event, trace_id = noted
    columns, error, process_s = tuple[str, ...](), None, None
    if isinstance(event, events.ItemApplied):
        columns, error, process_s = event.columns, event.error, event.process_s
    elif isinstance(event, events.ItemStale):
        error, process_s = event.reason, event.process_s
    return EntryValues(
        now + timedelta(seconds=at_s - now_s),
        _name(model),
        stored_key(event.row_id),
        _name(event.pipeline),
        kind_of(event).value,
        replica,
        None if event.attempt is None else min(event.attempt, NUMBER_MAX),
        _joined(columns) if columns else None,
        None if error is None else shown(error, ERROR_CHARS_MAX),
        event.waited_s,
        process_s,
        trace_id,
    )


def simplified(entry: EntryValues) -> EntryValues:
    """Return an entry for a database that cannot keep its texts: what is not ASCII is escaped, as
    its encoding may not have it, or count it as several characters.
    """
    limits = {"row_id": KEY_CHARS_MAX, "columns": COLUMNS_CHARS_MAX, "error": ERROR_CHARS_MAX}
    texts: dict[str, Any] = {
        name: text.encode("ascii", "backslashreplace").decode("ascii")[:most]
        for name, most in limits.items()
        if (text := getattr(entry, name)) is not None
    }
    return entry._replace(**texts)


def stored_key(key: object) -> str:
    """Return the text of a key as it stands in entries; a digest tells those apart that are cut."""
    text = str(key)
    visible = shown(text, KEY_CHARS_MAX)
    if visible == text:
        return text
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS]
    return shown(text, KEY_CHARS_MAX - DIGEST_CHARS - 1) + "#" + digest


@lru_cache(NAMES_MAX)
def _name(name: str) -> str:
    return shown(name, NAME_CHARS_MAX)


@lru_cache(NAMES_MAX)
def _joined(columns: tuple[str, ...]) -> str:
    return shown(", ".join(columns), COLUMNS_CHARS_MAX)


# ---------------------------------------------------------------- queue


QUEUED_MAX: Final = 10_000
"""Most events that wait; the oldest one is dropped for the next one, and counted."""
BATCH_MAX: Final = 500


@dataclass(slots=True)
class HistoryBatch:
    """Events that are written together, behind `dropped` missing ones; `entries` once tried."""

    noted: Sequence[NotedEvent]
    dropped: int
    entries: list[EntryValues] | None = None
    is_simple: bool = False

    def stamp(
        self, models: Mapping[str, str], *, replica: str, now: datetime, now_s: float
    ) -> list[EntryValues]:
        """Return the entries, made once; `models` are the classes of each pipeline's rows."""
        if self.entries is None:
            self.entries = [
                entry_of(one, models[one.event.pipeline], replica=replica, now=now, now_s=now_s)
                for one in self.noted
            ]
            if self.dropped:
                # It belongs to no row.
                at, gap = self.entries[0].at if self.entries else now, EntryKind.GAP.value
                missing = min(self.dropped, NUMBER_MAX)
                self.entries.insert(0, EntryValues(at, "", "", "", gap, replica, dropped=missing))
        return self.entries

    def simplify(self) -> bool:
        """Escape what is not ASCII; return whether that may help: it does not twice."""
        if self.is_simple or self.entries is None:
            return False
        self.entries, self.is_simple = [simplified(one) for one in self.entries], True
        return True


@dataclass(slots=True)
class HistoryQueue:
    """Events that wait for one database; `dropped` counts since the start."""

    dropped: int = 0
    _noted: deque[NotedEvent] = field(default_factory=deque)
    _untold: int = 0
    _batch: HistoryBatch | None = None

    def put(self, noted: NotedEvent) -> None:
        """Add an event; if there is no room, the oldest one is dropped."""
        if len(self._noted) >= QUEUED_MAX:
            self._noted.popleft()
            self.drop(1)
        self._noted.append(noted)

    def drop(self, count: int) -> None:
        self.dropped += count
        self._untold += count

    def batch(self) -> HistoryBatch | None:
        """Return the next events to write; the same again until `confirm`."""
        if self._batch is None and (self._noted or self._untold):
            count = min(BATCH_MAX, len(self._noted))
            self._batch = HistoryBatch([self._noted.popleft() for _ in range(count)], self._untold)
            self._untold = 0
        return self._batch

    def confirm(self) -> None:
        self._batch = None

    def leave_out(self) -> None:
        if self._batch is not None:
            self.drop(len(self._batch.noted))
            self._untold += self._batch.dropped
            self._batch = None

    def __len__(self) -> int:
        return len(self._noted) + (0 if self._batch is None else len(self._batch.noted))


# ---------------------------------------------------------------- statements


KEPT_FOR: Final = timedelta(days=7)
KEPT_MAX: Final = 1_000_000  # most entries that are kept, by their numbers
DELETED_AT_ONCE_MAX: Final = 1_000  # most entries that are deleted in one transaction


class ClockReading(NamedTuple):
    now: datetime
    now_s: float


async def read_clock(connection: AsyncConnection) -> ClockReading:
    now: datetime = (await connection.execute(select(database_instant()))).scalar_one()
    return ClockReading(now, monotonic())


async def write_batch(
    connection: AsyncConnection,
    history: Table,
    batch: HistoryBatch,
    *,
    models: Mapping[str, str],
    clock: ClockReading,
) -> None:
    """Write a batch in one statement, unless one whose COMMIT was not answered has done so."""
    was_tried = batch.entries is not None
    entries = batch.stamp(models, replica=replica_mark(), now=clock.now, now_s=clock.now_s)
    if was_tried:
        told = ("model", "row_id", "at", "kind", "replica")
        same = [history.c[name] == getattr(entries[0], name) for name in told]
        if (await connection.execute(select(literal(1)).where(*same).limit(1))).first():
            return
    bulk = BULK.of(connection)
    names = EntryValues._fields
    await connection.execute(bulk.insert(history, names), bulk.insert_parameters(names, entries))


async def write_action(
    connection: AsyncConnection, history: Table, act: Act, *, model: str
) -> None:
    """Write the action of a person on a row of `model`, or on a pipeline."""
    row = {
        "at": database_instant(),
        "model": model,
        "row_id": stored_key(act.row_id) if model else "",
        "pipeline": act.pipeline,
        "kind": EntryKind.ACTION.value,
        "actor": shown(act.by, PERSON_CHARS_MAX),
        "action": act.action,
        "reason": shown(act.reason, REASON_CHARS_MAX),
    }
    await connection.execute(insert(history).values(row))


async def delete_old(connection: AsyncConnection, history: Table) -> int:
    """Delete the oldest entries, and return how many: 0 also if another replica is doing so."""
    if not await INSIGHT.of(connection).try_hold_name(connection, history.name):
        return 0
    number, at, deleted = history.c.id, history.c.at, 0
    surplus = number <= select(func.max(number) - KEPT_MAX).scalar_subquery()
    # Each in the order of the index that finds it.
    for order, is_old in ((number, surplus), (at, at < database_time_after(-KEPT_FOR))):
        chosen = select(number).where(is_old).order_by(order).limit(DELETED_AT_ONCE_MAX - deleted)
        result = await connection.execute(delete(history).where(number.in_(chosen)))
        deleted += result.rowcount
    return deleted
