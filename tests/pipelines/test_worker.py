"""Tests of workers: every ending of `process` is settled in the row, and the worker takes the
next one.
"""

from __future__ import annotations

from typing import Any

import pytest

from rowlock import (
    Apply,
    Outcome,
    Park,
    Pipeline,
    PipelineItem,
    RelatedLockUnavailable,
    Reset,
    Retry,
    events,
)
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline, heard_events
from .scenes import add, counted, is_free, read, turns

# ---------------------------------------------------------------- outcomes


@pytest.mark.parametrize(
    ("answer", "outcome", "counter"),
    [
        (lambda item: None, "Apply", "applied"),
        (Apply(), "Apply", "applied"),
        (Apply({"status": "done"}), "Apply", "applied"),
        (Retry(error="no disk"), "Retry", "retried"),
        (Reset(), "Reset", "reset"),
        (Park("enough"), "Park", "parked"),
        (RelatedLockUnavailable(model="Disk", wanted=2, available=1), "Reset", "reset"),
    ],
)
@virtual_time
async def test_each_outcome_is_written_and_counted(
    virtual_database: TemporaryDatabase, answer: Any, outcome: str, counter: str
) -> None:
    """A row would stay locked, or the figures tell of something else."""
    [row] = await add(virtual_database, Run())
    with heard_events() as heard:
        async with stepping(virtual_database.session_factory, RunPipeline(answer=answer)) as steps:
            [item] = await steps.fetch_once()
            await steps.work_once()
            assert counted(steps)[counter] == counted(steps)["started"] == 1
            assert steps.run.statistics().tracked == 0
    after = await read(virtual_database, row)
    assert after.lock_token is None
    assert after.last_processed_at is not None
    told = [
        (event.row_id, event.lock_token, event.outcome) for event in heard.of(events.ItemApplied)
    ]
    assert told == [(row.id, item.lock_token, outcome)]
    assert [event.attempt for event in heard.of(events.ItemStarted)] == [1]


@pytest.mark.parametrize("hint", [5, [5], [None]])
@virtual_time
async def test_a_junk_hint_harms_nothing(virtual_database: TemporaryDatabase, hint: Any) -> None:
    """The worker would die of it after the commit, or the row be processed again."""
    [row] = await add(virtual_database, Run())
    async with stepping(
        virtual_database.session_factory, RunPipeline(answer=Apply(hint=hint))
    ) as steps:
        await steps.fetch_once()
        await steps.work_once()
    assert is_free(await read(virtual_database, row))


# ---------------------------------------------------------------- plain functions


class PlainPipeline(Pipeline[Volume]):
    """Works in a thread.

    Attributes:
        answer: what it returns, or raises.
    """

    model = Volume
    answer: Any = Apply({"status": "active"})

    def ready(self) -> Any:
        return Volume.status == "submitted"

    def process(self, item: PipelineItem[Volume]) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


async def test_a_plain_function_is_settled_like_a_coroutine(
    sqlite_database: TemporaryDatabase,
) -> None:
    """A host with blocking code would be left out."""
    [row] = await add(sqlite_database, Volume())
    async with stepping(sqlite_database.session_factory, PlainPipeline()) as steps:
        await steps.fetch_once()
        await steps.work_once()
    assert (await read(sqlite_database, row)).status == "active"


# ---------------------------------------------------------------- the row


async def test_no_session_is_open_while_the_host_works(database: TemporaryDatabase) -> None:
    """A slow call to a cloud would hold a connection, and a pool of ten would be ten workers'
    limit.
    """
    checked_out: list[int] = []
    pool: Any = database.engine.pool
    [row] = await add(database, Volume())

    async def look(item: PipelineItem[Any]) -> Outcome:
        checked_out.append(pool.checkedout())
        await turns()
        checked_out.append(pool.checkedout())
        return Apply({"status": "active"})

    async with stepping(database.session_factory, VolumePipeline(answer=look)) as steps:
        await steps.fetch_once()
        await steps.work_once()
    assert checked_out == [0, 0]
    assert (await read(database, row)).status == "active"


async def test_the_row_is_detached(sqlite_database: TemporaryDatabase) -> None:
    """A host that changes the instance would write past the guard, or never learn that it wrote
    nothing.
    """
    [row] = await add(sqlite_database, Volume())

    def answer(item: PipelineItem[Any]) -> Outcome:
        item.row.size_gb = 99
        return Apply({"status": "active"})

    async with stepping(sqlite_database.session_factory, VolumePipeline(answer=answer)) as steps:
        await steps.fetch_once()
        await steps.work_once()
    after = await read(sqlite_database, row)
    assert (after.status, after.size_gb) == ("submitted", 1)
