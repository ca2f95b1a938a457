"""The history: the results of a process's rows are recorded and written, in batches, behind the
commits of the outcomes; the entries, how they wait, and the statements.

The one idea: its failures harm no outcome. A listener stands in the way of an outcome, so an event
is only queued when it is emitted, which costs a microsecond, and becomes an entry later. What waits
is bounded; what is lost is counted, and the count is written in its place. The writer of each
database has a task of its own; its transactions are short and bounded, and what fails is tried
again, ever less often; the log says it once. A batch stays in hand until the database has confirmed
it, with the times that it got at the first try; so the next try can tell whether the first was
committed after all.

Of the host's columns the names are kept, never a value; what a text has that no database stores, or
that would forge a line, is shown as what it is.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Any, ClassVar, Final, NamedTuple, TypeVar
from weakref import WeakSet

from sqlalchemy import Table, delete, func, insert, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock import Pipeline, PipelineManager, events
from rowlock.clock import exponential, monotonic, sleep
from rowlock.database.faults import is_of_the_values
from rowlock.errors import describe
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
from rowlock.logs import get_logger
from rowlock.spi import (
    ROWS,
    LeasedTable,
    bind_of,
    database_instant,
    database_time_after,
    in_transaction,
    replica_mark,
)

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
    bulk = ROWS.of(connection)
    names = EntryValues._fields
    await connection.execute(bulk.insert(history, names), bulk.insert_parameters(names, entries))


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


logger = get_logger(__name__)

ACTION_TIMEOUT: Final = timedelta(seconds=2)


async def tell_action(
    session_factory: async_sessionmaker[AsyncSession],
    leased: LeasedTable,
    *,
    history: Table | None,
    act: Mapping[str, str],
) -> None:
    """Write an entry for an action that was done, if the host has a history; `act` is whose it is,
    its name, its reason, and its row or pipeline.
    """
    if history is None:
        return
    model = "" if act["pipeline"] else leased.name
    row = {
        "at": database_instant(),
        "model": model,
        "row_id": stored_key(act["row_id"]) if model else "",
        "pipeline": act["pipeline"],
        "kind": EntryKind.ACTION.value,
        "actor": shown(act["by"], PERSON_CHARS_MAX),
        "action": act["action"],
        "reason": shown(act["reason"], REASON_CHARS_MAX),
    }
    try:
        await in_transaction(
            session_factory,
            leased,
            lambda _, connection: connection.execute(insert(history).values(row)),
            purpose="write an action to the history",
            timeout=ACTION_TIMEOUT,
        )
    except Exception as error:  # noqa: BLE001
        logger.warning(
            "What %(actor)s has done is not in the history: %(error)s",
            {
                "action": act["action"],
                "actor": shown(act["by"]),
                "error": describe(error, chars_max=300),
            },
        )


T = TypeVar("T")

WRITE_EVERY_S: Final = 0.5  # the rest between two writes, in seconds
REST_S_MAX: Final = 5.0  # the longest rest behind failures, in seconds
TIMEOUT: Final = timedelta(seconds=3)
CLOCK_KEPT_S: Final = 5.0
"""For how long the times of entries are counted from one answer of the database, in seconds."""
DELETE_EVERY_S: Final = 300.0
"""How often old entries are looked for, in seconds; at once again where there were many."""
DELETE_AFTER: Final = 10_000  # they are also looked for behind so many entries
DELETIONS_MAX: Final = 10  # most transactions that delete, between two writes


class HistoryWriter:
    def __init__(
        self,
        session_factory: async_sessionmaker[AsyncSession],
        leased: LeasedTable,
        *,
        history: Table,
        models: Mapping[str, str],
    ) -> None:
        self.queue = HistoryQueue()
        self._session_factory, self._leased = session_factory, leased
        self._history, self._models = history, models
        self._lock = asyncio.Lock()
        self._known_clock: ClockReading | None = None
        self._failures = 0
        self._written = 0
        self._deletes_at_s = monotonic() + DELETE_EVERY_S

    def __repr__(self) -> str:
        return f"<HistoryWriter {len(self.queue)} wait>"

    @property
    def is_failing(self) -> bool:
        return self._failures > 0

    async def run(self) -> None:
        while True:
            await sleep(exponential(self._failures, first_s=WRITE_EVERY_S, most_s=REST_S_MAX))
            await self.write()

    async def write(self) -> bool:
        """Write what waits, and delete what is old; return whether that succeeded."""
        # Two who write at once would write the same batch.
        async with self._lock:
            try:
                await self._write_all()
            except Exception as error:  # noqa: BLE001
                self._failed(error)
                return False
            return True

    async def _write_all(self) -> None:
        while (batch := self.queue.batch()) is not None:
            await self._write_or_leave_out(batch)
            self.queue.confirm()
            self._written += len(batch.noted)
            if self._failures:
                self._failures = 0
                logger.info("The history is written again", {"replica": replica_mark()})
        if monotonic() >= self._deletes_at_s or self._written >= DELETE_AFTER:
            await self._delete()

    async def _write_or_leave_out(self, batch: HistoryBatch) -> None:
        try:
            await self._write_one(batch)
        except Exception as error:
            if not is_of_the_values(error):
                raise
            if not batch.simplify():
                # All that waits behind it would wait for ever.
                self.queue.leave_out()
                raise
            await self._write_or_leave_out(batch)

    async def _write_one(self, batch: HistoryBatch) -> None:
        clock = await self._clock()
        await self._transact(
            lambda _, connection: write_batch(
                connection, self._history, batch, models=self._models, clock=clock
            ),
            purpose="write the history",
            # Where others wait for the one that writes, nothing is asked in between.
            autocommit=batch.entries is None,
        )

    async def _clock(self) -> ClockReading:
        known = self._known_clock
        if known is None or monotonic() - known.now_s >= CLOCK_KEPT_S:
            now: Any = await self._transact(
                lambda _, connection: connection.scalar(select(database_instant())),
                purpose="ask for the time of the history",
                writes=False,
            )
            known = self._known_clock = ClockReading(now, monotonic())
        return known

    async def _delete(self) -> None:
        self._written = 0
        for _ in range(DELETIONS_MAX):
            deleted = await self._transact(
                lambda _, connection: delete_old(connection, self._history),
                purpose="delete old entries of the history",
            )
            if deleted < DELETED_AT_ONCE_MAX:
                self._deletes_at_s = monotonic() + DELETE_EVERY_S
                return
        self._deletes_at_s = monotonic()

    async def _transact(
        self,
        work: Callable[[AsyncSession, AsyncConnection], Awaitable[T]],
        *,
        purpose: str,
        **how: bool,
    ) -> T:
        return await in_transaction(
            self._session_factory, self._leased, work, purpose=purpose, timeout=TIMEOUT, **how
        )

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self._known_clock = None
        if self._failures > 1:
            return
        logger.warning(
            "The history cannot be written (told once; no row is harmed, and what does not find"
            " room meanwhile is counted): %(error)s",
            {"replica": replica_mark(), "error": describe(error, chars_max=300)},
        )

    def tell_lost(self) -> None:
        if count := len(self.queue):
            text = "%(entries)s entries of the history were not written before the end"
            logger.warning(text, {"replica": replica_mark(), "entries": count})
            self.queue.drop(count)


class HistoryRecorder:
    _last_started_in: ClassVar[int | None] = None  # the process

    def __init__(self, managers: Sequence[PipelineManager], history: Table) -> None:
        self._managers, self._history = managers, history
        self._writers: dict[object, HistoryWriter] = {}
        self._by_pipeline: dict[str, HistoryWriter | None] = {}
        self._models: dict[str, str] = {}
        self._dropped = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._unsubscribe: Callable[[], None] | None = None
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"<HistoryRecorder {len(self._writers)} databases>"

    @property
    def dropped(self) -> int:
        return self._dropped + sum(writer.queue.dropped for writer in self._writers.values())

    @property
    def waiting(self) -> int:
        return sum(len(writer.queue) for writer in self._writers.values())

    @property
    def is_failing(self) -> bool:
        return any(writer.is_failing for writer in self._writers.values())

    def report(self) -> dict[str, Any]:
        if not (self.is_failing or self.dropped):
            return {}
        told = {"failing": self.is_failing, "waiting": self.waiting, "dropped": self.dropped}
        return {"history": told}

    def start(self) -> None:
        TRACE_IDS.add_reader(self)
        # The tasks of writers from before have ended, perhaps with their loop.
        self._dropped = self.dropped
        self._forget_writers()
        self._process = HistoryRecorder._last_started_in = os.getpid()
        for manager in self._managers:
            for pipeline in manager.pipelines:
                self._writer_for(manager, pipeline)
        self._unsubscribe = events.subscribe(self._hear, *WRITTEN_EVENTS)

    def _forget_writers(self) -> None:
        self._tasks = []
        self._writers.clear()
        self._by_pipeline.clear()

    def _leave_to_parent(self, event: events.ClaimEvent) -> None:
        # The tasks that write are in the parent alone: what is heard here would wait for ever.
        self._unsubscribe_now()
        self._forget_writers()
        if HistoryRecorder._last_started_in == os.getpid():
            return
        logger.warning(
            "This process was forked from one that has an Observer, which does not run here:"
            " what becomes of rows of %(pipeline)s here is not in the history, and no window"
            " sees this replica; enter an Observer in this process (told once)",
            {"pipeline": event.pipeline},
        )

    def _unsubscribe_now(self) -> None:
        TRACE_IDS.remove_reader(self)
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    async def stop(self) -> None:
        """Unsubscribe, and write what waits, in a few seconds at most."""
        self._unsubscribe_now()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(TIMEOUT.total_seconds()):
                    await self.write()
        finally:
            for writer in self._writers.values():
                writer.tell_lost()

    async def write(self) -> None:
        await asyncio.gather(*(writer.write() for writer in self._writers.values()))

    def _hear(self, event: events.Event) -> None:
        if not isinstance(event, events.ClaimEvent):
            return
        if self._process != os.getpid():
            self._leave_to_parent(event)
            return
        name = event.pipeline
        if name not in self._by_pipeline:
            self._by_pipeline[name] = self._writer_of(name)
        writer = self._by_pipeline[name]
        if writer is None:
            return
        trace_of = TRACE_IDS.forget if type(event) in ENDING_EVENTS else TRACE_IDS.get
        writer.queue.put(NotedEvent(monotonic(), event, trace_of(event.lock_token)))

    def _writer_of(self, name: str) -> HistoryWriter | None:
        """Return the writer for a pipeline; None if it is another app's, or two have its name."""
        writers = {
            (writer := self._writer_for(manager, pipeline), pipeline.leased.name): writer
            for manager in self._managers
            for pipeline in manager.pipelines
            if pipeline.name == name
        }
        if len(writers) > 1:
            logger.warning(
                "There is no history of %(pipeline)s: two managers have a pipeline of this"
                " name, for different rows; rename one",
                {"pipeline": name},
            )
            return None
        for (_, model), writer in writers.items():
            self._models[name] = model
            return writer
        return None

    def _writer_for(self, manager: PipelineManager, pipeline: Pipeline[Any]) -> HistoryWriter:
        sessions, leased = manager.session_factory, pipeline.leased
        engine = bind_of(sessions(), leased).engine
        writer = self._writers.get(engine)
        if writer is None:
            writer = HistoryWriter(sessions, leased, history=self._history, models=self._models)
            self._writers[engine] = writer
            self._tasks.append(asyncio.create_task(writer.run(), name="rowlock: history"))
        return writer
