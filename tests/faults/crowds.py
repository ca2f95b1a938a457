"""Crowds: a shelf is a table with a pipeline of its own, a book a row that is held at work until
the test lets it go.

Sizes are the test's to say. ``tests/bench/crowds.py`` plays the same scenes at full size.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from sqlalchemy import ColumnElement, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Pipeline, PipelineItem, ScheduleColumns

ROWS_PER_INSERT = 10_000


class Base(DeclarativeBase):
    """The mapped classes of a crowd."""


class Book(LockColumns, ScheduleColumns, Base):
    __tablename__ = "books"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="new")


class HoldingPipeline(Pipeline[Any]):
    """Holds every item at work until it is let go.

    Attributes:
        started: how many items have begun.
        let_go: ends the holding.
    """

    model = Book

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.started = 0
        self.let_go = asyncio.Event()

    def ready(self) -> ColumnElement[bool]:
        return cast("ColumnElement[bool]", self.model.status == "new")

    async def process(self, item: PipelineItem[Any]) -> Apply:
        self.started += 1
        await self.let_go.wait()
        return Apply({"status": "done"})


async def add_books(database: Any, count: int, *, status: str = "new", first: int = 0) -> None:
    """Make the table and put so many books in, on an engine or a `TemporaryDatabase`."""
    engine = getattr(database, "engine", database)
    async with engine.begin() as connection:
        await connection.run_sync(Book.metadata.create_all)
        for start in range(first, first + count, ROWS_PER_INSERT):
            end = min(start + ROWS_PER_INSERT, first + count)
            await connection.execute(
                insert(Book), [{"id": number, "status": status} for number in range(start, end)]
            )


def shelves(count: int) -> list[type]:
    """Return so many mapped classes, each with a table of its own, in metadata of their own."""

    class Shelves(DeclarativeBase):
        pass

    return [
        type(
            f"Shelf{number}",
            (LockColumns, ScheduleColumns, Shelves),
            {
                "__tablename__": f"shelf_{number}",
                "__annotations__": {"id": Mapped[int], "status": Mapped[str]},
                "id": mapped_column(primary_key=True),
                "status": mapped_column(default="new"),
            },
        )
        for number in range(count)
    ]


def pipeline_of(model: type, **settings: Any) -> HoldingPipeline:
    pipeline_class = type(f"{model.__name__}Pipeline", (HoldingPipeline,), {"model": model})
    pipeline: HoldingPipeline = pipeline_class(**settings)
    pipeline.let_go.set()
    return pipeline
