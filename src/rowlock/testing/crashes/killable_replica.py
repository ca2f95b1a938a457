"""A replica within this process that can be killed: from one moment on none of its tasks goes on,
and its connections are cut.

The one idea: a dead process runs no ``finally``. So nothing is cancelled or closed; its tasks stay
where they are until others have finished what it left behind, and only then they are reaped: woken
up to be cancelled, when nothing is compared any more.

What its memory held dies with it: the tasks, the locks of this process on SQLite, the connections.
What a thread was doing is done.

Not here: what is compared (``crash_everywhere``).
"""

from __future__ import annotations

import asyncio
import inspect
import linecache
import logging
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock

from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.util import await_only

import rowlock
from rowlock import Pipeline
from rowlock.clock import sleep
from rowlock.locks.locker import InMemoryLocker
from rowlock.testing.crashes.failpoints import Boundary, Failpoints
from rowlock.testing.crashes.suspensions import Watched, frames_of, observed, seen_by

__all__ = ["KillableReplica", "without_logs"]

REAP_S_MAX: Final = 10.0
"""Longest wait for the cancelled tasks of a dead replica. **Unit** seconds."""
SERVER_S_MAX: Final = 10.0
"""Longest wait until a server notices that a connection was cut. **Unit** seconds."""
LOOKS_EVERY_S: Final = 0.005
PLACES_SHOWN_MAX: Final = 3

_NOT_THE_HOST: Final = tuple(
    str(Path(place))
    for place in (
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        Path(rowlock.__file__).parent,
    )
)
_LOCKERS: Final = "rowlock.locks.locker.LOCKERS._loaded"


