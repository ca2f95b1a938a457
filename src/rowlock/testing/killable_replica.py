"""A replica within this process that can be killed: from one moment on none of its tasks goes on,
and its connections are cut.

The one idea: a dead process runs no ``finally``. So nothing is cancelled or closed; its tasks stay
where they are until others have finished what it left behind, and only then they are reaped: woken
up to be cancelled, when nothing is compared any more.

What its memory held dies with it: the tasks, the locks of this process on SQLite, the connections.
What a thread was doing is done.

Not here: what is compared (``crashes.py``).
"""

from __future__ import annotations

import asyncio
import inspect
import linecache
import logging
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast
from unittest import mock

from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.util import await_only

import rowlock
from rowlock import Pipeline
from rowlock.clock import sleep
from rowlock.errors import PipelineError
from rowlock.locks.locker import InMemoryLocker
from rowlock.testing.databases import TemporaryDatabase
from rowlock.testing.failpoints import Boundary, Failpoints

REAP_S_MAX: Final = 10.0  # longest wait for the cancelled tasks of a dead replica
SERVER_S_MAX: Final = 10.0  # longest wait until a server notices that a connection was cut
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


class SuspensionObserver:
    """Sees suspensions of the tasks of an `observed` block, however deep."""

    def suspended(self, coroutine: Coroutine[Any, Any, Any]) -> None: ...

    def holds(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Future[None] | None:
        """Return what a coroutine must wait for before it is cancelled; None: it goes on."""
        return None


_observer: ContextVar[SuspensionObserver | None] = ContextVar("rowlock_observer", default=None)


@dataclass(eq=False)
class KillableReplica(SuspensionObserver):
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

    def holds(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Future[None] | None:
        return self._reaped if self.moment is not None else None

    def reach(self, moment: Callable[[], str]) -> bool:
        """Pass a moment; return whether the replica is dead. May be called from a thread."""
        number, self.passed = self.passed, self.passed + 1
        if number == self.at and self.moment is None:
            self.moment = moment()
            self.died.get_loop().call_soon_threadsafe(self._tell)
        return self.moment is not None

    def _tell(self) -> None:
        if not self.died.done():
            self.died.set_result(None)

    def take_over(self, pipeline: Pipeline[Any]) -> None:
        """Make each await of `pipeline.process` a moment of this replica."""
        process = pipeline.process

        async def in_loop(awaitable: Any) -> Any:
            if inspect.iscoroutine(awaitable):
                awaits = _Awaits(self, awaitable)
                with seen_by(awaits):
                    outcome = await Watched(awaitable, awaits)
            else:
                outcome = await awaitable
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

        def refuse_the_dead(*_: object) -> None:
            if self.moment is not None:
                raise ConnectionRefusedError("this replica is dead")

        made, out, listen = self._connections, self._checked_out, event.listen
        pool = engine.sync_engine
        listen(pool, "connect", lambda one, _record: made.append(one.driver_connection))
        listen(pool, "checkout", lambda _one, record, fairy: out.update({record: fairy}))
        listen(pool, "checkin", lambda _one, record: out.pop(record, None))
        listen(pool, "do_connect", refuse_the_dead)
        # To be dead behind a statement is to be dead before the next.
        points = (
            Failpoints(engine, note=self._record_commit)
            if self.counts is None
            else Failpoints(engine, note=self._record_statement, distinct=True)
        )
        with mock.patch.dict(_LOCKERS, sqlite=InMemoryLocker()), points, observed(self):
            yield async_sessionmaker(engine, expire_on_commit=False)

    @asynccontextmanager
    async def life(
        self,
        database: TemporaryDatabase,
        work: Callable[[async_sessionmaker[AsyncSession]], Coroutine[Any, Any, Any]],
        *,
        name: str,
        within_s: float,
    ) -> AsyncIterator[None]:
        """Have the replica do `work` until that ends, or it dies; behind the block it is reaped."""
        engine, before = database.create_engine(), asyncio.all_tasks()
        try:
            async with self.sessions_of(engine) as sessions:
                living = asyncio.create_task(work(sessions))
                ends: set[asyncio.Future[Any]] = {living, self.died}
                await asyncio.wait(ends, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            if self.moment is not None:
                await self.cut_connections(database.engine)
            elif living.done():
                await living
            else:
                raise PipelineError(f"{name} does not come to an end within {within_s:g} s")
            yield
        finally:
            await self.reap(asyncio.all_tasks() - before)
            await engine.dispose()

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

    async def _wait_if_dead(self, is_dead: bool) -> None:
        if is_dead:
            await asyncio.shield(self._reaped)
            raise asyncio.CancelledError


_CLAIMED: Final = "killed after the claim, before process began"
_RETURNED: Final = "killed after process had returned, before its outcome was written"
_COMMITTED: Final = "killed after the COMMIT of its outcome, before the answer to it came"


@dataclass(eq=False)
class _Awaits(SuspensionObserver):
    """Counts the awaits of `process`, and of the tasks that it starts, as moments."""

    replica: KillableReplica
    process: Coroutine[Any, Any, Any]

    def holds(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Future[None] | None:
        """Pass one moment whenever something that was awaited is there."""
        if (
            self.replica.moment is None
            and inspect.getcoroutinestate(coroutine) == inspect.CORO_SUSPENDED
        ):
            is_own = coroutine is self.process
            beside = "" if is_own else f", in a task that it started: {_places(coroutine)}"
            self.replica.reach(
                lambda: f"killed before the answer to this came: {_places(self.process)}{beside}"
            )
        return self.replica.holds(coroutine)


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


class Watched(Coroutine[Any, Any, Any]):
    """A coroutine whose suspensions an observer sees."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], observer: SuspensionObserver) -> None:
        self._coroutine = coroutine
        self._observer = observer
        self._held = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)

    def __await__(self) -> Generator[Any, Any, Any]:
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                waits_for = self.send(value) if error is None else self.throw(error)
            except StopIteration as end:
                return cast("Any", end.value)
            value, error = None, None
            try:
                value = yield waits_for
            except GeneratorExit:
                self.close()
                raise
            except BaseException as thrown:  # noqa: BLE001 - it is the coroutine's to handle
                error = thrown

    def send(self, value: Any) -> Any:
        """Go on, or stay where it is."""
        if (barrier := self._barrier()) is not None:
            return barrier
        if self._held:
            self._held = False
            return self.throw(asyncio.CancelledError())
        waits_for = self._coroutine.send(value)
        self._observer.suspended(self._coroutine)
        return waits_for

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        """Go on with an error, or stay where it is."""
        if (barrier := self._barrier()) is not None:
            return barrier
        error = val if isinstance(val, BaseException) else typ
        error = error if isinstance(error, BaseException) else error()
        waits_for = self._coroutine.throw(error.with_traceback(tb) if tb is not None else error)
        self._observer.suspended(self._coroutine)
        return waits_for

    def close(self) -> None:
        self._coroutine.close()

    def _barrier(self) -> Any:
        holds_until = self._observer.holds(self._coroutine)
        if holds_until is None or holds_until.done():
            return None
        self._held = True
        # One for each: to cancel a task is to cancel the future that it waits for.
        own: asyncio.Future[None] = holds_until.get_loop().create_future()
        holds_until.add_done_callback(lambda _: None if own.done() else own.set_result(None))
        return next(iter(own.__await__()))


@contextmanager
def observed(observer: SuspensionObserver) -> Iterator[None]:
    """Have `observer` see every task that is started in the block, or by such a task later on."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()

    def make_task(
        loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Future[Any]:
        context = options.get("context")
        seer = _observer.get() if context is None else context.get(_observer)
        if seer is not None and inspect.iscoroutine(coroutine):
            coroutine = Watched(coroutine, seer)
        return (
            asyncio.Task(coroutine, loop=loop, **options)
            if before is None
            else before(loop, coroutine, **options)
        )

    loop.set_task_factory(make_task)
    try:
        with seen_by(observer):
            yield
    finally:
        loop.set_task_factory(before)


@contextmanager
def seen_by(observer: SuspensionObserver) -> Iterator[None]:
    """Have tasks that are started in the block, itself in `observed`, seen by another observer."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def frames_of(coroutine: Any) -> Iterator[tuple[str, int, str]]:
    """Yield file, line and name of each frame that waits, the coroutine's own first."""
    while coroutine is not None:
        if (frame := _first(coroutine, "cr_frame", "gi_frame", "ag_frame")) is not None:
            yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        coroutine = _first(coroutine, "cr_await", "gi_yieldfrom", "ag_await")


def _first(coroutine: Any, *names: str) -> Any:
    return next((found for name in names if (found := getattr(coroutine, name, None))), None)
