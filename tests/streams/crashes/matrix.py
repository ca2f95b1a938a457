"""One story and one act: what is before, the replica that something happens to, and its heir.

``die`` and ``freeze`` happen to processes of their own (`Nursery`), the loss of a connection to one
that lives on.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import delete, text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from rowlock.testing import Failpoints, TemporaryDatabase
from rowlock.testing.failpoints import Boundary

from ...failpoints.stories import Scene
from ...failpoints.survivors import Nursery
from ...leases.transactions import checked_out, file_may_be_written
from .host import SETTINGS, Base
from .judging import judge
from .story import FlowStory

ACTS: Final = ("die", "freeze", "lose")
BOUNDARIES_MAX: Final = 400
HEIR_AFTER: Final = timedelta(seconds=SETTINGS["lock_timeout"] + 1)
"""How long after the loss of a replica its heir comes: no lease of it is left."""
SNAPSHOT_KEPT: Final = timedelta(seconds=61)
"""Then a snapshot is kept no longer, whoever has read it."""
LOOKS_EVERY_S: Final = 0.002
LOOKS_MAX: Final = 5000
LISTS: Final = re.compile(r"\((?:\?|\$\d+(?:::\w+)?)(?:, (?:\?|\$\d+(?:::\w+)?))*\)")
"""Parameters in brackets, of which there is one for each row or key."""

_AT_WORK: Final = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND pid <> pg_backend_pid() AND state = 'active' AND wait_event IS DISTINCT FROM 'ClientRead'"
)
_WRITING: Final = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND pid <> pg_backend_pid() AND backend_xid IS NOT NULL"
)
"""How many others have written something that is not committed, or have locked a row."""


@dataclass
class Tried:
    """What was tried of a story.

    Attributes:
        boundaries: at which the act took place.
        overtaken: how often the heir went on while the replica was frozen.
        answers_lost: how often the answer to a COMMIT was lost.
    """

    boundaries: int = 0
    overtaken: int = 0
    answers_lost: int = 0


def first_of_each(passed: Sequence[Boundary]) -> list[int]:
    """Return the numbers of boundaries where a statement is met for the first time.

    However many rows it is about, a statement is the same; a COMMIT is one of what it is behind.
    """
    first: dict[tuple[str, str], int] = {}
    statement = ""
    for boundary in passed:
        if boundary.statement in {"BEGIN", "COMMIT", "ROLLBACK"}:
            key = f"{boundary.statement} behind {statement}"
        else:
            key = statement = LISTS.sub("(...)", boundary.statement)
        first.setdefault((boundary.side, key), boundary.number)
    return sorted(first.values())


class Matrix:
    """Tries a story on one database."""

    def __init__(self, database: TemporaryDatabase, nursery: Nursery, clock: Path) -> None:
        self._database = database
        self._nursery = nursery
        self._clock = clock

    async def sweep(
        self,
        story: FlowStory,
        act: str,
        boundaries: Iterable[int],
        *,
        ends: bool = True,
        tried: Tried | None = None,
    ) -> Tried:
        """Try these boundaries in their order, and judge after each.

        Args:
            story: which one.
            act: what happens.
            boundaries: by their numbers.
            ends: with the first one that there is not.
            tried: what has been tried is added to it.

        Raises:
            AssertionError: it makes a difference; or all of them were there, of every boundary.
        """
        tried = Tried() if tried is None else tried
        for at in boundaries:
            await self._set_scene(story)
            try:
                reached = await self._act(story, act, at, tried)
            except Exception as error:
                error.add_note(f"{story.name}, {act} at boundary {at}")
                raise
            tried.boundaries += reached
            if not reached and ends:
                return tried
        assert tried.boundaries < BOUNDARIES_MAX, f"{story.name} has no end"
        return tried

    async def survey(self, story: FlowStory) -> list[int]:
        """Return at which boundaries each different statement is met first."""
        await self._set_scene(story)
        engine = self._database.create_engine()
        with Failpoints(engine, distinct=True, armed=False) as points:
            await self._play(story, engine, points)
        await engine.dispose()
        return first_of_each(points.passed)

    async def _act(self, story: FlowStory, act: str, at: int, tried: Tried) -> bool:
        if act == "lose":
            return await self._lose(story, at, tried)
        if act == "freeze":
            return await self._freeze(story, at, tried)
        return await self._kill(story, at)

    async def kill_before(self, story: FlowStory) -> bool:
        """Have a replica die in the middle of what the story is about; return whether it did."""
        await self._set_scene(story)
        return await self._kill(story, story.dies_before)

    async def _kill(self, story: FlowStory, at: int | str) -> bool:
        code = self._replica(story, at, act="die")
        assert code in {0, -signal.SIGKILL}, f"the replica ended with {code}"
        await self._wait_for_the_server()
        await self._finish(story)
        return code != 0

    async def _freeze(self, story: FlowStory, at: int, tried: Tried) -> bool:
        code = self._replica(story, at, act="freeze")
        if code is None:
            if await self.may_be_written():
                tried.overtaken += 1
                await self._finish(story)
            # In the middle of a transaction all wait for it: then it was only slow.
            assert self._nursery.thaw() == 0, "it could not go on behind its heir"
        await self._wait_for_the_server()
        await self._finish(story)
        return code is None

    async def _lose(self, story: FlowStory, at: int, tried: Tried) -> bool:
        engine = self._database.create_engine()
        with Failpoints(engine, at=at, distinct=True, armed=False) as points:
            try:
                await self._play(story, engine, points)
            except ConnectionResetError:
                assert points.reached, "somebody else has cut the connection"
        assert checked_out(engine) == 0
        await engine.dispose()
        await self._wait_for_the_server()
        await self._finish(story)
        tried.answers_lost += points.reached is not None and points.reached.is_lost_answer
        return points.reached is not None

    async def _play(self, story: FlowStory, engine: AsyncEngine, points: Failpoints) -> None:
        sessions = async_sessionmaker(engine, expire_on_commit=False)
        await story.play(Scene(sessions, points, self._clock.parent))

    def _replica(self, story: FlowStory, at: int | str, *, act: str) -> int | None:
        told: Any = story
        return self._nursery.replica(told, self._database, at=at, act=act, clock=self._clock)

    async def _set_scene(self, story: FlowStory) -> None:
        """Put the rows in, and forget those of the last one."""
        sessions = self._database.session_factory
        async with sessions.begin() as session:
            for table in reversed(Base.metadata.sorted_tables):
                await session.execute(delete(table).execution_options(rowlock_changes_events=True))
        async with sessions.begin() as session:
            session.add_all(story.rows())
        await story.before(sessions, story)
        self._advance(timedelta(days=story.days))

    def _advance(self, by: timedelta) -> None:
        assert self._database.clock is not None
        self._database.clock.advance(by)

    async def _finish(self, story: FlowStory) -> None:
        """Be the heir, once no lease of the lost replica is left; judge what it has come to."""
        self._advance(HEIR_AFTER)
        await story.heir(self._database.session_factory, story)
        if story.afterwards is not None:
            self._advance(SNAPSHOT_KEPT)
            await story.afterwards(self._database.session_factory, story)
        await judge(self._database, story)

    async def may_be_written(self) -> bool:
        """Whether nobody is in the middle of a transaction that others would have to wait for."""
        if self._database.dialect_name == "sqlite":
            return file_may_be_written(self._database)
        for _ in range(LOOKS_MAX):
            if not await self._count(_AT_WORK):
                break
            await asyncio.sleep(LOOKS_EVERY_S)
        return not await self._count(_WRITING)

    async def _count(self, statement: Any) -> int:
        async with self._database.engine.connect() as connection:
            return int(await connection.scalar(statement) or 0)

    async def _wait_for_the_server(self) -> None:
        """Wait until the server has rolled back what a dead replica left open."""
        for _ in range(LOOKS_MAX):
            if await self.may_be_written():
                return
            await asyncio.sleep(LOOKS_EVERY_S)
        raise AssertionError("the transaction of a dead replica is still open")