@dataclass(eq=False)
class KillableReplica:
    """A replica from its start to its death, or to its end.

    Attributes:
        at: at which moment it dies, from 0; never if None.
        counts: which sides of its statements are moments; None: the awaits of `process` are.
        passed: how many moments there were.
        moment: the one at which it died, in words, or None.
    """

    at: int | None = None
    counts: Callable[[Boundary], bool] | None = None
    passed: int = 0
    moment: str | None = None
    died: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    _reaped: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future(), repr=False
    )
    _process_is_over: bool = False
    _connections: list[Any] = field(default_factory=list, repr=False)
    _checked_out: dict[Any, Any] = field(default_factory=dict, repr=False)

    def suspended(self, coroutine: Coroutine[Any, Any, Any]) -> None: ...

    def holds(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Future[None] | None:
        return self._reaped if self.moment is not None else None

    def reach(self, moment: Callable[[], str]) -> bool:
        """Pass a moment; return whether the replica is dead. May be called from a thread."""
        number, self.passed = self.passed, self.passed + 1
        if number == self.at and self.moment is None:
            self.moment = moment()
            self.died.get_loop().call_soon_threadsafe(self._tell)
        return self.moment is not None

    def take_over(self, pipeline: Pipeline[Any]) -> None:
        """Make each await of `pipeline.process` a moment of this replica."""
        process = pipeline.process

        async def in_loop(awaitable: Any) -> Any:
            outcome = await self._watch(awaitable)
            await self._wait_if_dead(self.reach(lambda: _RETURNED))
            self._process_is_over = True
            return outcome

        async def coroutine_process(item: Any) -> Any:
            self._process_is_over = False
            await self._wait_if_dead(self.reach(lambda: _CLAIMED))
            return await in_loop(process(item))

        def plain_process(item: Any) -> Any:
            self._process_is_over = False
            if self.reach(lambda: _CLAIMED):
                return None
            outcome = process(item)
            if inspect.isawaitable(outcome):
                return in_loop(outcome)
            self._process_is_over = not self.reach(lambda: _RETURNED)
            return outcome

        chosen = coroutine_process if inspect.iscoroutinefunction(process) else plain_process
        pipeline.process = chosen  # type: ignore[method-assign]

    @asynccontextmanager
    async def sessions_of(
        self, engine: AsyncEngine
    ) -> AsyncIterator[async_sessionmaker[AsyncSession]]:
        """Provide the sessions of the replica, which owns the tasks that start in the block."""

        def record_connection(connection: Any, _record: object) -> None:
            self._connections.append(connection.driver_connection)

        def record_checkout(_connection: object, record: Any, fairy: Any) -> None:
            self._checked_out[record] = fairy

        def record_checkin(_connection: object, record: Any) -> None:
            self._checked_out.pop(record, None)

        def refuse_the_dead(*_: object) -> None:
            if self.moment is not None:
                raise ConnectionRefusedError("this replica is dead")

        event.listen(engine.sync_engine, "connect", record_connection)
        event.listen(engine.sync_engine, "checkout", record_checkout)
        event.listen(engine.sync_engine, "checkin", record_checkin)
        event.listen(engine.sync_engine, "do_connect", refuse_the_dead)
        lockers = mock.patch.dict(_LOCKERS, sqlite=InMemoryLocker())
        with lockers, self._failpoints(engine), observed(self):
            yield async_sessionmaker(engine, expire_on_commit=False)

    async def cut_connections(self, survivors: AsyncEngine) -> None:
        """Cut all connections of the dead, and wait until the server has noticed."""
        pids = []
        for connection in self._connections:
            with suppress(Exception):  # closed before
                if hasattr(connection, "terminate"):
                    pids.append(connection.get_server_pid())
                    connection.terminate()
                else:
                    await connection.rollback()
                    await connection.close()
        if pids:
            still_there = text(
                "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(:pids)"
            ).bindparams(pids=pids)
            async with asyncio.timeout(SERVER_S_MAX), survivors.connect() as look:
                while await look.scalar(still_there):
                    await look.rollback()  # or it would be shown the same again
                    await sleep(LOOKS_EVERY_S)

    async def reap(self, tasks: set[asyncio.Task[Any]]) -> None:
        """Cancel `tasks`, and those that they start while they end."""
        before = asyncio.all_tasks() - tasks
        with without_logs():
            if not self._reaped.done():
                self._reaped.set_result(None)
            async with asyncio.timeout(REAP_S_MAX):
                while tasks := asyncio.all_tasks() - before:
                    for task in tasks:
                        task.cancel()
                    done, _ = await asyncio.wait(tasks, timeout=LOOKS_EVERY_S)
                    for task in done:
                        _ = task.cancelled() or task.exception()
            for fairy in list(self._checked_out.values()):
                # Its connection was cut, and its task did not return it.
                with suppress(Exception):
                    fairy.detach()
            self._checked_out.clear()

    def _failpoints(self, engine: AsyncEngine) -> Failpoints:
        if self.counts is None:
            return Failpoints(engine, note=self._record_commit)
        # To be dead behind a statement is to be dead before the next.
        return Failpoints(engine, note=self._record_statement, distinct=True)

    def _record_statement(self, boundary: Boundary) -> None:
        if self.moment is None and self.counts is not None and self.counts(boundary):
            self.reach(lambda: f"killed {boundary.place}")
        # In a connection's own greenlet, so its task stays right here: nothing more is sent.
        if self.moment is not None and not self._reaped.done():
            await_only(self._wait_if_dead(is_dead=True))

    def _record_commit(self, boundary: Boundary) -> None:
        if self._process_is_over and boundary.is_lost_answer:
            self._process_is_over = False
            self.reach(lambda: _COMMITTED)

    async def _watch(self, awaitable: Any) -> Any:
        if not inspect.iscoroutine(awaitable):
            return await awaitable
        awaits = _Awaits(self, awaitable)
        with seen_by(awaits):
            return await Watched(awaitable, awaits)

    async def _wait_if_dead(self, is_dead: bool) -> None:
        if is_dead:
            await asyncio.shield(self._reaped)
            raise asyncio.CancelledError

    def _tell(self) -> None:
        if not self.died.done():
            self.died.set_result(None)


_CLAIMED: Final = "killed after the claim, before process began"
_RETURNED: Final = "killed after process had returned, before its outcome was written"
_COMMITTED: Final = "killed after the COMMIT of its outcome, before the answer to it came"


@dataclass(eq=False)
class _Awaits:
    """Counts the awaits of `process`, and of the tasks that it starts, as moments."""

    replica: KillableReplica
    process: Coroutine[Any, Any, Any]

    def suspended(self, coroutine: Coroutine[Any, Any, Any]) -> None: ...

    def holds(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Future[None] | None:
        """Pass one moment whenever something that was awaited is there."""
        if (
            self.replica.moment is None
            and inspect.getcoroutinestate(coroutine) == inspect.CORO_SUSPENDED
        ):
            self.replica.reach(lambda: self._in_words(coroutine))
        return self.replica.holds(coroutine)

    def _in_words(self, coroutine: Coroutine[Any, Any, Any]) -> str:
        beside = (
            ""
            if coroutine is self.process
            else f", in a task that it started: {_places(coroutine)}"
        )
        return f"killed before the answer to this came: {_places(self.process)}{beside}"


def _places(coroutine: Coroutine[Any, Any, Any]) -> str:
    frames = list(frames_of(coroutine))
    own = [frame for frame in frames if not frame[0].startswith(_NOT_THE_HOST)] or frames
    shown = own if len(own) <= PLACES_SHOWN_MAX else [*own[: PLACES_SHOWN_MAX - 1], own[-1]]
    return " > ".join(_place(*frame) for frame in shown) or "its end"


def _place(filename: str, line: int, function: str) -> str:
    path = Path(filename)
    with suppress(ValueError):
        path = path.relative_to(Path.cwd())
    return f"{path}:{line} in {function}: {linecache.getline(filename, line).strip()}"


@contextmanager
def without_logs() -> Iterator[None]:
    # The last log lines of a dead replica would only confuse.
    level = logging.root.manager.disable
    logging.disable(sys.maxsize)
    try:
        yield
    finally:
        logging.disable(level)
