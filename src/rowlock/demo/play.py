"""The story: a backlog, replicas that work it off, one of them killed half-way, and files that arrive meanwhile.

1. Nine in ten files are there from the start, inserted by the parent. Nobody hints: the replicas find them by looking.
2. When half of all is settled, one replica is killed with -9, at a moment when it is in the middle of something.
3. Once no row waits any more, the rest arrives one at a time: a replica takes it in, commits, hints.
4. All is settled once the leases of the dead replica have run out and others have taken over its rows.

Not here: whether it went well. See ``verdict.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from rowlock.clock import monotonic, sleep
from rowlock.demo.documents import NEW, Document
from rowlock.demo.processes import ReplicaProcess

ARRIVING_PART = 10
"""One file in so many arrives later."""
ARRIVALS_MAX = 300
ARRIVAL_PAUSE_S = 0.01
CHUNK_ROWS = 500
"""Rows of the backlog in one transaction: on SQLite nobody else writes meanwhile."""
LOOK_S = 0.1
RUN_S = 0.01
"""How long the replicas run between two looks for a kill."""
STALL_S_MAX = 20.0
"""Without any progress for so long the play ends, and what is not settled is lost."""


@dataclass(frozen=True, slots=True)
class BacklogProgress:
    """How far it is: rows `finished`, `held` under a lease, `waiting`, of so many `files`."""

    files: int
    finished: int
    held: int
    waiting: int
    alive: int
    seconds: float


class Audience(Protocol):
    """Who is told how it goes."""

    def show(self, progress: BacklogProgress) -> None:
        """Show how far it is; called often."""
        ...

    def say(self, text: str) -> None:
        """Tell that something happened."""
        ...


@dataclass(frozen=True, slots=True)
class Kill:
    """A replica was killed. `leased`: all leases of that moment, of whichever replica: token to document."""

    replica: ReplicaProcess
    leased: dict[str, int]


@dataclass(slots=True)
class DemoRun:
    """One performance. `kill` and `rows_per_s` are written while it runs.

    Attributes:
        engine: on the demo's tables.
        kills: whether a replica is to be killed.
        kill: the kill, once it has happened.
        rows_per_s: how fast the backlog was worked off.
    """

    engine: AsyncEngine
    replicas: Sequence[ReplicaProcess]
    files: Sequence[str]
    audience: Audience
    kills: bool = True
    kill: Kill | None = None
    rows_per_s: float = 0.0
    _began_at: float = 0.0

    async def run(self) -> None:
        """Play it to the end, which is when all is settled, nothing moves any more, or every replica is dead."""
        arrivals = min(len(self.files) // ARRIVING_PART, ARRIVALS_MAX)
        backlog = len(self.files) - arrivals
        self._began_at = monotonic()
        for start in range(0, backlog, CHUNK_ROWS):
            await insert(self.engine, self.files[start : min(start + CHUNK_ROWS, backlog)])
            await self._look()
        self.audience.say(f"{backlog} files are in the table `documents`")
        if self.kills:
            await self._kill_half_way(backlog)
        await self._watch_until(lambda progress: progress.waiting == 0)
        progress = await self._look()
        self.rows_per_s = progress.finished / progress.seconds
        self.audience.say(f"the backlog is through; {arrivals} more files arrive one at a time")
        await self._let_arrive(self.files[backlog:])
        await self._watch_until(lambda progress: progress.finished >= progress.files)

    async def _kill_half_way(self, backlog: int) -> None:
        """Let the replicas run for moments until one is killed: a fast machine would be through before we look."""
        try:
            async for progress in self._watch(0):
                if progress.finished >= backlog or (progress.finished * 2 >= progress.files and await self.kill_one()):
                    return
                self._thaw()
                await sleep(RUN_S)
                self._freeze()
        finally:
            self._thaw()

    async def kill_one(self) -> bool:
        """Kill the first replica that is found in the middle of something. All stay frozen, so that this stays true."""
        self._freeze()
        try:
            async with self.engine.connect() as connection:
                leased = await leases(connection)
            alive = self._alive()
            for replica in alive if len(alive) > 1 else ():
                if any(start.token in leased for start in replica.journal().starts):
                    await replica.kill()
                    self.kill = Kill(replica, leased)
                    self.audience.say(f"{replica} was killed with -9")
                    return True
            return False
        finally:
            self._thaw()

    def _freeze(self) -> None:
        for replica in self._alive():
            replica.freeze()

    def _thaw(self) -> None:
        for replica in self._alive():
            replica.thaw()

    async def _let_arrive(self, paths: Sequence[str]) -> None:
        looked_at = monotonic()
        for number, path in enumerate(paths):
            # As a client does: who gets no answer asks somebody else.
            while alive := self._alive():
                if await alive[number % len(alive)].ask(path):
                    break
                await sleep(LOOK_S)
            await sleep(ARRIVAL_PAUSE_S)
            if monotonic() - looked_at >= LOOK_S:
                await self._look()
                looked_at = monotonic()

    async def _watch_until(self, condition: Callable[[BacklogProgress], bool]) -> None:
        async for progress in self._watch(LOOK_S):
            if condition(progress):
                return

    async def _watch(self, period_s: float) -> AsyncIterator[BacklogProgress]:
        """Yield how far it is, again and again, as long as anything moves and anybody lives."""
        last, moved_at = -1, monotonic()
        while self._alive() and monotonic() - moved_at < STALL_S_MAX:
            progress = await self._look()
            if progress.finished != last:
                last, moved_at = progress.finished, monotonic()
            yield progress
            await sleep(period_s)

    async def _look(self) -> BacklogProgress:
        async with self.engine.connect() as connection:
            finished, held, waiting = await counts(connection)
        progress = BacklogProgress(
            len(self.files), finished, held, waiting, alive=len(self._alive()), seconds=monotonic() - self._began_at
        )
        self.audience.show(progress)
        return progress

    def _alive(self) -> list[ReplicaProcess]:
        return [replica for replica in self.replicas if replica.is_alive]


async def insert(engine: AsyncEngine, paths: Sequence[str]) -> None:
    """Insert one document for each path, in a transaction of its own."""
    async with AsyncSession(engine) as session, session.begin():
        session.add_all(Document(path=path) for path in paths)


async def counts(connection: AsyncConnection) -> tuple[int, int, int]:
    """Return how many documents are settled, held and waiting. Joins the caller's transaction."""
    is_new, is_held = Document.status == NEW, Document.lock_token.is_not(None)
    columns = (~is_new, is_new & is_held, is_new & ~is_held)
    row = (await connection.execute(select(*(func.count().filter(column) for column in columns)))).one()
    return row[0], row[1], row[2]


async def leases(connection: AsyncConnection) -> dict[str, int]:
    """Return which documents are leased, by token. Joins the caller's transaction."""
    held = select(Document.lock_token, Document.id).where(Document.lock_token.is_not(None))
    return {str(token): document_id for token, document_id in await connection.execute(held)}
