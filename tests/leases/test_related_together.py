"""Many related rows of one outcome: compared and written in a few statements."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import (
    JSON,
    ColumnElement,
    String,
    bindparam,
    func,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LeaseLost, LockColumns, OutcomeError, Pipeline, PipelineItem
from rowlock.leases import apply as compare_module
from rowlock.leases.apply import RelatedWrite
from rowlock.leases.related import write_related
from rowlock.pipelines.outcomes import RELATED_KINDS_MAX, check_related
from rowlock.pipelines.planner import with_onupdate_if
from rowlock.rows.lease_values import unlocked_values
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import column_values
from rowlock.testing import TemporaryDatabase, stepping

from ..pipelines.scenes import faults_of
from .ground import transact

ROWS = 25
PER_STATEMENT = 10


class PartsBase(DeclarativeBase):
    """Keeps these models out of the host's tables."""


class Shelf(LockColumns, PartsBase):
    __tablename__ = "shelves"
    id: Mapped[int] = mapped_column(primary_key=True)


class Range(LockColumns, PartsBase):
    """A related row: counted by its host's version, and stamped by nobody."""

    __tablename__ = "parts"
    id: Mapped[int] = mapped_column(primary_key=True)
    label: Mapped[str] = mapped_column(String(10), default="new")
    number: Mapped[int] = mapped_column(default=0)
    document: Mapped[Any] = mapped_column(JSON, default=dict)
    version: Mapped[int] = mapped_column(default=1)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012 - SQLAlchemy's own


class Stamped(LockColumns, PartsBase):
    """As `Range`; the host's code stamps each row that is written."""

    __tablename__ = "stamped"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(default=0)
    stamp: Mapped[uuid.UUID] = mapped_column(default=uuid.uuid4, onupdate=uuid.uuid4)
    version: Mapped[int] = mapped_column(default=1)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class ShelfPipeline(Pipeline[Any]):
    model = Shelf
    locks = (Range, Stamped)

    def ready(self) -> ColumnElement[bool]:
        return true()

    async def process(self, item: PipelineItem[Any]) -> Apply:
        return Apply()


class PartPipeline(ShelfPipeline):
    model = Range
    locks = ()

    def ready(self) -> ColumnElement[bool]:
        return ~true()


@asynccontextmanager
async def held_by_one(
    database: TemporaryDatabase, model: Any = Range, *, intent: str | None = None
) -> AsyncIterator[PipelineItem[Any]]:
    """Give an item that holds `ROWS` rows of `model`, of which services own the column `intent`."""
    await database.create_tables(PartsBase.metadata)
    async with database.session_factory.begin() as session:
        session.add_all([Shelf(id=1), *(model(id=number) for number in range(ROWS))])

    class Owned(PartPipeline):
        pass

    Owned.intent = () if intent is None else (getattr(Range, intent),)
    async with stepping(database.session_factory, ShelfPipeline(), beside=[Owned()]) as steps:
        [item] = await steps.fetch_once()
        await item.lock_related(model, true())
        yield item


def writes_of(model: Any, values_of: Callable[[int], dict[str, Any]]) -> list[RelatedWrite]:
    leased = LeasedTable.of(model)
    written = ((key, column_values(leased, values_of(key))) for key in range(ROWS))
    return [
        RelatedWrite(leased, key, with_onupdate_if(leased, values, unlocked_values(leased)))
        for key, values in written
    ]


async def written(
    database: TemporaryDatabase, item: PipelineItem[Any], writes: list[RelatedWrite]
) -> list[Any]:
    await transact(database, lambda connection: write_related(connection, item, writes))
    model = writes[0].leased.model
    async with database.session_factory() as session:
        return list(await session.scalars(select(model).order_by(model.id)))


class HoldsAll:
    def __init__(self, leased: LeasedTable) -> None:
        self.leased = leased

    def held_rows(self) -> HoldsAll:
        return self

    def find(self, named: object) -> tuple[LeasedTable, object]:
        return self.leased, named


