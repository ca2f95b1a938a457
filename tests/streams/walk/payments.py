"""A stream of payments and a flow of balances, as tests of steps need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Identity, Integer, String, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock.streams.computing.buckets import BucketRange
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.computing.rows import SourceRows
from rowlock.streams.inputs.high_water import HighWater, HighWaterLook
from rowlock.streams.inputs.source import Source, SourceWatch
from rowlock.streams.range_condition import in_ranges


@dataclass(frozen=True)
class Paid:
    """An event."""

    account: str
    cents: int


class _Decoder:
    def parse(self, raw: Sequence[Any], /) -> Sequence[Any]:
        return raw

    def build(self, parsed: Sequence[Any], /) -> list[Paid]:
        return [Paid(account, cents) for account, cents in parsed]

    def column(self, parsed: Sequence[Any], name: str, /) -> list[Any]:
        return [row[("account", "cents").index(name)] for row in parsed]


class _Watch(SourceWatch):
    def __init__(self, look: HighWaterLook) -> None:
        self._look = look

    async def look(self, connection: AsyncConnection, *, recorded: int) -> HighWater:
        return await self._look.look(connection, recorded=recorded)


class PaymentSource(Source[Paid]):
    """The payments of one base."""

    def __init__(self, model: Any) -> None:
        self.name = "payments"
        self.topic = model.__name__
        self.decoder = _Decoder()
        self.table = model.__table__

    def fingerprint(self) -> str:
        return "payments"

    def watcher(self) -> SourceWatch:
        return _Watch(HighWaterLook(self.table.c.position, name=self.name))

    async def ahead(
        self, connection: AsyncConnection, *, after: int, upto: int, limit: int
    ) -> Sequence[int]:
        position = self.table.c.position
        found = (
            select(position)
            .where(position > after, position <= upto)
            .order_by(position)
            .limit(limit)
        )
        return list((await connection.scalars(found)).all())

    async def read(
        self,
        connection: AsyncConnection,
        ranges: Sequence[BucketRange],
        *,
        after: int,
        upto: int,
    ) -> SourceRows:
        c = self.table.c
        found = (
            select(c.position, c.bucket, c.account, c.cents)
            .where(c.position > after, c.position <= upto)
            .where(in_ranges(c.bucket, ranges) | c.bucket.is_(None))
            .order_by(c.position)
        )
        rows = (await connection.execute(found)).all()
        return SourceRows(
            self.name,
            [row[0] for row in rows],
            [row[1] for row in rows],
            [row[2] for row in rows],
            [(row[2], row[3]) for row in rows],
            self.decoder,
        )


def new_base() -> tuple[type[DeclarativeBase], Any]:
    """Return a base of its own, and the model of its payments."""

    class Base(DeclarativeBase):
        pass

    class Payment(Base):
        __tablename__ = "payments"
        __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012
        position: Mapped[int] = mapped_column(
            BigInteger().with_variant(Integer, "sqlite"), Identity(always=True), primary_key=True
        )
        account: Mapped[str] = mapped_column(String(50))
        cents: Mapped[int]
        bucket: Mapped[int | None]

    return Base, Payment


async def pay(
    sessions: async_sessionmaker[AsyncSession], model: Any, payments: Sequence[tuple[str, int]]
) -> None:
    """Add payments in one transaction; every third has no bucket, as of raw SQL."""
    rows = [
        {"account": account, "cents": cents, "bucket": None if n % 3 == 2 else bucket_of(account)}
        for n, (account, cents) in enumerate(payments)
    ]
    async with sessions.begin() as session:
        await session.execute(insert(model), rows)
