"""Hosts whose models are written with SQLModel or advanced-alchemy: they take the mixins."""

from __future__ import annotations

import uuid
import warnings
from datetime import UTC
from typing import Any

import pytest
from sqlalchemy import ColumnElement, MetaData
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Mapped, mapped_column
from sqlmodel import Field, Relationship, SQLModel, col, select
from sqlmodel.ext.asyncio.session import AsyncSession

from rowlock import (
    NOW_PLACEHOLDER,
    Apply,
    LockColumns,
    Outcome,
    Pipeline,
    PipelineItem,
    PipelineManager,
    ScheduleColumns,
    events,
    hint_after_commit,
)
from rowlock.testing import TemporaryDatabase, stepping

with warnings.catch_warnings():
    # advanced-alchemy uses what SQLAlchemy 2.1 calls deprecated.
    warnings.simplefilter("ignore")
    from advanced_alchemy.base import BigIntAuditBase, UUIDAuditBase, UUIDv7Base, orm_registry
    from advanced_alchemy.repository import SQLAlchemyAsyncRepository

from ..host import heard_events
from ..pipelines.scenes import counted

METADATA = MetaData()


class Kept(SQLModel):
    metadata = METADATA


class OrderFields(Kept):
    """What clients may send: no column of rowlock's."""

    name: str
    status: str = "new"


class Order(LockColumns, ScheduleColumns, OrderFields, table=True):
    id: int | None = Field(default=None, primary_key=True)


class Parcel(OrderFields, LockColumns, table=True):
    """A SQLModel with the mixin last, a key made by Python, and a relationship."""

    id: uuid.UUID = Field(default_factory=uuid.uuid4, primary_key=True)
    order_id: int | None = Field(default=None, foreign_key="order.id")
    order: Order = Relationship()


class Invoice(LockColumns, ScheduleColumns, UUIDAuditBase):
    __tablename__ = "invoices"
    name: Mapped[str]
    status: Mapped[str] = mapped_column(default="new")


class Entry(LockColumns, BigIntAuditBase):
    __tablename__ = "entries"
    name: Mapped[str]
    status: Mapped[str] = mapped_column(default="new")


class Letter(LockColumns, ScheduleColumns, UUIDv7Base):
    __tablename__ = "letters"
    name: Mapped[str]
    status: Mapped[str] = mapped_column(default="new")


MODELS: tuple[Any, ...] = (Order, Parcel, Invoice, Entry, Letter)


class Working(Pipeline[Any]):
    """Works on new rows, and keeps what it was given."""

    def __init__(self, model: Any, **settings: Any) -> None:
        self.model = model
        self.rows: list[Any] = []
        super().__init__(**settings)

    def ready(self) -> ColumnElement[bool]:
        new: ColumnElement[bool] = self.model.status == "new"
        return new

    async def process(self, item: PipelineItem[Any]) -> Outcome:
        self.rows.append(item.row)
        values = {"status": "done", "name": f"{item.row.name}!"}
        return Apply(values, unless_changed=[self.model.name])


@pytest.fixture
async def filled(database: TemporaryDatabase) -> TemporaryDatabase:
    await database.create_tables(METADATA)
    await database.create_tables(orm_registry.metadata)
    return database


@pytest.mark.parametrize("with_row", [False, True])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
async def test_a_model_of_another_package_is_worked_on(
    filled: TemporaryDatabase, model: Any, *, with_row: bool
) -> None:
    """A host that does not write its models with SQLAlchemy alone could not use rowlock, or would
    get half a row.
    """
    async with filled.session_factory.begin() as session:
        session.add(model(name="a"))
    pipeline = Working(model)
    async with stepping(filled.session_factory, pipeline) as steps:
        steps.run.context.claims_rows = with_row and pipeline.leased.is_plain
        await steps.fetch_once()
        await steps.work_all()
        assert counted(steps)["applied"] == 1
    [given] = pipeline.rows
    assert isinstance(given, model)
    assert (given.name, given.status, given.lock_owner) == ("a", "new", "Working")
    async with filled.session_factory() as session:
        after = await session.get_one(model, given.id)
        assert (after.name, after.status, after.lock_token) == ("a!", "done", None)
        assert after.last_processed_at.tzinfo is UTC


def test_columns_of_rowlock_are_no_fields() -> None:
    """A client could send lock columns, or would be shown them."""
    assert set(Order.model_fields) == {"id", "name", "status"}
    assert set(Order(name="a").model_dump()) == {"id", "name", "status"}
    assert Order.model_validate({"name": "a", "lock_owner": "mine"}).lock_owner is None
    assert "lock_token" not in str(Order.model_json_schema())


async def test_a_row_of_sqlmodel_is_a_whole_model(filled: TemporaryDatabase) -> None:
    """``item.row`` could not be compared, copied or turned into an answer."""
    async with filled.session_factory.begin() as session:
        session.add(Order(name="a"))
    pipeline = Working(Order)
    async with stepping(filled.session_factory, pipeline) as steps:
        steps.run.context.claims_rows = True
        await steps.fetch_once()
        await steps.work_all()
    [row] = pipeline.rows
    assert row.model_dump() == {"id": 1, "name": "a", "status": "new"}
    assert OrderFields.model_validate(row.model_dump()) == OrderFields(name="a")
    assert "name='a'" in repr(row)


async def test_sessions_of_sqlmodel_serve(filled: TemporaryDatabase) -> None:
    """A host that uses SQLModel's own sessions would need a second factory."""
    sessions = async_sessionmaker(filled.engine, class_=AsyncSession, expire_on_commit=False)

    class Orders(Pipeline[Order]):
        model = Order
        fetch_delays = (0.05,)

        def ready(self) -> ColumnElement[bool]:
            return col(Order.status) == "new"

        async def process(self, item: PipelineItem[Order]) -> Apply:
            async with item.session() as session:
                await session.get_one(Order, item.id)
            return Apply({col(Order.status): "done", "due_at": NOW_PLACEHOLDER})

    with heard_events() as heard:
        async with PipelineManager(sessions, [Orders()]):
            async with sessions() as session:
                session.add(Order(name="a"))
                hint_after_commit(session, Order)
                await session.commit()
            await heard.wait_for(events.ItemApplied)
            async with sessions() as session:
                assert [one.status for one in await session.exec(select(Order))] == ["done"]


async def test_stamps_of_advanced_alchemy_move(filled: TemporaryDatabase) -> None:
    """``updated_at`` would not say when an outcome was written."""

    class Invoices(SQLAlchemyAsyncRepository[Invoice]):
        model_type = Invoice

    class Working(Pipeline[Invoice]):
        model = Invoice

        def ready(self) -> ColumnElement[bool]:
            return Invoice.status == "new"

        async def process(self, item: PipelineItem[Invoice]) -> Apply:
            return Apply({Invoice.status: "done"})

    async with filled.session_factory.begin() as session:
        made = await Invoices(session=session).add(Invoice(name="a"))
        before = made.updated_at
    async with stepping(filled.session_factory, Working()) as steps:
        await steps.fetch_once()
        await steps.work_all()
    async with filled.session_factory() as session:
        after = await Invoices(session=session).get(made.id)
        assert after.status == "done"
        assert after.updated_at > before
