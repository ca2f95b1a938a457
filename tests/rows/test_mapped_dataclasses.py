"""Hosts whose models are mapped dataclasses: they take the mixins."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from datetime import UTC
from typing import Any

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column, registry

from rowlock import (
    LockColumns,
    PipelineManager,
    ScheduleColumns,
    events,
)
from rowlock.dispatch import (
    COMPLETED,
    AttemptEvent,
    Completed,
    DispatchColumns,
    DispatchPipeline,
    LoopEngine,
    Task,
    dispatch_indexes,
)
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Base as PlainBase
from ..host import Run, heard_events
from ..pipelines.scenes import counted
from .test_sqlmodel import Working


class Base(MappedAsDataclass, DeclarativeBase):
    """The host's base: every model is a dataclass."""


class Positional(LockColumns, ScheduleColumns, Base):
    """Fields by position; one of them is required."""

    __tablename__ = "positional"
    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    name: Mapped[str]
    status: Mapped[str] = mapped_column(default="new")


class Named(Base, LockColumns, ScheduleColumns, kw_only=True):
    __tablename__ = "named"
    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    status: Mapped[str] = mapped_column(default="new")
    name: Mapped[str]


class Unscheduled(LockColumns, Base, unsafe_hash=True):
    __tablename__ = "unscheduled"
    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    name: Mapped[str]
    status: Mapped[str] = mapped_column(default="new")


@registry(metadata=Base.metadata).mapped_as_dataclass
class Decorated(LockColumns, ScheduleColumns):
    __tablename__ = "decorated"
    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    name: Mapped[str]
    status: Mapped[str] = mapped_column(default="new")


class Picture(LockColumns, ScheduleColumns, DispatchColumns, Base):
    __tablename__ = "pictures"
    __table_args__ = dispatch_indexes("pictures")
    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    scene: Mapped[str]


MODELS: tuple[Any, ...] = (Positional, Named, Unscheduled, Decorated)


@pytest.mark.parametrize("with_row", [False, True])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
async def test_a_mapped_dataclass_is_worked_on(
    database: TemporaryDatabase, model: Any, *, with_row: bool
) -> None:
    """A host whose models are dataclasses could not use rowlock, or only with keyword-only
    fields, or get half a row.
    """
    await database.create_tables(Base.metadata)
    row = model(name="a")
    assert dataclasses.is_dataclass(row)
    assert {field.name for field in dataclasses.fields(row)} == {"id", "name", "status"}
    async with database.session_factory.begin() as session:
        session.add(row)
    pipeline = Working(model)
    async with stepping(database.session_factory, pipeline) as steps:
        steps.run.context.claims_rows = with_row and pipeline.leased.is_plain
        await steps.fetch_once()
        await steps.work_all()
        assert counted(steps)["applied"] == 1
    [given] = pipeline.rows
    assert isinstance(given, model)
    assert (given.name, given.status, given.lock_owner) == ("a", "new", "Working")
    assert dataclasses.asdict(given) == {"id": given.id, "name": "a", "status": "new"}
    assert "status='new'" in repr(given)
    if model is not Unscheduled:
        assert (given.attempts, given.due_at.tzinfo, given.parked_at) == (0, UTC, None)
    async with database.session_factory() as session:
        after = await session.get_one(model, given.id)
        assert (after.name, after.status, after.lock_token) == ("a!", "done", None)


async def test_a_dispatched_row_may_be_a_dataclass(database: TemporaryDatabase) -> None:
    """A host whose models are dataclasses could not dispatch, or its rows would begin with
    nulls.
    """
    await database.create_tables(Base.metadata)

    async def draw(_task: Task[Picture]) -> AsyncIterator[AttemptEvent]:
        yield Completed({"scene": "drawn"})

    pictures = DispatchPipeline(Picture, handler=draw, engine=LoopEngine(2), fetch_delays=(0.05,))
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [pictures]):
            async with database.session_factory.begin() as session:
                made, fresh = await pictures.submit(session, dedup_key="a", scene="a")
                assert (made.status, made.stages, made.losses, fresh) == ("pending", {}, 0, True)
                by_hand = Picture("by hand")
                by_hand.dedup_key = "b"
                session.add(by_hand)
            pictures.hint()
            await heard.wait_for(events.ItemApplied, count=2)
    async with database.session_factory() as session:
        rows = [await session.get_one(Picture, key) for key in (1, 2)]
        assert [(row.scene, row.status, row.stages) for row in rows] == [
            ("drawn", COMPLETED, {})
        ] * 2


def test_other_models_are_no_dataclasses() -> None:
    """Serializers would take a model apart by the fields of its mixins, and lose all others."""
    assert not dataclasses.is_dataclass(LockColumns)
    assert not dataclasses.is_dataclass(Run)
    assert not dataclasses.is_dataclass(Run())
    assert not hasattr(PlainBase, "__dataclass_fields__")
    with pytest.raises(TypeError):
        dataclasses.asdict(Run())  # type: ignore[call-overload]
