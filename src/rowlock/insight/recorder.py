"""Hears what becomes of the rows of a process, and has it written to the history of each database:
in batches, behind the commits of the outcomes; and what a person does, behind the commit of that.

The one idea: whatever becomes of it, no outcome and no action is harmed. A listener stands in the
way of an outcome, so it only notes. What is noted waits in a queue, one for each database, whose
writer has a task of its own; its transactions are short and bounded, and what fails is tried again,
ever less often; the log says it once.

Not here: what an entry says (``history.py``).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar
from weakref import WeakSet

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock import Pipeline, PipelineManager, events
from rowlock.clock import exponential, monotonic, sleep
from rowlock.database.faults import is_of_the_values
from rowlock.errors import describe
from rowlock.insight.history import (
    DELETED_AT_ONCE_MAX,
    ENDING_EVENTS,
    TRACE_IDS,
    WRITTEN_EVENTS,
    ClockReading,
    HistoryBatch,
    HistoryQueue,
    NotedEvent,
    delete_old,
    read_clock,
    write_action,
    write_batch,
)
from rowlock.insight.shown import shown
from rowlock.insight.steering import Act
from rowlock.insight.tables import InsightTables
from rowlock.logs import get_logger
from rowlock.spi import LeasedTable, bind_of, in_transaction, replica_mark

logger = get_logger(__name__)

ACTION_TIMEOUT: Final = timedelta(seconds=2)


async def tell_action(
    session_factory: async_sessionmaker[AsyncSession],
    leased: LeasedTable,
    *,
    tables: InsightTables | None,
    act: Act,
) -> None:
    """Write an entry for an action that was done, if the host has a history."""
    history = None if tables is None else tables.history
    if history is None:
        return
    model = "" if act.pipeline else leased.name
    try:
        await in_transaction(
            session_factory,
            leased,
            lambda _, connection: write_action(connection, history, act, model=model),
            purpose="write an action to the history",
            timeout=ACTION_TIMEOUT,
        )
    except Exception as error:  # noqa: BLE001
        logger.warning(
            "What %(actor)s has done is not in the history: %(error)s",
            {"action": act.action, "actor": shown(act.by), "error": describe(error, chars_max=300)},
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
            await sleep(
                WRITE_EVERY_S
                if not self._failures
                else exponential(self._failures, first_s=WRITE_EVERY_S, most_s=REST_S_MAX)
            )
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
            known = self._known_clock = await self._transact(
                lambda _, connection: read_clock(connection),
                purpose="ask for the time of the history",
                writes=False,
            )
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
        """Log how many entries are lost at the end."""
        if count := len(self.queue):
            text = "%(entries)s entries of the history were not written before the end"
            logger.warning(text, {"replica": replica_mark(), "entries": count})
            self.queue.drop(count)


class HistoryRecorder:
    def __init__(self, managers: Sequence[PipelineManager], history: Table) -> None:
        self._managers, self._history = managers, history
        self._writers: dict[object, HistoryWriter] = {}
        self._by_pipeline: dict[str, HistoryWriter | None] = {}
        self._models: dict[str, str] = {}
        self._dropped = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._unsubscribe: Callable[[], None] | None = None
        self._end_of_telling: Callable[[], None] | None = None
        _RECORDERS.add(self)

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
        """Return what a replica reports of its history: nothing while all is well."""
        if not (self.is_failing or self.dropped):
            return {}
        told = {"failing": self.is_failing, "waiting": self.waiting, "dropped": self.dropped}
        return {"history": told}

    def start(self) -> None:
        TRACE_IDS.add_reader(self)
        # The tasks of writers from before have ended, perhaps with their loop.
        self._dropped = self.dropped
        self._writers.clear()
        self._by_pipeline.clear()
        for other in tuple(_RECORDERS):
            other.forget_parent()
        for manager in self._managers:
            for pipeline in manager.pipelines:
                self._writer_for(manager, pipeline)
        self._unsubscribe = events.subscribe(self._hear, *WRITTEN_EVENTS)

    def fork(self) -> None:
        # In the child: the tasks that write are in the parent alone, so what is heard here would
        # wait for ever.
        if self._unsubscribe is None:
            return
        self._unsubscribe()
        self._tasks = []
        self._writers.clear()
        self._by_pipeline.clear()
        TRACE_IDS.remove_reader(self)
        self._end_of_telling = events.subscribe(self._tell_fork)
        self._unsubscribe = None

    def forget_parent(self) -> None:
        """Say nothing of the fork: the child has an Observer of its own, or was told."""
        if self._end_of_telling is not None:
            self._end_of_telling()
            self._end_of_telling = None

    def _tell_fork(self, event: events.Event) -> None:
        names = {one.name for manager in self._managers for one in manager.pipelines}
        if type(event) not in WRITTEN_EVENTS or event.pipeline not in names:
            return
        self.forget_parent()
        logger.warning(
            "This process was forked from one that has an Observer, which does not run here:"
            " what becomes of rows of %(pipeline)s here is not in the history, and no window"
            " sees this replica; enter an Observer in this process (told once)",
            {"pipeline": event.pipeline},
        )

    async def stop(self) -> None:
        """Unsubscribe, and write what waits, in a few seconds at most."""
        TRACE_IDS.remove_reader(self)
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        try:
            async with asyncio.timeout(TIMEOUT.total_seconds()):
                await self.write()
        except TimeoutError:
            pass
        finally:
            for writer in self._writers.values():
                writer.tell_lost()

    async def write(self) -> None:
        await asyncio.gather(*(writer.write() for writer in self._writers.values()))

    def _hear(self, event: events.Event) -> None:
        if not isinstance(event, events.ClaimEvent):
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
        found = [
            (manager, pipeline)
            for manager in self._managers
            for pipeline in manager.pipelines
            if pipeline.name == name
        ]
        writers = {
            (writer := self._writer_for(manager, pipeline), pipeline.leased.name): writer
            for manager, pipeline in found
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
            task = asyncio.create_task(writer.run(), name="rowlock: history")
            self._tasks.append(task)
        return writer


_RECORDERS: Final[WeakSet[HistoryRecorder]] = WeakSet()


def _fork_all() -> None:
    for recorder in tuple(_RECORDERS):
        recorder.fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fork_all)
