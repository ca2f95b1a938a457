"""The fetcher under a backlog: its claims follow one another."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from rowlock import Apply, PipelineHinter, PipelineItem, PipelineManager, events
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline, heard_events
from .scenes import Faults, add, faults_of, is_claim, now, replica, until

pytestmark = pytest.mark.either_database(but=["test_all_rows_of_a_backlog_are_worked_on"])

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def runs(count: int, *, first: int = 1000) -> list[Run]:
    return [
        Run(id=number, due_at=LONG_AGO + timedelta(seconds=number))
        for number in range(first, first + count)
    ]


def resumes(statement: str) -> bool:
    return " UNION ALL " in statement


def starts(faults: Faults) -> list[bool]:
    return [resumes(statement) for _, statement in faults.sent if is_claim(statement)]


class Slow(RunPipeline):
    """One worker with a short queue; `work_s` for each row; notes when each was begun."""

    def __init__(self, work_s: float, **settings: Any) -> None:
        self.begun_at: dict[int, float] = {}
        self.work_s = work_s
        super().__init__(
            **{"workers_num": 1, "queue_upper_limit_factor": 2, "answer": self._work} | settings
        )

    async def _work(self, item: PipelineItem[Any]) -> Apply:
        self.begun_at[item.id] = now()
        await asyncio.sleep(self.work_s)
        return Apply({"status": "done"})


# ---------------------------------------------------------------- it resumes


async def test_all_rows_of_a_backlog_are_worked_on(database: TemporaryDatabase) -> None:
    """Some of the rows that became due at one time, or were never processed, would be passed
    over.
    """
    await add(
        database,
        *(Run(id=number, due_at=LONG_AGO) for number in range(60)),
        *(Volume() for _ in range(60)),
    )
    pipelines = [RunPipeline(workers_num=2), VolumePipeline(workers_num=2)]
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, pipelines):
            await heard.wait_for(events.ItemApplied, count=120)
    for pipeline in pipelines:
        assert len({item.id for item in pipeline.items}) == len(pipeline.items) == 60


# ---------------------------------------------------------------- what stands before it


async def test_a_hinted_row_starts_before_the_backlog(database: TemporaryDatabase) -> None:
    """The most urgent row would wait until all older ones have been worked on."""
    await add(database, *runs(80))

    async def answer(item: PipelineItem[Any]) -> Apply:
        if len(pipeline.items) == 20:
            await add(database, Run(id=1, due_at=LONG_AGO))
            manager.hinter.hint_fetch(Run)
        return Apply({"status": "done"})

    pipeline = RunPipeline(workers_num=1, queue_upper_limit_factor=4, answer=answer)
    manager = PipelineManager(database.session_factory, [pipeline])
    with heard_events() as heard:
        async with manager:
            await heard.wait_for(events.ItemApplied, count=81)
    assert [item.id for item in pipeline.items].index(1) <= 20 + 4 + 4, (
        "what was queued, and one claim under way"
    )


@virtual_time
async def test_rows_of_the_dead_are_recovered_under_a_backlog(
    virtual_database: TemporaryDatabase,
) -> None:
    """They stand before the cursor and nobody hints them: they would wait until the whole
    backlog has been worked on.
    """
    await add(virtual_database, *runs(2, first=0))
    dead = Slow(0).build_run(replica(virtual_database), PipelineHinter())
    assert await dead.fetcher.fetch_once(2) == 2
    died_at = now()
    await add(virtual_database, *runs(600))
    pipeline = Slow(0.1)
    with faults_of(virtual_database.engine) as faults:
        async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
            await until(lambda: {0, 1} <= pipeline.begun_at.keys())
            await manager.drain(0)
    expired_at = died_at + 30
    assert expired_at <= pipeline.begun_at[0] <= expired_at + 0.5 + 3 * 0.1
    claims = starts(faults)
    assert sum(claims) > 0.5 * len(claims)


@virtual_time
async def test_after_a_failed_fetch_the_head_is_looked_at(
    virtual_database: TemporaryDatabase,
) -> None:
    """Rows that were leased by a claim whose answer was lost would be left to the end of the
    backlog.
    """
    await add(virtual_database, *runs(100))
    pipeline = Slow(0.001)
    with faults_of(virtual_database.engine) as faults:
        async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
            await until(lambda: len(pipeline.begun_at) == 20)
            faults.fail(OperationalError("claim", {}, Exception("away")), when=is_claim)
            await until(lambda: failed(manager))
            assert pipeline.run.fetcher._cursor.position is None, (
                "the rest alone may be shorter than claims resume"
            )
            faults.heal()
            before = len(starts(faults))
            await until(lambda: len(starts(faults)) > before)
            assert starts(faults)[before] is False
            await manager.drain(0)


def failed(manager: PipelineManager) -> int:
    return manager.statistics()["Slow"].counters["fetches_failed"]
