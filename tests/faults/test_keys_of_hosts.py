"""Keys that a host's own type reads as objects: worked on if they are equal by value."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Integer, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from rowlock import Apply, LockColumns, ModelError, Outcome, Pipeline, PipelineItem
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Volume
from ..pipelines.scenes import add, counted, read_all

COUNT = 3


class Itself:
    def __init__(self, number: int) -> None:
        self.value = number


@dataclass(frozen=True)
class ByValue:
    value: int


class Member(enum.Enum):
    """Keys of which each is equal to itself alone, and there is one of each."""

    ZERO, ONE, TWO = range(COUNT)


class Read(TypeDecorator[Any]):
    """A number that is read as an object of a class."""

    impl = Integer
    cache_ok = True

    def __init__(self, class_: type) -> None:
        super().__init__()
        self.class_ = class_

    def process_bind_param(self, value: Any, dialect: object) -> int | None:
        return None if value is None else value.value

    def process_result_value(self, value: int | None, dialect: object) -> Any:
        return None if value is None else self.class_(value)


class Wanted(LockColumns):
    status: Mapped[str] = mapped_column(default="new")
    is_wanted: Mapped[bool] = mapped_column(default=False)


class Base(DeclarativeBase):
    """The tables of this module alone."""


class Alone(Wanted, Base):
    __tablename__ = "keys_alone"
    id: Mapped[Any] = mapped_column(Read(Itself), primary_key=True)


class Valued(Wanted, Base):
    __tablename__ = "keys_by_value"
    id: Mapped[Any] = mapped_column(Read(ByValue), primary_key=True)


class Listed(Wanted, Base):
    """A row whose key is the member of an enumeration."""

    __tablename__ = "keys_of_an_enumeration"
    id: Mapped[Any] = mapped_column(Read(Member), primary_key=True)


def pipeline_of(row_model: Any, *, locked: Any = None) -> Any:
    """Return a pipeline that ends new rows under a guard; or one that locks a row of `locked`
    before.
    """

    class KeyPipeline(Pipeline[Any]):
        model = row_model
        intent = () if locked else (row_model.is_wanted,)
        locks = (locked,) if locked else ()

        def ready(self) -> Any:
            return row_model.status.in_(["new", "submitted"])

        async def process(self, item: PipelineItem[Any]) -> Outcome:
            if locked:
                await item.lock_related(locked, locked.status == "new")
            return Apply({"status": "done"})

    return KeyPipeline(workers_num=COUNT)


async def fill(database: TemporaryDatabase, model: Any) -> None:
    await database.create_tables(Base.metadata)
    rows = [{"n": number, "no": False} for number in range(COUNT)]
    insert = f"INSERT INTO {model.__tablename__} (id, status, is_wanted) VALUES (:n, 'new', :no)"
    async with database.session_factory.begin() as session:
        await session.execute(text(insert), rows)


async def locks(database: TemporaryDatabase, model: Any) -> set[Any]:
    async with database.engine.connect() as connection:
        return set(await connection.scalars(select(model.lock_token)))


async def test_keys_that_cannot_be_found_again_are_refused(database: TemporaryDatabase) -> None:
    """Every outcome under a guard would be changed, and its row worked on again at once, for
    ever.
    """
    await fill(database, Alone)
    async with stepping(database.session_factory, pipeline_of(Alone)) as steps:
        with pytest.raises(ModelError, match="give that class __eq__ and __hash__") as refused:
            await steps.fetch_once()
        assert (refused.value.model, refused.value.column) == ("Alone", "id")
        assert not list(steps.queued)
    assert await locks(database, Alone) == {None}


async def test_related_rows_with_such_keys_are_refused(database: TemporaryDatabase) -> None:
    """They would be lost at every outcome, and their item worked on again for ever."""
    await fill(database, Alone)
    await add(database, Volume())
    async with stepping(database.session_factory, pipeline_of(Volume, locked=Alone)) as steps:
        [item] = await steps.fetch_once()
        with pytest.raises(ModelError, match="give that class __eq__ and __hash__"):
            await item.lock_related(Alone, Alone.status == "new")
        assert await locks(database, Alone) == {None}
        await steps.work_once()
        assert (counted(steps)["retried"], counted(steps)["stale"]) == (1, 0)


@pytest.mark.parametrize("model", [Valued, Listed])
async def test_keys_that_are_equal_by_value_are_worked_on(
    database: TemporaryDatabase, model: Any
) -> None:
    """A host with a class of keys of its own could not use rowlock."""
    await fill(database, model)
    async with stepping(database.session_factory, pipeline_of(model)) as steps:
        items = await steps.fetch_once()
        await asyncio.gather(
            *(worker.work(item) for worker, item in zip(steps.run.workers, items, strict=True))
        )
        await steps.run.settler.wait_until_idle()
        assert counted(steps)["applied"] == COUNT
    assert [row.status for row in await read_all(database, model)] == ["done"] * COUNT
