"""A host process that hears of work from other processes only: ``python notified.py URL``.

Between its looks at the table lies an hour. It tells what happens, one JSON object a line, and ends
when its standard input does.
"""

from __future__ import annotations

import asyncio
import json
import sys

from sqlalchemy import ColumnElement, make_url
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Pipeline, PipelineItem, PipelineManager, events, subscribe
from rowlock.testing.databases import connect_args

NAME = "notified"
"""Under which the server knows its connections."""


class Base(DeclarativeBase):
    """The tables of this host."""


class Parcel(LockColumns, Base):
    __tablename__ = "parcels"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="new")


class ParcelPipeline(Pipeline[Parcel]):
    model = Parcel
    fetch_delays = (3600,)

    def ready(self) -> ColumnElement[bool]:
        return Parcel.status == "new"

    async def process(self, item: PipelineItem[Parcel]) -> Apply:
        return Apply({"status": "sent"}, hint=["Bill"])


def tell(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


async def main(url: str) -> None:
    options = connect_args(make_url(url).get_driver_name(), {"application_name": NAME})
    engine = create_async_engine(url, connect_args=options)
    pipeline = ParcelPipeline()
    manager = PipelineManager(async_sessionmaker(engine), [pipeline], notify=True)

    def tell_applied(event: events.Event) -> None:
        if isinstance(event, events.ItemApplied):
            tell(event="Applied", row_id=event.row_id)

    subscribe(tell_applied)
    # A line that begins to listen wakes everybody once.
    manager.hinter.attach(Parcel.__name__, lambda: tell(event="Woken"))
    async with manager:
        await asyncio.to_thread(sys.stdin.read)
    await engine.dispose()
    tell(event="Done")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
