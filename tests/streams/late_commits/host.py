"""The host of the late commits: three streams that all writers add to, and one flow over them.

A plain table, a table of two partitions, and a log. Each row has a number of its own, so what the
flow has read is compared with what is there.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    DDL,
    BigInteger,
    Column,
    Identity,
    String,
    Table,
    UniqueConstraint,
    event,
    select,
)
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock.streams import (
    EventBatch,
    EventColumns,
    EventLog,
    StepContext,
    StreamFlow,
    Streams,
    TableSource,
)

WRITER_CHARS_MAX: Final = 40
SECTIONS: Final = 2
CACHED: Final = 20
"""How many positions a session takes at once where the sequence has a cache."""


@dataclass(frozen=True, slots=True)
class Noted:
    """What is known of a row: who wrote it, and which of the writer's rows it is."""

    writer: str
    number: int


class Base(DeclarativeBase):
    """Of the host's tables."""


class Arrival(EventColumns, Base):
    __tablename__ = "arrivals"
    __table_args__ = (UniqueConstraint("writer", "number"),)
    __stream_key__ = "writer"
    writer: Mapped[str] = mapped_column(String(WRITER_CHARS_MAX))
    number: Mapped[int]


class Sectioned(Base):
    """A row of the table of two partitions."""

    __table__ = Table(
        "sectioned_arrivals",
        Base.metadata,
        Column("position", BigInteger, primary_key=True, autoincrement=True),
        Column("section", BigInteger, primary_key=True, autoincrement=False),
        Column("writer", String(WRITER_CHARS_MAX), nullable=False),
        Column("number", BigInteger, nullable=False),
        postgresql_partition_by="LIST (section)",
    )


for _section in range(SECTIONS):
    event.listen(
        Sectioned.__table__,
        "after_create",
        DDL(
            f"CREATE TABLE section_{_section} PARTITION OF sectioned_arrivals"
            f" FOR VALUES IN ({_section})"
        ),
    )


class Cached(Base):
    """A row of a table whose sequence has a cache, so no stream is made of it."""

    __tablename__ = "cached_arrivals"
    position: Mapped[int] = mapped_column(
        BigInteger, Identity(always=True, cache=CACHED), primary_key=True
    )
    writer: Mapped[str] = mapped_column(String(WRITER_CHARS_MAX))
    number: Mapped[int]


@dataclass(frozen=True)
class Host:
    """Streams of one base, and what is compared.

    Attributes:
        streams: with one flow.
        log: the third of the streams.
        flow: gives each row that it reads as a result.
    """

    streams: Streams
    log: EventLog[Noted]
    flow: StreamFlow[Any]

    @property
    def positions(self) -> dict[str, Column[Any]]:
        """The positions of each stream, by the name of its source."""
        return {
            "arrivals": column_of(Arrival, "position"),
            "sectioned_arrivals": column_of(Sectioned, "position"),
            self.log.name: self.streams.tables.log.c.position,
        }

    async def written(self, engine: AsyncEngine) -> Counter[Noted]:
        sectioned, log = Sectioned.__table__.c, self.streams.tables.log.c
        tables = (
            select(Arrival.writer, Arrival.number),
            select(sectioned.writer, sectioned.number),
        )
        found = Counter[Noted]()
        async with engine.connect() as connection:
            for table in tables:
                found.update(Noted(*row) for row in await connection.execute(table))
            found.update(_noted(text) for text in await connection.scalars(select(log.payload)))
        return found

    async def processed(self, engine: AsyncEngine) -> Counter[Noted]:
        """Return the rows that the flow has read, as its results say."""
        async with engine.connect() as connection:
            texts = await connection.scalars(select(self.streams.tables.outputs.c.payload))
            return Counter(_noted(text) for text in texts)


def column_of(model: type[Base], name: str) -> Column[Any]:
    column = model.__table__.c[name]
    assert isinstance(column, Column)
    return column


def _noted(payload: str) -> Noted:
    return Noted(**json.loads(payload))


def new_host() -> Host:
    """Return the host, whose flow gives each row that it reads as a result."""
    streams = Streams(Base)
    log = streams.log("arrivals_of_the_log", Noted, key=lambda one: one.writer)
    sectioned = TableSource(
        Sectioned, position=Sectioned.__table__.c.position, key=Sectioned.__table__.c.writer
    )
    flow = streams.flow("late", Arrival, sectioned, log, shards=4, poll_interval=0.1)
    seen = flow.output("seen", Noted)

    @flow.batch()
    def note(step: StepContext, batch: EventBatch[Any], _states: dict[str, Any]) -> None:
        for key, rows in batch.groups().items():
            for row in rows:
                step.emit(seen, Noted(row.writer, row.number), key=key)

    return Host(streams, log, flow)


HOST: Final = new_host()
