"""Counts the files and functions of the package that one act passes: ``python tests/tidy/traced.py
[row|explain|event ...] [--database sqlite|postgresql] [--names]``.

An act is played often enough that everything is warm, and then once more under `sys.settrace`, in
all threads. What runs beside it, such as a heartbeat, may be counted, too, so that each figure is
the smallest of several. The bounds stand in ``docs/design/house.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from sqlalchemy import JSON, String, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import rowlock
from rowlock import Apply, LockColumns, Pipeline, PipelineItem, PipelineManager, due_index
from rowlock.events import ItemApplied
from rowlock.insight import Insight
from rowlock.streams import EventColumns, StepContext, Streams
from rowlock.testing import PostgresqlServer

PACKAGE = str(Path(rowlock.__file__).parent)
WARM = 30
"""How often an act is played before it is counted."""
COUNTED = 7
"""Of how many plays the smallest is taken."""

Passed = set[tuple[str, str]]
Play = Callable[[], Awaitable[None]]


class Base(DeclarativeBase):
    """Tables as hosts have them."""


class Job(LockColumns, Base):
    """A row with a payload."""

    __tablename__ = "jobs"
    __table_args__ = (due_index("jobs", ready="status = 'submitted'"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(String(20), default="submitted")
    payload: Mapped[Any] = mapped_column(JSON, default=lambda: {"size": 1})


class JobPipeline(Pipeline[Job]):
    """Writes a status."""

    model = Job

    def ready(self) -> Any:
        return Job.status == "submitted"

    async def process(self, item: PipelineItem[Job]) -> Apply:
        return Apply({"status": f"done {item.row.payload['size']}"})


class Payment(EventColumns, Base):
    """An event."""

    __tablename__ = "payments"
    __stream_key__ = "account"
    account: Mapped[str] = mapped_column(String(50))
    cents: Mapped[int]


streams = Streams(Base)
balances = streams.flow("balances", Payment, shards=1)


@balances.by_key(state=int)
def add(step: StepContext, account: str, cents: int | None, payments: list[Payment]) -> int:
    """Sum up."""
    return (cents or 0) + sum(payment.cents for payment in payments)


class Recorder:
    """Notes the functions of the package that are entered while it is on."""

    def __init__(self) -> None:
        self.passed: Passed | None = None
        threading.settrace(self.note)
        sys.settrace(self.note)

    def note(self, frame: FrameType, _event: str, _argument: object) -> None:
        """Note one entry; lines are not traced."""
        code = frame.f_code
        if self.passed is not None and code.co_filename.startswith(PACKAGE):
            self.passed.add((code.co_filename[len(PACKAGE) + 1 :], code.co_qualname))

    async def fewest(self, play: Play) -> Passed:
        """Return what the smallest of several plays has passed."""
        for _ in range(WARM):
            await play()
        plays = []
        for _ in range(COUNTED):
            self.passed = set()
            await play()
            plays.append(self.passed)
            self.passed = None
            await asyncio.sleep(0.05)  # until what follows an act is over
        return min(plays, key=len)


@asynccontextmanager
async def row(sessions: async_sessionmaker[AsyncSession]) -> AsyncIterator[Play]:
    """One warm row, from the hint to its event; the insert is the host's."""
    applied = asyncio.Event()
    manager = PipelineManager(sessions, [JobPipeline()], check_indexes=False)

    async def play() -> None:
        applied.clear()
        async with sessions.begin() as session:
            session.add(Job())
        rowlock.pipeline_hinter.hint_fetch(Job)
        await applied.wait()

    rowlock.subscribe(lambda _: applied.set(), ItemApplied)
    async with manager:
        yield play


@asynccontextmanager
async def explain(sessions: async_sessionmaker[AsyncSession]) -> AsyncIterator[Play]:
    """The explanation of one row, with its text."""
    async with sessions.begin() as session:
        session.add(Job(id=1))
    insight = Insight(sessions, [JobPipeline()])

    async def play() -> None:
        str((await insight.explain(Job, 1)).text())

    yield play


@asynccontextmanager
async def event(sessions: async_sessionmaker[AsyncSession]) -> AsyncIterator[Play]:
    """One event of a flow, from the hint to the end of its step."""

    async def play() -> None:
        async with sessions.begin() as session:
            session.add(payment := Payment(account="a", cents=1))
            balances.hint_after_commit(session)
        await balances.wait_for(sessions, payment, timeout=30)

    async with PipelineManager(sessions, streams.pipelines()):
        yield play


ACTS = {"row": row, "explain": explain, "event": event}


async def traced(url: Any, act: str) -> Passed:
    """Return what one act passes on an empty database."""
    recorder = Recorder()
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            await connection.execute(text("PRAGMA journal_mode = WAL"))
        await connection.run_sync(Base.metadata.drop_all)
        await connection.run_sync(Base.metadata.create_all)
    async with ACTS[act](async_sessionmaker(engine)) as play:
        passed = await recorder.fewest(play)
    await engine.dispose()
    return passed


def main() -> None:
    """Print a line for each act on each database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("acts", nargs="*", help=", ".join(ACTS))
    parser.add_argument("--database", choices=("sqlite", "postgresql"))
    parser.add_argument("--names", action="store_true", help="the files and functions, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rowlock-") as folder:
        for name in [options.database] if options.database else ["postgresql", "sqlite"]:
            server = PostgresqlServer(Path(folder)) if name == "postgresql" else None
            url: Any = f"sqlite+aiosqlite:///{folder}/traced.db"
            if server is not None:
                url = server.start().set(drivername="postgresql+asyncpg")
            try:
                for act in options.acts or ACTS:
                    passed = asyncio.run(traced(url, act))
                    files = sorted({file for file, _ in passed})
                    print(f"{act:8}{name:12}{len(files):4} files {len(passed):5} functions")
                    if options.names:
                        for file in files:
                            names = sorted(one for other, one in passed if other == file)
                            print(f"    {file}: {', '.join(names)}")
            finally:
                if server is not None:
                    server.stop()


if __name__ == "__main__":
    main()
