"""Jobs, a pipeline that does what a test says, and a replica beside which it is shadowed."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from sqlalchemy import JSON, ColumnElement, Numeric
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import (
    LockColumns,
    Outcome,
    Pipeline,
    PipelineItem,
    PipelineManager,
    Related,
    ScheduleColumns,
    UtcDateTime,
)
from rowlock.insight import Insight
from rowlock.insight.shadowing import shadow as shadow_module
from rowlock.insight.shadowing.shadow_run import ShadowRun
from rowlock.insight.shadowing.snapshot import RowLook, read_look
from rowlock.testing import TemporaryDatabase

from ..host import wait_s_max

Work = Callable[[PipelineItem[Any]], Awaitable[Outcome]]
LONG = timedelta(seconds=60)
NAME = "JobPipeline"


class Base(DeclarativeBase):
    """The mapped classes of these tests."""


class Team(LockColumns, Base):
    """Has jobs."""

    __tablename__ = "teams"
    id: Mapped[int] = mapped_column(primary_key=True)
    done: Mapped[int] = mapped_column(default=0)


class Job(LockColumns, ScheduleColumns, Base):
    """Has columns of which Python and a database write the same value differently."""

    __tablename__ = "jobs"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="new")
    secret: Mapped[str | None]
    price: Mapped[Decimal | None] = mapped_column(Numeric(10, 2))
    document: Mapped[Any] = mapped_column(JSON, nullable=True)
    done_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    changes: Mapped[int] = mapped_column(default=0, onupdate=1)


class Plain(LockColumns, Base):
    """Has no schedule."""

    __tablename__ = "plain"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="new")


class JobPipeline(Pipeline[Job]):
    """Does what a test says."""

    model = Job
    rehearsable = True
    locks: Sequence[type | Related] = (Team,)

    def __init__(self, work: Work) -> None:
        # Longer than any rest between two looks, however slow the machine is.
        super().__init__(retry_delay=300)
        self.work = work

    def ready(self) -> ColumnElement[bool]:
        """New jobs want work."""
        return Job.status == "new"

    async def process(self, item: PipelineItem[Job]) -> Outcome:
        """Do it."""
        return await self.work(item)


class PlainPipeline(JobPipeline):
    """The same for rows that have no schedule."""

    model = Plain  # type: ignore[assignment]
    locks = ()

    def ready(self) -> ColumnElement[bool]:
        """New rows want work."""
        return Plain.status == "new"


class Unfit:
    """No database takes it, and to look at it raises."""

    def __eq__(self, other: object) -> bool:
        """Leave the process."""
        raise SystemExit

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Fail."""
        raise RuntimeError("nothing to see")


def work_of(outcomes: dict[int, Any]) -> Work:
    """Return a `process` that has an outcome, an error, or a function for each row."""

    async def work(item: PipelineItem[Any]) -> Outcome:
        found: Any = outcomes[item.id]
        if isinstance(found, ValueError | KeyError):
            raise found
        given: Any = await found(item) if inspect.isfunction(found) else found
        assert isinstance(given, Outcome)
        return given

    return work


async def filled(database: TemporaryDatabase, *rows: Any) -> None:
    """Put rows in."""
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add_all(rows)


async def shadowed(
    database: TemporaryDatabase,
    live: Work | None,
    shadow: Work,
    *,
    pipeline: type[JobPipeline] = JobPipeline,
    before: Callable[[], Awaitable[None]] | None = None,
    insight: Mapping[str, Any] = MappingProxyType({}),
    **how: Any,
) -> ShadowRun:
    """Shadow a replica that begins once the rows were read, and after `before`."""
    read, answered = asyncio.Event(), asyncio.Event()

    async def first(item: PipelineItem[Any]) -> Outcome:
        read.set()
        assert item.is_rehearsal
        return await shadow(item)

    async def replica() -> None:
        await read.wait()
        if before is not None:
            await before()
        if live is not None:
            async with PipelineManager(database.session_factory, [pipeline(live)]):
                await answered.wait()

    questions = Insight(database.session_factory, [pipeline(first)], **insight)
    other = asyncio.create_task(replica())
    try:
        return await questions.shadow(pipeline.__name__, **how)
    finally:
        answered.set()
        read.set()
        await other


class Looks:
    """Counts looks at the rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count from now on."""
        self.count, self._more = 0, asyncio.Event()
        monkeypatch.setattr(shadow_module, "read_look", self._look)

    async def _look(self, *args: Any, apart: bool) -> RowLook:
        look = await read_look(*args, apart=apart)
        self.count += 1
        self._more.set()
        return look

    async def one_more(self) -> None:
        """Wait until a look that was not begun yet has ended."""
        enough = self.count + 2
        async with asyncio.timeout(wait_s_max()):
            while self.count < enough:
                self._more.clear()
                await self._more.wait()
