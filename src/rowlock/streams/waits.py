"""`StreamFlow.wait_for`: a service waits until a flow has done the step of what it has added; where
the flow reads the results of another one, it is found at the sources of that one, too.

The one idea: no query asks for the step of a row. How far each source is done stands in the cut
before the frontier, so one statement answers all waits, whatever their rows. One look at a
time serves all waits of a process for one flow, and no session is open between two looks. Why a
wait was in vain is asked once, at its end.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final

from sqlalchemy import and_, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.clock import monotonic, rest, sleep
from rowlock.errors import ConfigurationError, describe
from rowlock.spi import LeasedTable, in_transaction, is_transient
from rowlock.stream_errors import NotProcessedYet
from rowlock.streams.consumers import OutputSource, woken_by
from rowlock.streams.flow_row import absence_of
from rowlock.streams.flow_view import BEFORE_FIRST, check_shards, frontier_of
from rowlock.streams.program import FlowProgram
from rowlock.streams.settings import seconds_of
from rowlock.streams.status import look_at, why_not_done
from rowlock.tasks import finish

POLL_S: Final = 0.25
"""How long a wait that gets no hint rests before it looks again, in seconds."""
LOOK_EVERY_S: Final = 0.01
"""Least time between the begins of two looks, in seconds, however many hints there are."""
ENDED_MAX: Final = 64
"""So many waits more than there are may be remembered after they have ended."""
LOOK_TIMEOUT: Final = timedelta(seconds=5)
"""How long a look may take."""


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


_Wait = tuple[int, int, asyncio.Future[DoneUpto]]


class FrontierWatch:
    """Looks how far a flow is, as long as a caller waits for that; `looks` counts how often."""

    def __init__(self, program: FlowProgram, sessions: async_sessionmaker[AsyncSession]) -> None:
        self.looks = 0
        self._program = program
        self._sessions = sessions
        self._leased = LeasedTable.of(program.tables.flow_model)
        self._waiting: defaultdict[str, list[_Wait]] = defaultdict(list)
        self._waits = 0
        self._number = count()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_looking = False

    @property
    def is_idle(self) -> bool:
        return not self._waits

    async def wait(self, source: str, position: int) -> DoneUpto:
        """Wait until all rows of a source up to a position are done; return how far the flow is."""
        future: asyncio.Future[DoneUpto] = asyncio.get_running_loop().create_future()
        heappush(self._waiting[source], (position, next(self._number), future))
        self._waits += 1
        self._woken.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="rowlock: wait for a flow")
        try:
            return await future
        finally:
            future.cancel()
            self._waits -= 1
            self._forget(source)
            if not self._waits:
                await self._end()

    def _forget(self, source: str) -> None:
        """Forget waits that have ended, where they are many beside the others."""
        waiting = self._waiting[source]
        if len(waiting) > 2 * self._waits + ENDED_MAX:
            waiting[:] = [one for one in waiting if not one[2].done()]
            heapify(waiting)

    async def _end(self) -> None:
        """End the task: at once, or behind the look that is under way, which is bounded."""
        task, self._task = self._task, None
        self._waiting.clear()
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
        async def look(session: AsyncSession, connection: AsyncConnection) -> DoneUpto | None:
            return await done_upto(connection, self._program)

        self.looks += 1
        self._is_looking = True
        try:
            seen = await in_transaction(
                self._sessions,
                self._leased,
                look,
                purpose="look how far a flow is",
                timeout=LOOK_TIMEOUT,
                writes=False,
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
        for source, waiting in self._waiting.items():
            upto = seen.upto.get(source, 0)
            while waiting and (waiting[0][0] <= upto or waiting[0][2].done()):
                future = heappop(waiting)[2]
                if not future.done():
                    future.set_result(seen)

    def _fail(self, error: Exception) -> None:
        for waiting in self._waiting.values():
            for _, _, future in waiting:
                if not future.done():
                    future.set_exception(error)
            waiting.clear()


# ---------------------------------------------------------------- reasons


REASON_TIMEOUT: Final = timedelta(seconds=5)
"""How long the question may take."""


async def done_or_reason(
    session_factory: async_sessionmaker[AsyncSession],
    program: FlowProgram,
    positions: Mapping[str, int],
) -> DoneUpto | str:
    """Return why rows at `positions`, by source, are not done; or the frontier, if they are."""

    async def look(session: AsyncSession, connection: AsyncConnection) -> DoneUpto | str:
        done = await done_upto(connection, program)
        if done is None:
            return (await absence_of(connection, program)).text
        if all(done.upto.get(name, 0) >= at for name, at in positions.items()):
            return done
        seen = await look_at(connection, program)
        if seen is None:
            return (await absence_of(connection, program)).text
        return why_not_done(seen, positions)

    leased = LeasedTable.of(program.tables.flow_model)
    purpose = "ask why a flow is not further"
    try:
        return await in_transaction(
            session_factory, leased, look, purpose=purpose, timeout=REASON_TIMEOUT, writes=False
        )
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

        async def look(session: AsyncSession, connection: AsyncConnection) -> int:
            return await source.last_position(connection, below=frontier)

        leased = LeasedTable.of(self._program.tables.flow_model)
        purpose = "find the results of a step"
        return await in_transaction(
            sessions, leased, look, purpose=purpose, timeout=LOOK_TIMEOUT, writes=False
        )

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
            seen = await done_or_reason(sessions, self._program, positions)
        finally:
            if watch.is_idle:
                self._watches.pop(key, None)
        if not isinstance(seen, DoneUpto):
            what = " and ".join(f"position {at} of {name}" for name, at in positions.items())
            raise NotProcessedYet(flow=self._program.name, what=what, reason=str(seen))
        self._check(positions, seen)
        return seen.frontier

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
