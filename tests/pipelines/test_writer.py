"""Writing outcomes: together, each under its own guard, and through outages."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from rowlock import Apply, events
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Attachment, Run, RunPipeline, Volume, VolumePipeline, heard_events
from .scenes import add, change, faults_of, is_free, is_outcome, read, read_all
from .told import Line, repeated, told

GONE = OperationalError("", {}, Exception("the server is gone"))


async def _work_at_once(steps: Any) -> None:
    items = steps.queued
    for _ in items:
        steps.run.context.queue.get()
    await asyncio.gather(
        *(worker.work(item) for worker, item in zip(steps.run.workers, items, strict=False))
    )


async def test_one_bad_row_spoils_nobody_else(database: TemporaryDatabase) -> None:
    """A value that the database refuses would take the outcomes of its neighbours with it."""
    await add(database, *(Run(id=number) for number in range(1, 9)))

    def answer(item: Any) -> Apply:
        return Apply({"status": None if item.id == 3 else "done"})

    async with stepping(
        database.session_factory, RunPipeline(answer=answer, workers_num=10)
    ) as steps:
        await steps.fetch_once()
        await _work_at_once(steps)
    rows = {row.id: row for row in await read_all(database, Run)}
    assert {number for number, row in rows.items() if row.status == "done"} == {1, 2, 4, 5, 6, 7, 8}
    assert all(is_free(row) for row in rows.values())
    assert rows[3].attempts == 1
    assert "IntegrityError" in rows[3].last_error


async def test_outcomes_of_many_workers_share_transactions(database: TemporaryDatabase) -> None:
    """Each outcome would cost a COMMIT of its own."""
    await add(database, *(Volume() for _ in range(20)))
    engine = database.engine
    async with stepping(database.session_factory, VolumePipeline(workers_num=20)) as steps:
        await steps.fetch_once()
        with faults_of(engine) as faults:
            await _work_at_once(steps)
            assert len(faults.committed) <= 6
    assert all(row.status == "active" for row in await read_all(database, Volume))


async def test_also_is_part_of_the_transaction(database: TemporaryDatabase) -> None:
    """A row that `also` writes would be there without the outcome, or the other way round."""

    def answer(item: Any) -> Apply:
        async def also(session: Any, now: Any) -> None:
            session.add(Attachment(volume_id=item.id, name=now.isoformat()))
            if item.row.size_gb == 13:
                raise RuntimeError("no such disk")

        return Apply({"status": "active"}, also=also)

    good, bad = Volume(size_gb=1), Volume(size_gb=13)
    await add(database, good, bad)
    async with stepping(database.session_factory, VolumePipeline(answer=answer)) as steps:
        await steps.fetch_once()
        await steps.work_all()
    attachments = await read_all(database, Attachment)
    after = await read(database, good)
    assert [(row.volume_id, row.name) for row in attachments] == [
        (good.id, after.last_processed_at.isoformat())
    ]
    assert ((await read(database, bad)).status, is_free(await read(database, bad))) == (
        "submitted",
        True,
    )


async def test_a_stale_outcome_writes_and_hints_nothing(database: TemporaryDatabase) -> None:
    """A result computed by a holder that lost its row would be seen in part."""
    volume = Volume()
    token = uuid.uuid4()
    also_ran = []

    async def answer(item: Any) -> Apply:
        async def also(session: Any, now: Any) -> None:
            also_ran.append(now)

        await change(database, volume, lock_token=token)
        return Apply({"status": "active"}, also=also, hint=["Volume"])

    await add(database, volume)
    pipeline = VolumePipeline(answer=answer)
    hinted = []
    async with stepping(database.session_factory, pipeline) as steps:
        steps.run.context.hinter.attach("Volume", lambda: hinted.append(1))
        await steps.fetch_once()
        await steps.work_once()
    row = await read(database, volume)
    assert (row.status, row.lock_token) == ("submitted", token)
    assert (also_ran, hinted) == ([], [])
    assert [type(outcome) for _, outcome in pipeline.stale] == [Apply]


async def test_hints_of_an_outcome_come_after_its_commit(database: TemporaryDatabase) -> None:
    """A pipeline would look for rows that nobody can see yet, and then rest."""
    await add(database, Volume())
    seen = []
    async with stepping(
        database.session_factory, VolumePipeline(answer=Apply(hint=Volume))
    ) as steps:
        with faults_of(database.engine) as faults:
            before = []
            steps.run.context.hinter.attach("Volume", lambda: seen.append(len(faults.committed)))
            await steps.fetch_once()
            before.append(len(faults.committed))
            await steps.work_once()
    assert len(seen) == 1
    assert seen[0] > before[0]


@virtual_time
async def test_an_outage_is_waited_out(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A short outage would cost the result of a long piece of work."""
    database = virtual_database
    await add(database, Volume())
    with faults_of(database.engine) as faults, heard_events() as heard:

        def answer(item: Any) -> Apply:
            faults.fail(GONE, when=is_outcome)
            asyncio.get_running_loop().call_later(5, faults.heal)
            return Apply({"status": "active"})

        async with stepping(database.session_factory, VolumePipeline(answer=answer)) as steps:
            await steps.fetch_once()
            item = await steps.work_once()
    assert len(heard.of(events.ItemApplied)) == 1
    assert [row.status for row in await read_all(database, Volume)] == ["active"]
    text = f"VolumePipeline: writing the outcome of row {item.id} is tried again"
    of_it = {"pipeline": "VolumePipeline", "row_id": item.id}
    again = told(caplog, "tried again")
    tries = again[-1].extra["tries"]
    assert 1 < tries < 20, "it backs off"
    assert again == repeated(Line(text, {**of_it, "tries": 1}, repr(GONE)), tries - 1, tries=tries)


async def test_a_locked_row_does_not_hold_up_the_others(
    postgresql_database: TemporaryDatabase,
) -> None:
    """One row in somebody's long transaction would hold up the outcomes of all others."""
    busy, *free = await add(postgresql_database, *(Volume() for _ in range(5)))
    with heard_events() as heard:
        async with stepping(postgresql_database.session_factory, VolumePipeline()) as steps:
            await steps.fetch_once()
            async with postgresql_database.session_factory.begin() as session:
                await session.execute(
                    select(Volume).where(Volume.id == busy.id).with_for_update(key_share=True)
                )
                work = asyncio.create_task(_work_at_once(steps))
                applied = await heard.wait_for(events.ItemApplied, count=4)
                assert {event.row_id for event in applied} == {row.id for row in free}
            await work
    assert all(row.status == "active" for row in await read_all(postgresql_database, Volume))
