"""`Insight.rows`: pages of rows by state, within bounds, while rows move."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import ColumnElement, func, insert, update
from sqlalchemy.orm import Mapped, mapped_column

from rowlock import LockColumns, parked_index
from rowlock.insight import AppError, Insight, ListedState, RowPage, listing
from rowlock.insight.listing import NOTHING
from rowlock.testing import TemporaryDatabase

from .shop import (
    DEAD_TOKEN,
    TOKEN,
    Base,
    FleetPipeline,
    Quiet,
    Scene,
    Volume,
    VolumePipeline,
    at,
    furnish,
    insight_of,
)

pytestmark = pytest.mark.either_database(
    but=[
        "test_rows_are_listed_by_state",
        "test_each_row_is_on_one_page",
        "test_rows_that_were_never_processed_come_first",
        "test_what_no_index_finds_is_sought_within_a_bound",
        "test_a_condition_that_the_database_refuses_is_an_answer",
    ]
)

OWNED = {"lock_owner": "VolumePipeline"}
STATES: dict[str, dict[str, Any]] = {
    "due": {},
    "resting": {"due_at": at(500), "attempts": 3, "last_error": "ValueError: no"},
    "leased": OWNED | {"lock_token": TOKEN, "lock_expires_at": at(9)},
    "ended": OWNED | {"lock_token": DEAD_TOKEN, "lock_expires_at": at(-9)},
    "parked": {"parked_at": at(-5), "attempts": 20, "last_error": "gave up"},
    "settled": {"status": "active"},
    "held": {"lock_owner": "billing:1", "lock_token": DEAD_TOKEN, "lock_expires_at": at(9)},
}


class Part(LockColumns, Base):
    """A row whose key is text, and which has no time of its own."""

    __tablename__ = "parts"
    id: Mapped[str] = mapped_column(primary_key=True)


class PartPipeline(Quiet):
    model = Part

    def ready(self) -> ColumnElement[bool]:
        return Part.id != ""


async def filled(database: TemporaryDatabase, **how: Any) -> Insight:
    """Return questions to a shop with a volume in each state; their keys are 0, 1, ..."""
    await furnish(database, Scene(volume=None))
    async with database.engine.begin() as connection:
        for number, state in enumerate(STATES.values()):
            values = {"id": number, "status": "submitted", "due_at": at(-60)} | state
            await connection.execute(insert(Volume).values(values))
    return insight_of(database, pipelines=[VolumePipeline()], **how)


async def paged(insight: Insight, state: str, *, limit: int, pipeline: str) -> list[RowPage]:
    pages = [await insight.rows(pipeline, state, limit=limit)]
    while pages[-1].next is not None:
        assert len(pages) < 100
        after = pages[-1].next
        pages.append(await insight.rows(pipeline, state, limit=limit, after=after))
    return pages


def ids_of(pages: list[RowPage]) -> list[str]:
    return [row.row_id for page in pages for row in page.rows]


async def test_rows_are_listed_by_state(database_with_clock: TemporaryDatabase) -> None:
    """A person would look at rows that are not the ones in trouble."""
    insight = await filled(database_with_clock)
    found = {state: ids_of([await insight.rows("VolumePipeline", state)]) for state in ListedState}
    assert found == {
        "due": ["0", "3"],
        "resting": ["1"],
        "leased": ["2"],
        "ended": ["3"],
        "failing": ["1"],
        "parked": ["4"],
    }


async def test_a_page_is_a_table(database_with_clock: TemporaryDatabase) -> None:
    """A person would not see since when a row waits, who has it and what it failed of."""
    insight = await filled(database_with_clock, redact=lambda text: text.replace("gave", "g***"))
    leased = await insight.rows("VolumePipeline", "leased")
    title, columns, row = leased.text().split("\n")
    assert title == "VolumePipeline · leased   03:14:05 UTC"
    assert columns.split() == ["ID", "PLACE", "ATT", "HOLDER", "LAST", "ERROR"]
    assert row.startswith("2   60 s ago    0  VolumePipeline on 3fa2c1d0, ends in 9 s  ")
    parked = await insight.rows("VolumePipeline", "parked")
    assert parked.cells() == [("4", "5 s ago", "20", NOTHING, "g*** up")]
    assert parked.to_dict()["rows"][0]["parked_s"] == 5.0
    resting = await insight.rows("VolumePipeline", "resting", limit=1)
    assert resting.cells() == [("1", "in 8 min", "3", NOTHING, "ValueError: no")]


@pytest.mark.parametrize("state", ["due", "failing", "parked"])
@pytest.mark.parametrize("has_index", [False, True])
async def test_each_row_is_on_one_page(
    database_with_clock: TemporaryDatabase, state: str, *, has_index: bool
) -> None:
    """A row among others of the same time would be on two pages, or on none."""
    columns = {"due": {}, "failing": {"attempts": 1}, "parked": {"parked_at": at(-1)}}[state]
    await furnish(database_with_clock, Scene(volume=None, before=23))
    async with database_with_clock.engine.begin() as connection:
        await connection.execute(update(Volume).values(columns | {"status": "submitted"}))
    insight = insight_of(database_with_clock, pipelines=[VolumePipeline()])
    index = parked_index(Volume) if has_index else None
    try:
        pages = await paged(insight, state, limit=5, pipeline="VolumePipeline")
    finally:
        if index is not None:
            Volume.__table__.indexes.discard(index)  # type: ignore[attr-defined]
    assert ids_of(pages) == [str(1000 + number) for number in range(23)]
    assert [len(page.rows) for page in pages] == [5, 5, 5, 5, 3]


async def test_rows_that_were_never_processed_come_first(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Behind the last row without a time, a page would begin anew, or never begin."""
    await furnish(database_with_clock, Scene(volume=None))
    keys = ["../a", "b\nc", "ü/ö", "x y", "z"]
    async with database_with_clock.engine.begin() as connection:
        for number, key in enumerate(sorted(keys)):
            times = {"last_processed_at": at(number - 900)} if number > 2 else {}
            await connection.execute(insert(Part).values({"id": key} | times))
    insight = insight_of(database_with_clock, pipelines=[PartPipeline()])
    pages = await paged(insight, "due", limit=2, pipeline="PartPipeline")
    assert sorted(ids_of(pages)) == sorted(keys)
    assert ids_of(pages)[3:] == sorted(keys)[3:]
    assert "\nc" not in "".join(page.text() for page in pages).replace("\nx", "")


