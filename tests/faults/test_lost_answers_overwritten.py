"""COMMITs whose answer is lost, of rows that somebody has written since."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from sqlalchemy import delete

from rowlock import Apply, Park, Retry, events
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Run, RunPipeline, Volume, VolumePipeline, heard_events
from ..pipelines.related_scenes import GatheringPipeline, add_volume, attachments_of, write_all
from ..pipelines.scenes import add, change, counted, is_free, read_all
from .test_lost_answers import lost_answers


async def _write(database: TemporaryDatabase) -> None:
    async with stepping(
        database.session_factory, VolumePipeline(min_processing_interval=0)
    ) as others:
        await others.fetch_once()
        await others.work_once()
        assert counted(others)["applied"] == 1


async def _delete(database: TemporaryDatabase) -> None:
    async with database.session_factory.begin() as session:
        await session.execute(delete(Volume))


@pytest.mark.parametrize("somebody", [_write, _delete], ids=["written", "deleted"])
@pytest.mark.parametrize("way", ["together", "also"])
async def test_what_was_overwritten_is_not_cleaned_up(
    database: TemporaryDatabase, way: str, somebody: Any
) -> None:
    """What the row points to would be taken away as the effect of a result that was not applied,
    though it was.
    """

    async def also(_session: Any, _now: Any) -> None: ...

    await add(database, Volume())
    pipeline = VolumePipeline(
        answer=Apply({"disk_id": "first"}, also=also if way == "also" else None)
    )
    with heard_events() as heard:
        async with stepping(database.session_factory, pipeline) as steps:
            await steps.fetch_once()
            transact = steps.run.context.transact
            with lost_answers(database, committed=True, times=1) as lost:

                async def once_somebody_was_there(*work: Any, **how: Any) -> Any:
                    if lost:
                        await somebody(database)
                    return await transact(*work, **how)

                steps.run.context.transact = once_somebody_was_there  # type: ignore[method-assign]
                await steps.work_once()
            assert (counted(steps)["applied"], counted(steps)["stale"]) == (0, 1)
    assert [event.reason for event in heard.of(events.ItemStale)] == ["unknown"]
    assert pipeline.stale == []
    assert [is_free(row) for row in await read_all(database, Volume)] == (
        [True] if somebody is _write else []
    )


@pytest.mark.parametrize(
    "answer", [Park("enough"), Retry(error="no")], ids=["Park", "the last retry"]
)
async def test_what_parked_its_row_is_told_as_parked(
    database: TemporaryDatabase, answer: Any
) -> None:
    """Whoever watches for rows that were set aside would not hear of one whose COMMIT had no
    answer.
    """
    await add(database, Run(id=1))
    with heard_events() as heard, lost_answers(database, committed=True, times=1) as lost:
        async with stepping(
            database.session_factory, RunPipeline(answer=answer, max_attempts=1)
        ) as steps:
            await steps.fetch_once()
            await steps.work_once()
            assert (counted(steps)["parked"], counted(steps)["retried"]) == (1, 0)
    assert lost == ["committed"]
    assert [told.outcome for told in heard.of(events.ItemApplied)] == ["Park"]
    [row] = await read_all(database, Run)
    assert row.parked_at is not None


@pytest.mark.parametrize("way", ["together", "also"])
async def test_a_row_that_was_changed_is_told_as_changed(
    database: TemporaryDatabase, way: str
) -> None:
    """Who looks for quarrels with services would be told of a lost lease instead."""

    async def also(_session: Any, _now: Any) -> None: ...

    async def answer(item: Any) -> Apply:
        await change(database, item.row, disk_id="a service's")
        return Apply(
            {"status": "active"}, unless_changed=["disk_id"], also=also if way == "also" else None
        )

    await add(database, Volume())
    with heard_events() as heard, lost_answers(database, committed=True, times=1) as lost:
        async with stepping(database.session_factory, VolumePipeline(answer=answer)) as steps:
            await steps.fetch_once()
            await steps.work_once()
            assert (counted(steps)["changed"], counted(steps)["stale"], len(lost)) == (1, 0, 1)
    assert [event.reason for event in heard.of(events.ItemStale)] == ["changed"]


async def test_a_related_row_that_was_lost_is_told_as_lost(database: TemporaryDatabase) -> None:
    """A row that was reset for it would be told as stale, and wait for the next poll."""

    async def rob(item: Any, rows: Any) -> Any:
        await change(database, rows[0], lock_token=uuid.uuid4())
        return write_all(item, rows)

    await add_volume(database)
    with heard_events() as heard, lost_answers(database, committed=True, times=1) as lost:
        async with stepping(database.session_factory, GatheringPipeline(then=rob)) as steps:
            await steps.fetch_once()
            await steps.work_once()
            assert len(lost) == 1
    assert [event.reason for event in heard.of(events.ItemStale)] == ["related row lost"]


async def test_a_related_row_that_was_lost_between_two_tries_is_told_as_lost(
    database: TemporaryDatabase,
) -> None:
    """The stamp of a try that was rolled back says nothing once a related row was lost: a row that
    was reset for it is told as such, whatever becomes of that COMMIT.
    """
    await add_volume(database)
    with heard_events() as heard, lost_answers(database, committed=False, times=1) as first:
        async with stepping(database.session_factory, GatheringPipeline(then=write_all)) as steps:
            await steps.fetch_once()
            writer = steps.run.settler._writer
            alone = writer.write_alone

            async def once_it_was_lost(pending: Any) -> Any:
                if first and not second:
                    [robbed, *_] = await attachments_of(database)
                    await change(database, robbed, lock_token=uuid.uuid4())
                return await alone(pending)

            writer.write_alone = once_it_was_lost  # type: ignore[method-assign]
            with lost_answers(database, committed=True, times=1) as second:
                await steps.work_once()
            assert (first, second) == (["rolled back"], ["committed"])
    assert [event.reason for event in heard.of(events.ItemStale)] == ["related row lost"]
