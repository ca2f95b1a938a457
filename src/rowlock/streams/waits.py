"""`StreamFlow.wait_for`: a service waits until a flow has done the step of what it has added; where
the flow reads the results of another one, it is found at the sources of that one, too.

The one idea: no query asks for the step of a row. How far each source is done stands in the cut
before the frontier, so one statement answers all waits, whatever their rows. One look at a
time serves all waits of a process for one flow, and no session is open between two looks. Why a
wait was in vain is asked once, at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import and_, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.clock import monotonic, rest, sleep
from rowlock.errors import ConfigurationError, describe
from rowlock.spi import is_transient
from rowlock.stream_errors import NotProcessedYet
from rowlock.streams.consumers import OutputSource, woken_by
from rowlock.streams.flow_row import absence_of
from rowlock.streams.flow_view import BEFORE_FIRST, check_shards, frontier_of
from rowlock.streams.program import FlowProgram
from rowlock.streams.settings import seconds_of
from rowlock.streams.status import look_at, why_not_done
from rowlock.streams.tables import StreamDatabase
from rowlock.tasks import finish

T = TypeVar("T")

POLL_S: Final = 0.25
"""How long a wait that gets no hint rests before it looks again, in seconds."""
LOOK_EVERY_S: Final = 0.01
"""Least time between the begins of two looks, in seconds, however many hints there are."""


@dataclass(frozen=True, slots=True)
class DoneUpto:
    frontier: int  # the first step that is not done by all shards
    upto: Mapping[str, int]  # by source, the last position of the steps below it
    # By source, the last position before the first step; empty if that is known no longer
    begins_after: Mapping[str, int]


async def done_upto(connection: AsyncConnection, program: FlowProgram) -> DoneUpto | None:
    """Return how far a flow is, by one statement; None if it has no row yet."""
    flows, steps = program.tables.flows, program.tables.steps
    frontier = frontier_of(program.tables, program.id)
    done, first = steps.alias(), steps.alias()
    found = (
        select(frontier, done.c.upto, first.c.upto)
        .select_from(flows)
        .outerjoin(done, and_(done.c.flow_id == flows.c.id, done.c.step == frontier - 1))
        .outerjoin(first, and_(first.c.flow_id == flows.c.id, first.c.step == BEFORE_FIRST))
        .where(flows.c.id == program.id)
    )
    row = (await connection.execute(found)).first()
    if row is None or row[0] is None:
        await check_shards(connection, program.tables, program.name)
        return None
    return DoneUpto(row[0], row[1] or {}, row[2] or {})


class FrontierWatch:
    """Looks how far a flow is, as long as a caller waits for that."""

    def __init__(self, program: FlowProgram, sessions: async_sessionmaker[AsyncSession]) -> None:
        self._program = program
        self._database = program.tables.opened_by(sessions)
        # The source and the position that each future waits for
        self._waiting: dict[asyncio.Future[DoneUpto], tuple[str, int]] = {}
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_looking = False

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    async def wait(self, source: str, position: int) -> DoneUpto:
        """Wait until all rows of a source up to a position are done; return how far the flow is."""
        future: asyncio.Future[DoneUpto] = asyncio.get_running_loop().create_future()
        self._waiting[future] = (source, position)
        self._woken.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="rowlock: wait for a flow")
        try:
            return await future
        finally:
            del self._waiting[future]
            if not self._waiting:
                await self._end()

    async def _end(self) -> None:
        """End the task: at once, or behind the look that is under way, which is bounded."""
        task, self._task = self._task, None
        if task is None:
            return
        if not self._is_looking:
            task.cancel()
        # Shielded: the look has a session of the host's, also if its waiter is cancelled again.
        await finish(asyncio.wait({task}), purpose="end the looks at a flow")

    async def _run(self) -> None:
        own = asyncio.current_task()
        try:
            with woken_by(self._program.frontier_topic, self._woken):
                while self._task is own:
                    self._woken.clear()
                    began = monotonic()
                    await self._look()
                    if self._task is own:
                        await sleep(max(0.0, began + LOOK_EVERY_S - monotonic()))
                        if not self._woken.is_set():
                            await rest(self._woken, POLL_S)
        except Exception as error:
            # Nothing else would end the waits.
            self._fail(error)
            raise

    async def _look(self) -> None:
        self._is_looking = True
        try:
            seen = await self._database.read(
                "look how far a flow is",
                lambda connection: done_upto(connection, self._program),
                autocommit=True,
            )
        # Each wait raises it; or asks for the reason when its time is over.
        except Exception as error:  # noqa: BLE001
            if not is_transient(error):
                self._fail(error)
            return
        finally:
            self._is_looking = False
        if seen is not None:
            self._answer(seen)

    def _answer(self, seen: DoneUpto) -> None:
        for future, (source, position) in self._waiting.items():
            if position <= seen.upto.get(source, 0) and not future.done():
                future.set_result(seen)

    def _fail(self, error: Exception) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_exception(error)


# ---------------------------------------------------------------- reasons


async def ask_why(
    database: StreamDatabase, ask: Callable[[AsyncConnection], Awaitable[T]]
) -> T | str:
    """Return the answer, or that there is none while the database does not answer."""
    try:
        return await database.read("ask why a flow is not further", ask)
    except Exception as error:
        if not is_transient(error):
            raise
        return f"the database does not answer: {describe(error)}"


class FlowWaits:
    def __init__(self, program: FlowProgram) -> None:
        self._program = program
        self._watches: dict[tuple[int, int], FrontierWatch] = {}

    async def wait_for(
        self,
        sessions: async_sessionmaker[AsyncSession],
        added: object,
        *,
        timeout: timedelta | float,
    ) -> int:
        """Wait until what was added is done; see `StreamFlow.wait_for`."""
        limit_s = seconds_of(timeout)
        if not self.reads(added):
            names = ", ".join(self._program.sources)
            raise ConfigurationError(
                f"the flow {self._program.name!r} reads {names}, and {added!r:.100} is nothing of"
                " these: pass a row that was added, or what append() returned"
            )
        ends_at = monotonic() + limit_s
        positions = self._positions(added)
        for name, source in self._read_through().items():
            if name not in positions and source.upstream.reads(added):
                left_s = max(0.0, ends_at - monotonic())
                positions[name] = await self._behind(sessions, source, added, left_s=left_s)
        return await self._wait(sessions, positions, limit_s=ends_at - monotonic())

    def reads(self, added: object) -> bool:
        """Return whether it is of a source of the flow, or of the flows whose results it reads."""
        through = self._read_through().values()
        return bool(self._positions(added)) or any(one.upstream.reads(added) for one in through)

    def _read_through(self) -> dict[str, OutputSource[Any]]:
        sources = self._program.sources.items()
        return {name: one for name, one in sources if isinstance(one, OutputSource)}

    async def _behind(
        self,
        sessions: async_sessionmaker[AsyncSession],
        source: OutputSource[Any],
        added: object,
        *,
        left_s: float,
    ) -> int:
        """Return the position of the source behind all that follows from what was added."""
        try:
            frontier = await source.upstream.wait_for(sessions, added, timeout=left_s)
        except NotProcessedYet as error:
            raise NotProcessedYet(
                flow=self._program.name, what=error.what, reason=error.message
            ) from None
        last = partial(source.last_position, below=frontier)
        database = self._program.tables.opened_by(sessions)
        return await database.read("find the results of a step", last)

    async def _wait(
        self,
        sessions: async_sessionmaker[AsyncSession],
        positions: dict[str, int],
        *,
        limit_s: float,
    ) -> int:
        # Futures belong to one loop, and a look to one database.
        key = id(asyncio.get_running_loop()), id(sessions)
        watch = self._watches.setdefault(key, FrontierWatch(self._program, sessions))
        seen: DoneUpto | str | None = None
        try:
            async with asyncio.timeout(max(0.0, limit_s)):
                for name, position in positions.items():
                    seen = await watch.wait(name, position)
        except TimeoutError:
            seen = await ask_why(
                self._program.tables.opened_by(sessions),
                lambda connection: self._done_or_why(connection, positions),
            )
        finally:
            if watch.is_idle:
                self._watches.pop(key, None)
        if not isinstance(seen, DoneUpto):
            what = " and ".join(f"position {at} of {name}" for name, at in positions.items())
            raise NotProcessedYet(flow=self._program.name, what=what, reason=str(seen))
        self._check(positions, seen)
        return seen.frontier

    async def _done_or_why(
        self, connection: AsyncConnection, positions: Mapping[str, int]
    ) -> DoneUpto | str:
        done = await done_upto(connection, self._program)
        if done is not None and all(done.upto.get(name, 0) >= at for name, at in positions.items()):
            return done
        seen = await look_at(connection, self._program)
        if seen is None:
            return (await absence_of(connection, self._program)).text
        return why_not_done(seen, positions)

    def _positions(self, added: object) -> dict[str, int]:
        """Return where what was added stands, by source."""
        return {
            name: position
            for name, source in self._program.sources.items()
            if (position := source.position_of(added)) is not None
        }

    def _check(self, positions: dict[str, int], seen: DoneUpto) -> None:
        """Refuse rows that the flow never reads."""
        for name, position in positions.items():
            if 0 < position <= seen.begins_after.get(name, 0):
                raise ConfigurationError(
                    f"the flow {self._program.name!r} begins behind position"
                    f" {seen.begins_after[name]} of {name}, so it never reads position {position}"
                )