async def test_rows_that_stay_are_seen_once_while_others_move(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Rows that are claimed between two pages would push others past the reader."""
    await furnish(database_with_clock, Scene(volume=None, before=9))
    insight = insight_of(database_with_clock, pipelines=[VolumePipeline()])
    first = await insight.rows("VolumePipeline", "due", limit=4)
    async with database_with_clock.engine.begin() as connection:
        moved = update(Volume).where(Volume.id.in_([1001, 1006])).values(status="active")
        await connection.execute(moved)
        await connection.execute(insert(Volume).values(id=1, status="submitted", due_at=at(-5000)))
    second = await insight.rows("VolumePipeline", "due", limit=9, after=first.next)
    assert ids_of([second]) == ["1004", "1005", "1007", "1008"]


async def test_what_no_index_finds_is_sought_within_a_bound(
    database_with_clock: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of leased rows would read the whole table, or end where leased rows go on."""
    monkeypatch.setattr(listing, "COUNTED_MAX", 4)
    await furnish(database_with_clock, Scene(STATES["leased"] | {"due_at": at(5)}, before=9))
    insight = insight_of(database_with_clock, pipelines=[VolumePipeline()])
    first = await insight.rows("VolumePipeline", "leased")
    assert (first.rows, first.is_whole) == ((), False)
    assert "! sought among 4 rows in order; there may be more" in first.text()
    pages = await paged(insight, "leased", limit=50, pipeline="VolumePipeline")
    assert [ids_of([page]) for page in pages] == [[], [], ["17"]]


async def test_what_is_asked_wrongly_is_said(database_with_clock: TemporaryDatabase) -> None:
    """A forged address would end in an error of the program, or of the database."""
    insight = await filled(database_with_clock)
    for how in (
        {"pipeline": "Nobody"},
        {"state": "lost\x1b"},
        {"limit": 0},
        {"limit": 201},
        *({"after": text} for text in ("", "x", "W10", "bnVsbA", "é", "A" * 5000, "WzEsMiwz" * 9)),
    ):
        with pytest.raises(AppError):
            await insight.rows(**{"pipeline": "VolumePipeline", "state": "due"} | how)


async def test_a_condition_that_the_database_refuses_is_an_answer(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A page would be an error where a pipeline cannot claim."""

    class Torn(VolumePipeline):
        def ready(self) -> ColumnElement[bool]:
            return func.no_such_function(Volume.id) == 1

    class Raising(VolumePipeline):
        is_asked = False

        def ready(self) -> ColumnElement[bool]:
            if self.is_asked:
                raise RuntimeError("no condition")
            return super().ready()

    await furnish(database_with_clock, Scene())
    insight = insight_of(database_with_clock, pipelines=[Torn(), Raising(), FleetPipeline()])
    Raising.is_asked = True
    torn = await insight.rows("Torn", "due")
    assert torn.refused is not None
    assert "no_such_function" in torn.text()
    assert "ready() raises" in (await insight.rows("Raising", "due")).text()
    assert (await insight.rows("FleetPipeline", "failing")).text().endswith("! no rows are failing")


async def test_questions_are_planned_for_their_values(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A statement that was asked five times would be planned for any values, and each later page
    be read from the beginning of the table.
    """
    insight = await filled_without_clock(postgresql_database)
    asked = func.current_setting("plan_cache_mode")

    async def ask(connection: Any) -> str:
        return str(await connection.scalar(asked.select()))

    leased = insight.pipelines["VolumePipeline"].leased
    assert await insight.read(leased, ask) == "force_custom_plan"


async def filled_without_clock(database: TemporaryDatabase) -> Insight:
    await database.create_tables(Base.metadata)
    return insight_of(database, pipelines=[VolumePipeline()])
