"""The host that is measured: two tables as the guide to migrations would have them, and pipelines
that do nothing or wait.

`Job` has the lock columns alone, `ScheduledJob` the schedule as well; each has the shipped index
and, on PostgreSQL, the advised room in its pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert, literal, select, text
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Pipeline, PipelineItem, ScheduleColumns, due_index
from rowlock.events import Event, ItemApplied, ItemStarted
from rowlock.migrations import FILLFACTOR

READY = "status = 'submitted'"


class Base(DeclarativeBase):
    """The bench's tables."""


class Job(LockColumns, Base):
    __tablename__ = "jobs"
    __table_args__ = (due_index("jobs", ready=READY),)
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")


class ScheduledJob(LockColumns, ScheduleColumns, Base):
    __tablename__ = "scheduled_jobs"
    __table_args__ = (due_index("scheduled_jobs", ready=READY, column="due_at"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")


AnyJob = type[Job] | type[ScheduledJob]


class Ready(Pipeline[Any]):
    def ready(self):  # noqa: ANN201
        return self.model.status == "submitted"


class NoOp(Ready):
    model = Job

    async def process(self, item: PipelineItem[Job]) -> Apply:
        return Apply({"status": "settled"})


class Guarded(NoOp):
    """Settles it unless a service has changed it."""

    async def process(self, item: PipelineItem[Job]) -> Apply:
        return Apply({"status": "settled"}, unless_changed=[Job.status])


class ScheduledNoOp(NoOp):
    model = ScheduledJob


class Counting(NoOp):
    """The same, and tells when so many rows were begun."""

    def __init__(self, until: int, **settings: Any) -> None:
        self.begun = asyncio.Event()
        self._left = until
        super().__init__(**settings)

    async def process(self, item: PipelineItem[Job]) -> Apply:
        self._left -= 1
        if not self._left:
            self.begun.set()
        return Apply({"status": "settled"})


class ScheduledCounting(Counting):
    model = ScheduledJob


class Reconcile(Ready):
    """Looks at each row again and again, and leaves it as it is."""

    model = Job
    min_processing_interval = 0

    async def process(self, item: PipelineItem[Job]) -> Apply:
        return Apply({})


class Asleep(Ready):
    """Holds its rows until it is told to end."""

    model = Job

    def __init__(self, **settings: Any) -> None:
        self.started = 0
        self.may_end = asyncio.Event()
        super().__init__(**settings)

    async def process(self, item: PipelineItem[Job]) -> Apply:
        self.started += 1
        await self.may_end.wait()
        return Apply({"status": "settled"})


class ScheduledAsleep(Asleep):
    model = ScheduledJob


class Timed(Ready):
    """Works for a given time on each row."""

    model = ScheduledJob

    def __init__(self, work_s: float, **settings: Any) -> None:
        self.work_s = work_s
        super().__init__(**settings)

    async def process(self, item: PipelineItem[ScheduledJob]) -> Apply:
        await asyncio.sleep(self.work_s)
        return Apply({"status": "settled"})


@dataclass
class Host:
    engine: AsyncEngine
    session_factory: async_sessionmaker[AsyncSession]

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str, *, empty: bool = True) -> AsyncIterator[Host]:
        engine = create_async_engine(url)
        if empty:
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.drop_all)
                await connection.run_sync(Base.metadata.create_all)
                if engine.dialect.name == "postgresql":
                    for table in Base.metadata.sorted_tables:
                        await connection.execute(
                            text(f"ALTER TABLE {table.name} SET (fillfactor = {FILLFACTOR})")
                        )
        try:
            yield cls(engine, async_sessionmaker(engine, expire_on_commit=False))
        finally:
            await engine.dispose()

    @property
    def is_postgresql(self) -> bool:
        return self.engine.dialect.name == "postgresql"

    async def add(self, count: int, model: AnyJob = Job, **values: Any) -> None:
        """Insert so many alike rows in one statement, and let the planner know."""
        if count:
            numbers = select(literal(1).label("n")).cte("numbers", recursive=True)
            numbers = numbers.union_all(select(numbers.c.n + 1).where(numbers.c.n < count))
            values = {"status": "submitted"} | values
            columns = [model.__table__.c[name] for name in values]
            alike = select(
                *(
                    literal(value, column.type)
                    for value, column in zip(values.values(), columns, strict=True)
                )
            )
            async with self.engine.begin() as connection:
                statement = insert(model).from_select(
                    list(values), alike.select_from(numbers), include_defaults=model is ScheduledJob
                )
                await connection.execute(statement)
        await self.analyze()

    async def add_one(self, model: AnyJob = Job) -> int:
        """Insert one row as a service does, commit, and return its key."""
        async with self.session_factory.begin() as session:
            job = model()
            session.add(job)
        return job.id

    async def analyze(self) -> None:
        """Have the planner know what is there, as autovacuum would in a while."""
        async with self.engine.begin() as connection:
            await connection.execute(text("ANALYZE"))


class Watch:
    """Counts applied rows and remembers when each was started."""

    def __init__(self, clock: Callable[[], float], *, until: int | None = None) -> None:
        self.applied = 0
        self.started: dict[object, float] = {}
        self.done = asyncio.Event()
        self._clock = clock
        self._until = until
        self._awaited: dict[object, asyncio.Event] = {}

    async def wait_for_start(self, row_id: object) -> None:
        if row_id not in self.started:
            self._awaited[row_id] = asyncio.Event()
            await self._awaited[row_id].wait()

    def __call__(self, event: Event) -> None:
        match event:
            case ItemApplied():
                self.applied += 1
                if self.applied == self._until:
                    self.done.set()
            case ItemStarted() if self._until is None:
                self.started[event.row_id] = self._clock()
                if event.row_id in self._awaited:
                    self._awaited[event.row_id].set()
