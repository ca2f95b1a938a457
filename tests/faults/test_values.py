"""Values that the database or its driver refuses: their own row fails and says why."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rowlock import Apply, Retry, events
from rowlock.testing import TemporaryDatabase, stepping

from ..host import heard_events
from ..pipelines.scenes import counted, is_free, read_all
from .parcels import Parcel, ParcelPipeline, add_parcels

PARCELS = 7
BAD = 4
"""The row in the middle of the batch."""


class NoText:
    """What no driver can bind."""


def circle() -> list[Any]:
    papers: list[Any] = []
    papers.append(papers)
    return papers


def nested(depth: int = 100_000) -> list[Any]:
    papers: list[Any] = []
    for _ in range(depth):
        papers = [papers]
    return papers


EVERYWHERE: list[tuple[str, dict[str, Any]]] = [
    ("null where there must be something", {"weight": None}),
    ("a check", {"weight": -1}),
    ("a unique value that is taken", {"code": "taken"}),
    ("a foreign key to nothing", {"depot_id": 99}),
    ("a foreign key that is looked at by the commit", {"next_depot_id": 99}),
    ("a lone surrogate", {"note": "\ud800"}),
    ("a number beyond all bounds", {"weight": 2**70}),
    ("bytes in JSON", {"papers": {"stamp": b"\x00"}}),
    ("JSON that contains itself", {"papers": circle()}),
    ("JSON too deep to be written", {"papers": nested()}),
    ("a key that JSON does not have", {"papers": {(1, 2): 3}}),
    ("an object", {"note": NoText()}),
    ("a text that is too long", {"label": "too long"}),
    ("a text for a number", {"weight": "many"}),
]
ON_POSTGRESQL: list[tuple[str, dict[str, Any]]] = [
    ("NUL in a text", {"note": "a\x00b"}),
    ("a number for a text", {"note": 7}),
    ("a number that does not fit", {"weight": 2**40}),
]
ONE_OF_EACH_ROAD = [case for case in EVERYWHERE if {*case[1]} & {"code", "next_depot_id", "weight"}]
"""Refused by the statement, by the commit, and by the driver."""
WRITTEN_ON_SQLITE = [case for case in ON_POSTGRESQL if "NUL" in case[0]]


def named(cases: list[tuple[str, dict[str, Any]]]) -> Any:
    return pytest.mark.parametrize(
        "values", [case[1] for case in cases], ids=[case[0] for case in cases]
    )


async def work_in_one_batch(steps: Any) -> None:
    items = steps.queued
    for _ in items:
        steps.run.context.queue.get()
    await asyncio.gather(
        *(worker.work(item) for worker, item in zip(steps.run.workers, items, strict=False))
    )
    await steps.run.settler.wait_until_idle()


async def play(
    database: TemporaryDatabase, bad: Any
) -> tuple[dict[int, Parcel], ParcelPipeline, dict[str, int]]:
    await add_parcels(database, *(Parcel(id=number) for number in range(1, PARCELS + 1)))
    async with database.session_factory.begin() as session:
        session.add(Parcel(id=100, code="taken", status="sent"))
    pipeline = ParcelPipeline(
        answer=lambda item: bad if item.id == BAD else Apply({"status": "sent", "weight": item.id}),
        workers_num=PARCELS,
    )
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await work_in_one_batch(steps)
        assert (steps.run.statistics().tracked, len(steps.run.settler)) == (0, 0)
        counters = counted(steps)
    return {row.id: row for row in await read_all(database, Parcel)}, pipeline, counters


def check_that_one_failed(rows: dict[int, Parcel], counters: dict[str, int]) -> None:
    """See that the one row failed, is free and says why, and that all others were sent."""
    failed = rows.pop(BAD)
    assert (failed.status, failed.attempts, is_free(failed)) == ("new", 1, True)
    assert failed.last_error
    del rows[100]
    assert all(
        (row.status, row.weight, is_free(row)) == ("sent", row.id, True) for row in rows.values()
    )
    assert (counters["applied"], counters["retried"], counters["stale"]) == (PARCELS - 1, 1, 0)


@named(EVERYWHERE)
async def test_what_is_refused_everywhere(
    database: TemporaryDatabase, values: dict[str, Any]
) -> None:
    """A value that the database refuses would cost its neighbours their outcomes, or its own row
    its failure.
    """
    bad = Apply({"status": "sent"} | values)
    with heard_events() as heard:
        rows, pipeline, counters = await play(database, bad)
    check_that_one_failed(rows, counters)
    assert [(item.id, outcome) for item, outcome in pipeline.stale] == [(BAD, bad)]
    assert [event.row_id for event in heard.of(events.ItemFailed)] == [BAD]
    assert heard.of(events.ItemStale) == []


@named(ON_POSTGRESQL)
async def test_what_postgresql_refuses(
    postgresql_database: TemporaryDatabase, values: dict[str, Any]
) -> None:
    """A value of the wrong kind would cost its neighbours their outcomes."""
    if values == {"note": 7} and postgresql_database.engine.dialect.driver == "psycopg":
        pytest.skip("psycopg sends a number for a text as a text")
    rows, _, counters = await play(postgresql_database, Apply({"status": "sent"} | values))
    check_that_one_failed(rows, counters)


@named(WRITTEN_ON_SQLITE)
async def test_what_sqlite_takes(
    sqlite_database: TemporaryDatabase, values: dict[str, Any]
) -> None:
    """A value that the database takes would be refused by us."""
    rows, _, counters = await play(sqlite_database, Apply({"status": "sent"} | values))
    assert counters["applied"] == PARCELS
    assert {name: getattr(rows[BAD], name) for name in values} == values


@named(ONE_OF_EACH_ROAD)
async def test_a_retry_that_cannot_be_written(
    database: TemporaryDatabase, values: dict[str, Any]
) -> None:
    """A failure that brings a bad value would leave its row locked until the lease ends."""
    rows, _, counters = await play(database, Retry(error="no", values=values))
    check_that_one_failed(rows, counters)


@named(ONE_OF_EACH_ROAD)
async def test_an_outcome_with_statements_of_its_own(
    database: TemporaryDatabase, values: dict[str, Any]
) -> None:
    """An outcome that goes alone would take another way, on which a refusal is not told."""
    ran = []

    async def also(session: Any, now: Any) -> None:
        ran.append(now)

    rows, _, counters = await play(database, Apply({"status": "sent"} | values, also=also))
    check_that_one_failed(rows, counters)


@pytest.mark.parametrize(
    "papers", [float("nan"), float("inf"), {"deep": [float("-inf")]}], ids=repr
)
async def test_numbers_that_are_none(database: TemporaryDatabase, papers: Any) -> None:
    """PostgreSQL refuses what JSON does not have; SQLite keeps it, and must return it."""
    rows, _, counters = await play(database, Apply({"status": "sent", "papers": papers}))
    if database.dialect_name == "postgresql":
        check_that_one_failed(rows, counters)
    else:
        assert repr(rows[BAD].papers) == repr(papers)


async def test_what_a_statement_of_the_host_violates(database: TemporaryDatabase) -> None:
    """What `also` breaks would be blamed on nobody, or be found only by the commit and then be
    unknown.
    """

    async def also(session: Any, now: Any) -> None:
        session.add(Parcel(id=50, next_depot_id=99))

    bad = Apply({"status": "sent"}, also=also)
    rows, pipeline, counters = await play(database, bad)
    check_that_one_failed(rows, counters)
    assert [outcome for _, outcome in pipeline.stale] == [bad]


async def test_errors_with_any_text_are_stored(database: TemporaryDatabase) -> None:
    """An error whose own text cannot be stored would leave its row locked until the lease ends."""
    rows, _, counters = await play(database, Retry(error="a\x00b\ud800" + "x" * 100_000))
    check_that_one_failed(rows, counters)


async def test_a_failure_that_comes_too_late_is_told(database: TemporaryDatabase) -> None:
    """An item would end without anybody being told how, and the figures would not add up."""
    await add_parcels(database, Parcel(id=1))

    def answer(item: Any) -> Apply:
        async def also(session: Any, now: Any) -> None:
            item.lose()
            raise OSError("no printer")

        return Apply({"status": "sent"}, also=also)

    with heard_events() as heard:
        async with stepping(database.session_factory, ParcelPipeline(answer=answer)) as steps:
            await steps.fetch_once()
            await steps.work_once()
            assert counted(steps)["stale"] == 1
    assert [event.reason for event in heard.of(events.ItemStale)] == ["stale"]
    assert heard.of(events.ItemApplied) == []
