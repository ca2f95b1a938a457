"""COMMITs of several writes whose answer is lost: batches, `also`, hints, related rows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import Connection, event, func, select, text

from rowlock import Apply, Reset, Retry, events
from rowlock.leases.apply import Written
from rowlock.pipelines.writer import PendingOutcome
from rowlock.testing import TemporaryDatabase, stepping

from ..host import AttachmentPipeline, Run, RunPipeline, Volume, VolumePipeline, heard_events
from ..pipelines.blocking import until_so
from ..pipelines.related_scenes import GatheringPipeline, add_volume, attachments_of, locks_of
from ..pipelines.scenes import add, counted, is_free, read, read_all
from .test_lost_answers import committed_or_not, lost_answers


async def test_a_batch_whose_answer_was_lost_is_settled_together(
    database: TemporaryDatabase,
) -> None:
    """Each of hundreds of outcomes would be asked for in a transaction of its own, all at once."""
    await add(database, *(Run(id=number) for number in range(20)))
    begun: list[Any] = []

    def on_begin(connection: Connection) -> None:
        begun.append(connection)

    pipeline = RunPipeline(workers_num=20)
    with lost_answers(database, committed=True, times=1) as lost:
        async with stepping(database.session_factory, pipeline) as steps:
            items = await steps.fetch_once()
            event.listen(database.engine.sync_engine, "begin", on_begin)
            for item in items:
                steps.run.settler.settle_later(item, Apply({"status": "done"}))
            await steps.run.settler.wait_until_idle()
            event.remove(database.engine.sync_engine, "begin", on_begin)
            assert (counted(steps)["applied"], counted(steps)["stale"]) == (20, 0)
    assert len(lost) == 1
    assert len(begun) < 10


@committed_or_not
async def test_what_also_writes_is_there_once(database: TemporaryDatabase, committed: bool) -> None:
    """A row that `also` adds would be there twice, or without its outcome."""

    async def also(session: Any, now: Any) -> None:
        session.add(Run(id=100 + len(ran)))
        ran.append(now)

    ran: list[Any] = []
    await add(database, Run(id=1))
    with lost_answers(database, committed=committed, times=1) as lost:
        async with stepping(
            database.session_factory, RunPipeline(answer=Apply({"status": "done"}, also=also))
        ) as steps:
            await steps.fetch_once()
            await steps.work_once()
            assert counted(steps)["applied"] == 1
    assert len(lost) == 1
    rows = {row.id: row for row in await read_all(database, Run)}
    assert rows.pop(1).status == "done"
    assert list(rows) == [100 if committed else 101]


@committed_or_not
async def test_hints_of_a_settled_outcome_are_raised_once(
    database: TemporaryDatabase, committed: bool
) -> None:
    """Whoever waits for the outcome would not be told, because its answer was lost."""
    await add(database, Volume())
    hinted: list[int] = []
    with lost_answers(database, committed=committed, times=1):
        pipeline = VolumePipeline(answer=Apply({"status": "active"}, hint="Volume"))
        async with stepping(database.session_factory, pipeline) as steps:
            steps.run.context.hinter.attach("Volume", lambda: hinted.append(1))
            await steps.fetch_once()
            await steps.work_once()
    assert hinted == [1]


RELATED: list[tuple[str, Any, dict[str, Any], str]] = [
    ("Apply", lambda item, rows: Apply({"status": "active"}), {"status": "active"}, "submitted"),
    (
        "Apply",
        lambda item, rows: Apply(
            {"status": "active"}, related={row: {"status": "gathered"} for row in rows}
        ),
        {"status": "active"},
        "gathered",
    ),
    ("Retry", Retry(error="no"), {"status": "submitted"}, "submitted"),
    ("Reset", Reset(), {"status": "submitted", "lock_owner": "GatheringPipeline"}, "submitted"),
]


@committed_or_not
@pytest.mark.parametrize(
    ("name", "then", "main", "status"), RELATED, ids=[f"{i}-{o[0]}" for i, o in enumerate(RELATED)]
)
async def test_related_rows_are_written_and_freed_once(
    database: TemporaryDatabase,
    name: str,
    then: Any,
    main: dict[str, Any],
    status: str,
    committed: bool,
) -> None:
    """Related rows would stay locked, or be found missing and the outcome that is in the row be
    taken back.
    """
    volume = await add_volume(database)
    pipeline = GatheringPipeline(then=then)
    with heard_events() as heard, lost_answers(database, committed=committed, times=1) as lost:
        async with stepping(
            database.session_factory, pipeline, beside=[AttachmentPipeline()]
        ) as steps:
            await steps.fetch_once()
            await steps.work_once()
            assert counted(steps)["stale"] == 0
    assert len(lost) == 1
    assert [told.outcome for told in heard.of(events.ItemApplied)] == [name]
    after = await read(database, volume)
    assert {column: getattr(after, column) for column in main} == main
    assert {row.status for row in await attachments_of(database)} == {status}
    assert set(await locks_of(database)) <= {"Volume "}
    assert pipeline.stale == []


async def test_an_answer_lost_to_a_row_that_moved_on_is_not_applied_again(
    database: TemporaryDatabase,
) -> None:
    """A row that another replica has claimed after the COMMIT would be written a second time by
    the first one.
    """
    await add(database, Volume())
    other = VolumePipeline(min_processing_interval=0)
    async with stepping(
        database.session_factory, VolumePipeline(answer=Apply({"disk_id": "first"}))
    ) as steps:
        [item] = await steps.fetch_once()
        with lost_answers(database, committed=True, times=1) as lost:
            transact = steps.run.context.transact

            async def after_another_claim(*work: Any, **how: Any) -> Any:
                if not lost:
                    return await transact(*work, **how)
                async with stepping(database.session_factory, other) as others:
                    [taken] = await others.fetch_once()
                    assert taken.lock_token != item.lock_token
                    written = await transact(*work, **how)
                    assert (await read_all(database, Volume))[0].lock_token == taken.lock_token
                return written

            steps.run.context.transact = after_another_claim  # type: ignore[method-assign]
            await steps.work_once()
        assert (counted(steps)["applied"], counted(steps)["stale"]) == (1, 0)
    [row] = await read_all(database, Volume)
    assert (row.disk_id, is_free(row)) == ("first", True)


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_a_commit_that_is_still_under_way_is_waited_for(
    postgresql_database: TemporaryDatabase, ends: str
) -> None:
    """What the row is about to point to would be cleaned up as that of a stale result, a moment
    before it is there.
    """
    volume = Volume()
    await add(postgresql_database, volume)
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND"
        " wait_event_type = 'Lock'"
    )
    async with stepping(postgresql_database.session_factory, VolumePipeline()) as steps:
        [item] = await steps.fetch_once()
        async with postgresql_database.session_factory() as first:
            stamp = await first.scalar(select(func.now()))
            row = await first.get_one(Volume, volume.id)
            row.status, row.last_processed_at = "active", stamp
            row.lock_token = row.lock_expires_at = None
            await first.flush()
            item.lose()
            pending = PendingOutcome(
                item, Apply({"status": "active"}), stamps={stamp: Written.APPLIED}
            )
            settling = asyncio.create_task(steps.run.settler.write(pending))

            async def is_waiting() -> bool:
                async with postgresql_database.session_factory() as session:
                    return settling.done() or bool(await session.scalar(waiting))

            await until_so(is_waiting)
            assert not settling.done()
            await getattr(first, ends)()
            assert await settling is (Written.APPLIED if ends == "commit" else Written.STALE)
