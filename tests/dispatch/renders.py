"""The host of the dispatch tests: renders, an engine whose workers come and go, and handlers of
which a test says how they go.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import JSON, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import LockColumns, ScheduleColumns, database_now
from rowlock.dispatch import (
    AttemptEvent,
    Completed,
    DispatchColumns,
    DispatchPipeline,
    Progress,
    Task,
    dispatch_indexes,
)
from rowlock.dispatch.columns import ACTIVE
from rowlock.dispatch.engines.local import LocalEngine
from rowlock.testing import TemporaryDatabase

SETTLED_S_MAX = 7_200.0
"""How long a test waits for rows to be settled, in virtual seconds."""


class Base(DeclarativeBase):
    """The host's mapped classes."""


class Render(LockColumns, ScheduleColumns, DispatchColumns, Base):
    """A picture to be made of a scene."""

    __tablename__ = "renders"
    __table_args__ = dispatch_indexes("renders")
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    scene: Mapped[str] = mapped_column(default="")
    url: Mapped[str | None]
    size: Mapped[int | None]
    report: Mapped[Any | None] = mapped_column(JSON, default=None)


class Fleet(LocalEngine):
    """Workers on the loop that come and go as a test says.

    Attributes:
        running: how many attempts run now.
        running_max: how many ever ran at once.
        begun: how often each key was begun.
        tasks: every task that was accepted, in order.
    """

    kind: ClassVar[str] = "fleet"

    def __init__(self, workers: int = 0) -> None:
        super().__init__(1)
        self._active.clear()
        self.running = self.running_max = 0
        self.begun: Counter[str] = Counter()
        self.tasks: list[Task[Any]] = []
        self.hire(workers)

    def hire(self, workers: int) -> None:
        first = len(self._active) + 1
        self._active.update({f"worker-{number}": 0 for number in range(first, first + workers)})

    def dismiss_all(self) -> None:
        self._active.clear()

    async def run(self, worker: str, task: Task[Any]) -> AsyncGenerator[AttemptEvent, None]:
        self.tasks.append(task)
        self.begun[task.row.dedup_key] += 1
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        events: Any = task.handler(task)
        try:
            async for event in events:
                yield event
        finally:
            self.running -= 1
            await events.aclose()

    def _left(self, worker: str) -> None:
        if worker in self._active:
            super()._left(worker)


class Scenes:
    """A handler that takes a moment for each scene; `answers` say what some of them do instead.

    Attributes:
        answers: by scene, a function that yields events.
        takes_s: how long the others take, in seconds.
    """

    def __init__(self, takes_s: float = 1.0) -> None:
        self.takes_s = takes_s
        self.answers: dict[str, Callable[[Task[Render]], AsyncIterator[AttemptEvent]]] = {}

    async def __call__(self, task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        answer = self.answers.get(task.row.scene)
        if answer is not None:
            async for event in answer(task):
                yield event
            return
        await asyncio.sleep(self.takes_s)
        yield Completed({"url": f"https://pictures/{task.row.scene}"})


def without_end(gate: asyncio.Event) -> Callable[[Task[Render]], AsyncIterator[AttemptEvent]]:
    """Return what a scene may do: it ignores its cancellation, until the gate is opened."""

    async def goes_on(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Progress("x")
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()
        yield Completed()

    return goes_on


def pipeline_of(
    fleet: Fleet, scenes: Scenes | None = None, **settings: object
) -> DispatchPipeline[Render]:
    return DispatchPipeline(Render, handler=scenes or Scenes(), engine=fleet, **settings)  # type: ignore[arg-type]


async def submit(
    database: TemporaryDatabase, pipeline: DispatchPipeline[Render], *keys: str
) -> list[tuple[Render, bool]]:
    """Submit a scene for each of `keys`, in one transaction."""
    async with database.session_factory() as session:
        made = [await pipeline.submit(session, dedup_key=key, scene=key) for key in keys]
        await session.commit()
    pipeline.hint()
    return made


async def add(database: TemporaryDatabase, *rows: Render) -> None:
    async with database.session_factory.begin() as session:
        session.add_all(rows)


async def all_renders(database: TemporaryDatabase) -> list[Render]:
    async with database.session_factory() as session:
        return list(
            (
                await session.scalars(
                    select(Render).order_by(Render.submitted_at, Render.dedup_key)
                )
            ).all()
        )


async def one_render(database: TemporaryDatabase) -> Render:
    [row] = await all_renders(database)
    return row


async def settled(database: TemporaryDatabase, *, every_s: float = 1.0) -> list[Render]:
    """Wait until no row is active, and return all."""
    async with asyncio.timeout(SETTLED_S_MAX):
        while any(row.status in ACTIVE for row in await all_renders(database)):  # noqa: ASYNC110 - the database says nothing by itself
            await asyncio.sleep(every_s)
    return await all_renders(database)


async def now_of(database: TemporaryDatabase) -> datetime:
    async with database.session_factory() as session:
        now = await session.scalar(select(database_now()))
        assert now is not None
        return now
