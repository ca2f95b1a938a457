"""The host that is measured: one table, one pipeline that does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy import Index
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Pipeline, PipelineItem
from rowlock.events import Event, ItemApplied, ItemStarted


class Base(DeclarativeBase):
    """The bench's tables."""


class Job(LockColumns, Base):
    """A row without any work in it."""

    __tablename__ = "jobs"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")


READY = Job.status == "submitted"
# SQLite puts nulls first by itself and has no word for it in an index.
Index("jobs_due", Job.last_processed_at.asc().nulls_first(), postgresql_where=READY).ddl_if(dialect="postgresql")
Index("jobs_due", Job.last_processed_at.asc(), sqlite_where=READY).ddl_if(dialect="sqlite")


class NoOp(Pipeline[Job]):
    """Settles a row without doing anything."""

    model = Job

    def ready(self):  # noqa: ANN201
        return READY

    async def process(self, item: PipelineItem[Job]) -> Apply:
        return Apply({"status": "settled"})


@dataclass
class Host:
    """An empty table in a database, and what happens to its rows."""

    engine: AsyncEngine
    session_factory: async_sessionmaker[AsyncSession]

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str) -> AsyncIterator[Host]:
        """Make the table anew."""
        engine = create_async_engine(url)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.drop_all)
            await connection.run_sync(Base.metadata.create_all)
        try:
            yield cls(engine, async_sessionmaker(engine, expire_on_commit=False))
        finally:
            await engine.dispose()

    async def add(self, jobs: list[Job]) -> None:
        """Insert and commit."""
        async with self.session_factory.begin() as session:
            session.add_all(jobs)


class Watch:
    """Counts applied rows and remembers when each was started."""

    def __init__(self, clock) -> None:  # noqa: ANN001
        """Start counting."""
        self.applied = 0
        self.started: dict[object, float] = {}
        self._clock = clock
        self._awaited: dict[object, asyncio.Event] = {}

    async def wait_for_start(self, row_id: object) -> None:
        """Wait until the row was started."""
        if row_id not in self.started:
            self._awaited[row_id] = asyncio.Event()
            await self._awaited[row_id].wait()

    def __call__(self, event: Event) -> None:
        """Take note of `event`."""
        match event:
            case ItemApplied():
                self.applied += 1
            case ItemStarted():
                self.started[event.row_id] = self._clock()
                if event.row_id in self._awaited:
                    self._awaited[event.row_id].set()
