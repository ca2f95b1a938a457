"""A migration makes a table a stream, or gives a bucket to one that has positions already."""

from __future__ import annotations

from typing import Any

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import BigInteger, Column, Connection, Identity, Integer, MetaData, String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock.streams import (
    EventColumns,
    TableSource,
    add_event_columns,
    drop_event_columns,
    event_columns,
)
from rowlock.testing import TemporaryDatabase

from ..streams.inputs.reading import events_of
from .conftest import WithOp, picture


class NewBase(DeclarativeBase):
    """A host with a new table."""


class Payment(EventColumns, NewBase):
    __tablename__ = "payments"
    __stream_key__ = "account"
    account: Mapped[str] = mapped_column(String(50))


class OldBase(DeclarativeBase):
    """A host with a table that was there before."""


class Order(OldBase):
    __tablename__ = "orders"
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012
    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True
    )
    customer: Mapped[str] = mapped_column(String(50))
    bucket: Mapped[int | None]


def differences(connection: Connection, metadata: MetaData) -> list[Any]:
    """Return what Alembic would write into the next migration."""
    return list(compare_metadata(MigrationContext.configure(connection), metadata))


def create_payments(op: Any) -> None:
    account = Column("account", String(50), nullable=False)
    op.create_table("payments", *event_columns(), account, sqlite_autoincrement=True)


async def test_a_new_table_is_what_its_model_says(
    database: TemporaryDatabase, with_op: WithOp
) -> None:
    """The next migration would change the table, or its column would be refused as a position."""
    await with_op(create_payments)
    async with database.engine.connect() as connection:
        assert await connection.run_sync(differences, NewBase.metadata) == []
    async with database.session_factory.begin() as session:
        session.add(Payment(account="a"))
    source = TableSource(
        Payment, position=Payment.position, key=Payment.account, bucket=Payment.bucket
    )
    assert [event.account for event in await events_of(database.engine, source)] == ["a"]


async def test_a_table_with_rows_gets_a_bucket(
    database: TemporaryDatabase, with_op: WithOp
) -> None:
    """Rows that are there would be lost to flows, and the way back would leave something."""
    bucket = OldBase.metadata.tables["orders"].c.bucket
    before = MetaData()
    old = OldBase.metadata.tables["orders"].to_metadata(before)
    old._columns.remove(old.c.bucket)  # type: ignore[attr-defined]
    await database.create_tables(before)
    async with database.engine.begin() as connection:
        await connection.execute(text("INSERT INTO orders (customer) VALUES ('c1'), ('c2')"))
    first = await picture(database)
    await with_op(lambda op: add_event_columns(op, "orders"))
    async with database.engine.connect() as connection:
        assert await connection.run_sync(differences, OldBase.metadata) == []
    source = TableSource(Order, position=Order.id, key=Order.customer, bucket=bucket)
    assert [event.customer for event in await events_of(database.engine, source)] == ["c1", "c2"]
    await with_op(lambda op: drop_event_columns(op, "orders"))
    assert await picture(database) == first
