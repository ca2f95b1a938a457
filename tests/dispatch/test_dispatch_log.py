"""Tests of what dispatch logs: where rows wait for workers, before they fail, and never a flood."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rowlock import PipelineManager
from rowlock.logs import LINES_MAX, WINDOW_S
from rowlock.testing import TemporaryDatabase, virtual_time

from .renders import Fleet, Scenes, pipeline_of, settled, submit

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
            await asyncio.sleep(600)
    assert lines(caplog) == [("INFO", "DispatchRender: rows offered: 2, workers: 2")]


@virtual_time
async def test_a_thousand_rows_that_wait_are_no_flood(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue that is full would fill the disk with lines, one for each row and each two
    minutes.
    """
    renders = pipeline_of(Fleet(0), retry_interval=10)
    keys = [f"{number:03}" for number in range(40)]
    minutes = 3
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
