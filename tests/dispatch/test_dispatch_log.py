"""Tests of what dispatch logs and counts: where rows wait for workers, before they fail, and never
a flood.
"""

from __future__ import annotations

import asyncio
import logging

import pytest
from prometheus_client import CollectorRegistry

from rowlock import AdmissionRejected, Draining, NoWorkersAvailable, PipelineManager
from rowlock.dispatch import DispatchPipeline, PriorityLoadBalancer, WorkerBusy, WorkerGone
from rowlock.dispatch.placement import DispatchCounters, Placement
from rowlock.logs import LINES_MAX, WINDOW_S
from rowlock.telemetry.prometheus import register
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import VolumePipeline
from ..telemetry.scrapes import Series, scraped, value
from .renders import Fleet, Render, Scenes, pipeline_of, settled, submit
from .test_placement import TASK, Desk

NAME = "rowlock.dispatch.placement"


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return the levels and the texts of the lines of dispatch."""
    return [
        (record.levelname, record.getMessage()) for record in caplog.records if record.name == NAME
    ]


@virtual_time
async def test_a_row_that_finds_no_worker_is_told_before_it_fails(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator would learn that there are too few workers from rows that have failed."""
    fleet = Fleet(1)
    renders = pipeline_of(fleet, Scenes(10_000), dispatch_deadline=400, retry_interval=100)
    with caplog.at_level(logging.INFO, logger=NAME):
        async with PipelineManager(virtual_database.session_factory, [renders]) as manager:
            await submit(virtual_database, renders, "busy")
            await asyncio.sleep(2)
            caplog.clear()
            [(row, _)] = await submit(virtual_database, renders, "waits")
            await asyncio.sleep(550)
            manager.shutdown()
    told = lines(caplog)
    overflows = [line for line in told if "it is offered again in" in line[1]]
    assert all(
        f"DispatchRender: none of 1 workers accepted for row {row.id};" in text
        for _, text in overflows
    )
    levels = [level for level, _ in overflows]
    assert levels == sorted(levels)
    assert set(levels) == {"INFO", "WARNING"}
    assert ("WARNING", f"DispatchRender: row {row.id} fails: no worker has done it in time") in told
    assert [
        record.__dict__["rowlock_row_id"]
        for record in caplog.records
        if record.levelname == "WARNING"
    ]


@virtual_time
async def test_each_round_of_offers_is_told(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody could tell from a log whether a replica dispatches at all."""
    renders = pipeline_of(Fleet(2))
    with caplog.at_level(logging.INFO, logger=NAME):
        await submit(virtual_database, renders, "a", "b")
        async with PipelineManager(virtual_database.session_factory, [renders]):
            await settled(virtual_database)
            await asyncio.sleep(2 * WINDOW_S)
    assert lines(caplog) == [("INFO", "DispatchRender: rows offered: 2, workers: 2")]


@virtual_time
async def test_many_rows_that_wait_are_no_flood(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue that is full would fill the disk with lines, one for each row and each two
    minutes.
    """
    renders = pipeline_of(Fleet(0), retry_interval=10)
    keys = [f"{number:03}" for number in range(10)]
    minutes = 2
    with caplog.at_level(logging.INFO, logger=NAME):
        await submit(virtual_database, renders, *keys)
        async with PipelineManager(virtual_database.session_factory, [renders]):
            await asyncio.sleep(minutes * WINDOW_S - 1)
    told = lines(caplog)
    overflows = [text for _, text in told if "there is no worker" in text]
    shown = [text for text in overflows if text.startswith("DispatchRender")]
    assert LINES_MAX * (minutes - 1) <= len(shown) <= LINES_MAX * (minutes + 1)
    assert len(told) <= 2 * (LINES_MAX + 1) * (minutes + 1)
    assert len(overflows) > len(shown), "those that are not shown are counted"


@virtual_time
async def test_offers_are_counted_by_their_answer() -> None:
    """Nobody would see that a fleet is too small, or that its machines die."""
    counters = DispatchCounters()
    desk = Desk(a=WorkerBusy("a"), b=WorkerGone("b"), c="c")
    placement = Placement(desk, PriorityLoadBalancer(), counters)  # type: ignore[arg-type]
    await placement.place(TASK)
    desk.answers["c"] = WorkerBusy("c")
    with pytest.raises(NoWorkersAvailable):
        await placement.place(TASK)
    # Who is gone is not asked the second time.
    found = (counters.offers_accepted, counters.offers_refused, counters.offers_gone)
    assert found == (1, 3, 1)


@virtual_time
async def test_submissions_are_counted_by_their_answer(virtual_database: TemporaryDatabase) -> None:
    """Nobody would see that clients are sent away."""
    renders = DispatchPipeline(Render, handler=Scenes(1), engine=Fleet(1), max_active=1)
    manager = PipelineManager(virtual_database.session_factory, [renders, VolumePipeline()])
    registry = CollectorRegistry()
    register(manager, registry=registry)

    async def submit(key: str) -> None:
        async with virtual_database.session_factory() as session, session.begin():
            await renders.submit(session, dedup_key=key)

    await submit("a")
    await submit("a")
    with pytest.raises(AdmissionRejected):
        await submit("b")
    async with manager:
        await settled(virtual_database)
    with pytest.raises(Draining):
        await submit("c")
    series = scraped(registry)
    submissions = {one: told(series, "submissions", one) for one in SUBMISSIONS}
    assert submissions == {"admitted": 1, "attached": 1, "rejected": 1, "draining": 1}
    offers = {one: told(series, "offers", one) for one in ("accepted", "refused", "gone")}
    assert offers == {"accepted": 1, "refused": 0, "gone": 0}
    others = [
        one for one in series if "dispatch" in one[0] and ("pipeline", "VolumePipeline") in one[1]
    ]
    assert others == [], "a pipeline that dispatches nothing has no such series"


SUBMISSIONS = ("admitted", "attached", "rejected", "draining")


def told(series: Series, what: str, result: str) -> float:
    return value(series, f"dispatch_{what}_total", pipeline="DispatchRender", result=result)