def holding_all(model: Any) -> Any:
    return HoldsAll(LeasedTable.of(model))


@pytest.mark.parametrize("intent", ["label", "document"])
async def test_what_services_own_is_compared_for_many_rows_at_once(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch, intent: str
) -> None:
    """An outcome with many related rows would outlast its own transaction, and be tried again
    for ever.
    """
    monkeypatch.setattr(compare_module, "LEASES_PER_STATEMENT_MAX", PER_STATEMENT)
    async with held_by_one(database, intent=intent) as item:
        writes = writes_of(Range, lambda key: {"number": key})
        async with database.session_factory.begin() as session:
            await session.execute(
                update(Range).where(Range.id == ROWS - 1).values({intent: "else"})
            )
        with pytest.raises(LeaseLost):
            await written(database, item, writes)
        with faults_of(database.engine) as faults:
            rows = await written(database, item, writes[:-1])
    assert [row.number for row in rows] == [*range(ROWS - 1), 0]
    assert len(faults.sent) < ROWS / 2


@pytest.mark.parametrize(
    ("values_of", "expected"),
    [
        (lambda key: {"number": Range.number + key}, lambda key: ("new", key, {})),
        (
            lambda key: {"number": Range.number + key, "label": f"l{key}"},
            lambda key: (f"l{key}", key, {}),
        ),
        (
            lambda key: {"label": func.lower(f"A{key}"), "document": {"k": key}},
            lambda key: (f"a{key}", 0, {"k": key}),
        ),
        (
            lambda key: {"number": Range.number + key, "label": "same"},
            lambda key: ("same", key, {}),
        ),
        (lambda key: {"number": bindparam("n", key) + Range.number}, lambda key: ("new", key, {})),
        (lambda key: {"number": Range.number + [1, 0.5][key % 2]}, None),
        (
            lambda key: {"number": select(func.count() + key).select_from(Shelf).scalar_subquery()},
            lambda key: ("new", key + 1, {}),
        ),
        (lambda _: {"number": literal_column("number + 3")}, lambda _: ("new", 3, {})),
        (lambda _: {"number": Range.id, "label": "id"}, lambda key: ("id", key, {})),
    ],
    ids=[
        "sum",
        "with a value",
        "with a document",
        "with the same",
        "named",
        "of two kinds",
        "subquery",
        "literal",
        "column",
    ],
)
async def test_each_row_gets_its_own_expression(
    database: TemporaryDatabase, values_of: Any, expected: Any
) -> None:
    """Rows would get each other's values; or each be a statement, until the outcome outlasts its
    own transaction.
    """
    async with held_by_one(database) as item:
        with faults_of(database.engine) as faults:
            rows = await written(database, item, writes_of(Range, values_of))
    if expected is not None:
        assert [(row.label, row.number, row.document) for row in rows] == [
            expected(key) for key in range(ROWS)
        ]
    assert {(row.lock_token, row.version) for row in rows} == {(None, 2)}
    assert faults.count(lambda statement: "version=" in statement) <= 2


@pytest.mark.parametrize("model", [Range, Stamped])
async def test_more_kinds_than_fit_into_a_transaction_are_refused(
    database: TemporaryDatabase, model: Any
) -> None:
    """An outcome that needs more statements than its transaction has time for would be tried
    again for ever.
    """
    item = holding_all(model)
    same = {number: {"number": number} for number in range(10 * RELATED_KINDS_MAX)}
    check_related(item, same)
    several = {
        number: {"number": getattr(func, f"f{number}")()} for number in range(RELATED_KINDS_MAX)
    }
    check_related(item, several)
    with pytest.raises(OutcomeError, match=f"more than {RELATED_KINDS_MAX} kinds of values"):
        check_related(item, {**several, -1: {"number": func.one_more()}})
