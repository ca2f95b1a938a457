"""Tests of a machine that sleeps: its monotonic clock, and trust with it, stand still while leases
end by the database's clock.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from rowlock import PipelineHinter, PipelineItem, PipelineManager
from rowlock.errors import PipelineError
from rowlock.pipelines import heartbeater
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Attachment, AttachmentPipeline, Run, RunPipeline, Volume, VolumePipeline
from .scenes import add, change, counted, faults_of, hang, is_claim, is_free, read, until

ROWS = 3
DOWN = ConnectionRefusedError("down")
SLEPT_S = 40.0


async def _end_leases(database: TemporaryDatabase, *models: type[Any]) -> None:
    async with database.session_factory.begin() as session:
        past = datetime.now(UTC) - timedelta(hours=1)
        for model in models or (Run,):
            await session.execute(update(model).values(lock_expires_at=past))


def _part_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeater, "ahead_of_monotonic", lambda: (0.0, SLEPT_S))


async def test_a_claim_leaves_out_what_its_own_replica_has_in_hand(
    database: TemporaryDatabase,
) -> None:
    """A machine that slept, or a database's clock that was set, would have one process work twice
    on the same rows. Queued, running and settling rows are left out, and take no place of others.
    """
    rows = await add(database, *(Run() for _ in range(ROWS)))
    pipeline = RunPipeline(answer=hang, workers_num=1, queue_upper_limit_factor=ROWS)
    pipeline.start(database.session_factory, PipelineHinter())
    run = pipeline.run
    await until(lambda: len(run.heartbeater) == ROWS and pipeline.items)
    tokens = {item.lock_token for item in run.heartbeater.tracked()}
    await _end_leases(database)
    [other] = await add(database, Run())
    await run.fetcher.fetch_once(1)
    assert {item.id for item in run.heartbeater.tracked()} == {row.id for row in (*rows, other)}
    assert tokens < {item.lock_token for item in run.heartbeater.tracked()}
    assert counted_of(run)["recovered"] == 0
    await run.drain(0)
    assert all([is_free(await read(database, row)) for row in rows])


async def test_a_row_that_another_replica_freed_is_left_out_while_work_on_it_runs(
    database: TemporaryDatabase,
) -> None:
    """The old attempt, which does not know yet that its lease is over, would run beside a new
    one.
    """
    [row] = await add(database, Run())
    pipeline = RunPipeline(answer=hang)
    pipeline.start(database.session_factory, PipelineHinter())
    await until(lambda: pipeline.items)
    await change(database, row, lock_token=None, lock_owner=None, lock_expires_at=None)
    assert await pipeline.run.fetcher.fetch_once(1) == 0
    await pipeline.run.drain(0)


async def test_leases_that_ended_in_a_sleep_are_lost_before_anything_is_claimed(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work goes on from the start once the old attempt has ended: nobody died, so no attempt is
    counted.
    """
    [row] = await add(database, Run())
    seen: list[tuple[int, bool, bool]] = []

    async def work(item: PipelineItem[Any]) -> Any:
        seen.append((item.attempt, item.prev_lock_expired, pipeline.running > 1))
        return await hang() if len(seen) == 1 else pipeline.usual_answer(item)

    pipeline = RunPipeline(answer=work)
    pipeline.start(database.session_factory, PipelineHinter())
    await until(lambda: seen)
    await _end_leases(database)
    _part_clocks(monkeypatch)
    pipeline.hint()
    await until(lambda: counted_of(pipeline.run)["applied"])
    assert seen == [(1, False, False)] * 2
    assert counted_of(pipeline.run)["leases_lost"] == 1
    await pipeline.run.drain(0)
    assert (await read(database, row)).attempts == 0


async def test_related_rows_are_lost_before_another_pipeline_claims_them(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipeline of related rows would work on them beside the item of the same replica that
    holds them.
    """
    [volume] = await add(database, Volume())
    [row] = await add(database, Attachment(volume_id=volume.id))

    class Locking(VolumePipeline):
        locks = (Attachment,)

        async def process(self, item: PipelineItem[Any]) -> Any:
            await item.lock_related(Attachment, Attachment.volume_id == item.id)
            return await super().process(item)

    beside: list[int] = []

    def note(item: PipelineItem[Any]) -> Any:
        beside.append(volumes.running)
        return attachments.usual_answer(item)

    # It fetches when it is hinted: in between the leases have ended and the clocks are one.
    attachments = AttachmentPipeline(answer=note, fetch_delays=[3600])
    volumes = Locking(answer=hang)
    async with PipelineManager(database.session_factory, [volumes, attachments]) as manager:
        await until(lambda: volumes.running)
        await _end_leases(database, Volume, Attachment)
        _part_clocks(monkeypatch)
        attachments.hint()
        await until(lambda: beside)
        assert beside == [0]
        await manager.drain(0)
    assert is_free(await read(database, row))


async def test_a_wall_clock_that_was_set_costs_no_lease(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clocks part as after a sleep; the leases are renewed, and work goes on."""
    await add(database, Run(), Run())
    async with stepping(database.session_factory, RunPipeline()) as steps:
        await steps.fetch_once(1)
        _part_clocks(monkeypatch)
        assert len(await steps.fetch_once(1)) == 1
        assert (counted(steps)["renewals"], counted(steps)["leases_lost"]) == (1, 0)
        await steps.fetch_once(1)
        assert counted(steps)["renewals"] == 1, "once is enough"
        await steps.work_once()
        await steps.work_once()
        assert counted(steps)["applied"] == 2


async def test_nothing_is_claimed_after_a_sleep_until_the_leases_are_known(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network of a machine that wakes up may be away for seconds."""
    await add(database, Run(), Run())
    async with stepping(database.session_factory, RunPipeline()) as steps:
        await steps.fetch_once(1)
        _part_clocks(monkeypatch)
        with faults_of(database.engine) as faults:
            faults.fail(DOWN, when=lambda statement: not is_claim(statement))
            with pytest.raises(PipelineError, match="slept"):
                await steps.fetch_once(1)
            assert faults.count(is_claim) == 0
        assert len(await steps.fetch_once(1)) == 1


def counted_of(run: Any) -> dict[str, int]:
    counters: dict[str, int] = run.statistics().counters
    return counters
