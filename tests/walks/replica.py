"""A host process for the walks: ``python replica.py URL COUNT``; tells what happens, one JSON
object a line, and exits when COUNT rows are settled.
"""

from __future__ import annotations

import asyncio
import json
import sys

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import (
    Apply,
    LockColumns,
    Pipeline,
    PipelineItem,
    PipelineManager,
    events,
    subscribe,
)
from rowlock.insight import insight_tables

LOOKS_EVERY_S = 0.05
WORK_S = 0.01


class Base(DeclarativeBase):
    """The tables of this host."""


TABLES = insight_tables(Base.metadata, replicas=False)


class Letter(LockColumns, Base):
    __tablename__ = "letters"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="new")


class LetterPipeline(Pipeline[Letter]):
    model = Letter
    workers_num = 5
    lock_timeout = 2
    heartbeat_trigger = 1
    heartbeat_interval = 0.1
    renew_timeout = 0.3
    fetch_delays = (0.05, 0.1, 0.2)

    def ready(self) -> ColumnElement[bool]:
        return Letter.status == "new"

    async def process(self, item: PipelineItem[Letter]) -> Apply:
        await asyncio.sleep(WORK_S)
        return Apply({"status": "settled"})


def tell(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def tell_event(event: events.Event) -> None:
    match event:
        case (
            events.ItemStarted(row_id=row_id)
            | events.ItemApplied(row_id=row_id)
            | events.ItemStale(row_id=row_id)
            | events.LeaseExpired(row_id=row_id)
        ):
            tell(event=type(event).__name__, row_id=row_id)
        case _:
            pass


async def settled(session_factory: async_sessionmaker[AsyncSession]) -> int:
    """Count the rows that are settled, in a session of its own."""
    async with session_factory() as session:
        return await session.scalar(select(func.count()).where(Letter.status == "settled")) or 0


async def main(url: str, count: str) -> None:
    engine = create_async_engine(url)
    session_factory = async_sessionmaker(engine)
    subscribe(tell_event)
    pipelines = [LetterPipeline()]
    async with PipelineManager(session_factory, pipelines, gates=[TABLES.pause_gate]):
        tell(event="Ready")
        while await settled(session_factory) < int(count):  # noqa: ASYNC110 - other processes settle rows too
            await asyncio.sleep(LOOKS_EVERY_S)
    await engine.dispose()
    tell(event="Done")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
