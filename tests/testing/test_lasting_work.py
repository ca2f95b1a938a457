"""Work without an end in `run_until_settled`: it goes on beside all other, and is asked to stop."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from typing import Any

import pytest
from sqlalchemy import ColumnElement
from sqlalchemy.exc import OperationalError

from rowlock import Apply, Fetcher, Outcome, PipelineError, PipelineItem, TransactionTimeout
from rowlock.testing import TemporaryDatabase, run_until_settled, virtual_time

from ..host import Base, Run, RunPipeline, Volume, VolumePipeline

pytestmark = pytest.mark.either_database


class Lasting(RunPipeline):
    """Goes on until it is asked to stop; `steps` counts what it has done."""

    process_timeout = None
    lock_timeout = 3
    heartbeat_trigger = 2
    lease_margin = 0.3
    steps_wanted = 0
    steps = 0

    def unsettled(self) -> ColumnElement[bool]:
        return Run.attempts < self.steps_wanted

    async def process(self, item: PipelineItem[Run]) -> Outcome:
        while not item.stop_requested:
            if self.steps < self.steps_wanted:
                self.steps += 1
                async with item.session() as session, session.begin():
                    row = await item.guard(session)
                    row.attempts = self.steps
            await asyncio.sleep(0.4)
        return Apply({"status": "stopped"})


class FeedsOthers(Lasting):
    """Has a row made for another pipeline when it ends."""

    async def process(self, item: PipelineItem[Run]) -> Outcome:
        await item.wait_for_stop()
        async with item.session() as session, session.begin():
            session.add(Volume())
        return Apply({"status": "stopped"})


class Deaf(Lasting):
    async def process(self, item: PipelineItem[Run]) -> Outcome:
        await asyncio.Event().wait()
        raise AssertionError


class EndsVolumes(VolumePipeline):
    async def process(self, item: PipelineItem[Volume]) -> Outcome:
        return Apply({"status": "active"})


async def add(database: TemporaryDatabase, *rows: Any) -> None:
    """Make the tables and insert `rows`."""
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add_all(rows)


async def states(database: TemporaryDatabase, *rows: Any) -> list[str]:
    async with database.session_factory() as session:
        return [(await session.get_one(type(row), row.id)).status for row in rows]


def locked_file() -> OperationalError:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return OperationalError("UPDATE", {}, error)


class FailsFirst(Fetcher[Any]):
    """Its first claims fail, as on a machine that is starved."""

    async def fetch_once(self, limit: int) -> int:
        if failures:
            raise failures.pop()
        return await super().fetch_once(limit)


failures: list[Exception] = []


class EndsVolumesLate(EndsVolumes):
    fetcher_class = FailsFirst


async def test_a_claim_that_comes_too_late_is_made_again(database: TemporaryDatabase) -> None:
    """A host's test would fail on a machine that is busy."""
    await add(database, Volume(), Volume())
    failures[:] = [TransactionTimeout(purpose="claim rows", timeout_s=5), locked_file()]
    assert await run_until_settled(database.session_factory, [EndsVolumesLate()]) == 2


async def test_work_is_asked_to_stop_when_nothing_is_left(database: TemporaryDatabase) -> None:
    """A test of a host's would wait for such work for ever."""
    run, volume = Run(), Volume()
    await add(database, run, volume)
    pipelines = [Lasting(), EndsVolumes()]
    assert await run_until_settled(database.session_factory, pipelines) == 2
    assert await states(database, run, volume) == ["stopped", "active"]


async def test_what_work_leaves_for_others_is_worked_on(database: TemporaryDatabase) -> None:
    """Rows that such work hands on as it ends would be found by the test as they were."""
    await add(database, Run())
    pipelines = [FeedsOthers(), EndsVolumes()]
    assert await run_until_settled(database.session_factory, pipelines) == 2


def test_work_that_knows_of_more_is_waited_for(virtual_database: TemporaryDatabase) -> None:
    """It would be stopped in the middle of what a test wants to see; or, after a lease, lost."""

    @virtual_time
    async def play() -> None:
        run = Run()
        await add(virtual_database, run)
        pipeline = Lasting()
        pipeline.steps_wanted = 10
        assert await run_until_settled(virtual_database.session_factory, [pipeline]) == 1
        async with virtual_database.session_factory() as session:
            row = await session.get_one(Run, run.id)
        assert (pipeline.steps, row.status) == (10, "stopped")

    play()


@pytest.mark.parametrize("wanted", [0, 1])
def test_work_that_does_not_stop_is_cancelled(
    virtual_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch, wanted: int
) -> None:
    """It would hang, or leave a row leased by a task that goes on behind the test."""
    monkeypatch.setattr(sys.modules[run_until_settled.__module__], "ROUNDS_MAX", 20)
    monkeypatch.setattr(sys.modules[run_until_settled.__module__], "LOOKS_MAX", 20)

    @virtual_time
    async def play() -> None:
        run = Run()
        await add(virtual_database, run)
        pipeline = Deaf()
        pipeline.steps_wanted = wanted
        if wanted:
            with pytest.raises(PipelineError, match="not settled after 20 rounds"):
                await run_until_settled(virtual_database.session_factory, [pipeline])
        else:
            assert await run_until_settled(virtual_database.session_factory, [pipeline]) == 1
        async with virtual_database.session_factory() as session:
            row = await session.get_one(Run, run.id)
        assert (row.lock_token, row.status) == (None, "queued")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    play()
