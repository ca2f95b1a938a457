"""Hears what becomes of the rows of a process, and has it written to the history of each database.

The one idea: a listener stands in the way of an outcome, so it only notes. What is noted waits in a
queue, one for each database, whose writer has a task of its own.

Not here: what an entry says (``entries.py``).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import WeakSet

from sqlalchemy import Table

from rowlock import events
from rowlock.clock import monotonic
from rowlock.containment import contained_task
from rowlock.database.binds import bind_of
from rowlock.insight.history.entries import ENDING_EVENTS, WRITTEN_EVENTS, NotedEvent
from rowlock.insight.history.trace_ids import TRACE_IDS
from rowlock.insight.history.writer import TIMEOUT, HistoryWriter
from rowlock.logs import get_logger
from rowlock.pipelines.manager import PipelineManager
from rowlock.pipelines.pipeline import Pipeline

logger = get_logger(__name__)


class HistoryRecorder:
    """The history of the managers of a process.

    Args:
        managers: whose rows are told of.
        history: the table, which is in the database of each of them.
    """

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
        """How many entries were dropped, since there was no room for them."""
        return self._dropped + sum(writer.queue.dropped for writer in self._writers.values())

    @property
    def waiting(self) -> int:
        """How many entries wait to be written."""
        return sum(len(writer.queue) for writer in self._writers.values())

    @property
    def is_failing(self) -> bool:
        """Whether a database did not take the last ones."""
        return any(writer.is_failing for writer in self._writers.values())

    def report(self) -> dict[str, Any]:
        """Return what a replica says of it: nothing while all is well."""
        if not (self.is_failing or self.dropped):
            return {}
        told = {"failing": self.is_failing, "waiting": self.waiting, "dropped": self.dropped}
        return {"history": told}

    def start(self) -> None:
        """Hear events from now on; once more, too."""
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
        """Be the copy in a child that was forked: the tasks that write are in the parent alone, so
        what is heard here would wait for ever.
        """
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
            "This process was forked from one that has an Observer, which does not run here: what"
            " becomes of rows of %s here is not in the history, and no window sees this replica;"
            " enter an Observer in this process (told once)",
            event.pipeline,
            extra={"pipeline": event.pipeline},
        )

    async def stop(self) -> None:
        """Hear nothing more, and write what waits, in a few seconds at most."""
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
        """Write what waits, without waiting for the time of it."""
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
        """Return who writes of a pipeline; None if it is none of ours, or not to be told apart."""
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
                "There is no history of %s: two managers have a pipeline of this name, for"
                " different rows; rename one",
                name,
                extra={"pipeline": name},
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
            task = contained_task(writer.run(), name="rowlock: history")
            self._tasks.append(task)
        return writer


_RECORDERS: Final[WeakSet[HistoryRecorder]] = WeakSet()


def _fork_all() -> None:
    for recorder in tuple(_RECORDERS):
        recorder.fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fork_all)
