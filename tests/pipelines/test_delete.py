"""`Delete`: the row is deleted under the same guard as any outcome, with what belongs to it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, select, text

from rowlock import Apply, Delete, OutcomeError, PipelineItem, events
from rowlock.leases.apply import Written, delete_locked, deleted
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import Steps, TemporaryDatabase, crash_everywhere, stepping, virtual_time

from ..host import (
    Attachment,
    AttachmentPipeline,
    Run,
    RunPipeline,
    Volume,
    VolumePipeline,
    heard_events,
)
from ..leases import ground
from .scenes import add, change, counted, is_free, read, read_all

RUNS = LeasedTable.of(Run)


async def _work(steps: Steps[Any], rows: int = 1) -> None:
    assert len(await steps.fetch_once()) == rows
    for _ in range(rows):
        await steps.work_once()


async def _nothing(_session: Any, _now: Any) -> None: ...


@pytest.mark.parametrize("answer", [Delete(), Delete(also=_nothing)], ids=["together", "alone"])
async def test_the_rows_are_gone(database: TemporaryDatabase, answer: Delete) -> None:
    """A host would delete them by itself, outside of the guard."""
    await add(database, *(Run(id=number) for number in range(5)))
    with heard_events() as heard:
        async with stepping(database.session_factory, RunPipeline(answer=answer)) as steps:
            await _work(steps, rows=5)
            assert (counted(steps)["deleted"], counted(steps)["applied"]) == (5, 0)
            assert steps.run.statistics().tracked == 0
    assert await read_all(database, Run) == []
    assert [told.outcome for told in heard.of(events.ItemApplied)] == ["Delete"] * 5


async def test_others_of_the_same_transaction_are_written(database: TemporaryDatabase) -> None:
    """Rows that stay would be left leased beside one that goes."""
    await add(database, *(Run(id=number) for number in range(6)))
    pipeline = RunPipeline(
        answer=lambda item: Delete() if item.id % 2 else Apply({"status": "done"})
    )
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        assert await steps.work_all() == 6
    rows = await read_all(database, Run)
    assert sorted((row.id, row.status, is_free(row)) for row in rows) == [
        (number, "done", True) for number in (0, 2, 4)
    ]


@pytest.mark.parametrize("answer", [Delete(), Delete(also=_nothing)], ids=["together", "alone"])
async def test_a_row_that_somebody_else_has_stays(
    database: TemporaryDatabase, answer: Delete
) -> None:
    """The next holder would work on a row that is no more, with all that it has paid for."""
    [row] = await add(database, Run(id=1))
    pipeline = RunPipeline(answer=answer)
    async with stepping(database.session_factory, pipeline) as steps:
        [item] = await steps.fetch_once()
        await change(database, row, lock_token=RUNS.new_token())
        await steps.work_once()
        assert (counted(steps)["stale"], counted(steps)["deleted"]) == (1, 0)
    assert (await read(database, row)).lock_token not in {None, item.lock_token}


async def test_also_deletes_what_refers_to_the_row_first(database: TemporaryDatabase) -> None:
    """The foreign key would refuse the deletion, or the children would be left behind."""
    [volume] = await add(database, Volume())
    await add(database, *(Attachment(volume_id=volume.id) for _ in range(3)))

    def answer(item: PipelineItem[Any]) -> Delete:
        async def also(session: Any, _now: Any) -> None:
            await session.execute(delete(Attachment).where(Attachment.volume_id == item.id))

        return Delete(also=also)

    await database.create_tables(Volume.metadata)
    async with stepping(database.session_factory, VolumePipeline(answer=answer)) as steps:
        await _work(steps)
        assert counted(steps)["deleted"] == 1
    assert (await read_all(database, Volume), await read_all(database, Attachment)) == ([], [])


async def test_nothing_of_also_stays_if_the_row_does(database: TemporaryDatabase) -> None:
    """The children would be gone, and the row still be there."""
    [volume] = await add(database, Volume())
    await add(database, Attachment(volume_id=volume.id))

    async def also(session: Any, _now: Any) -> None:
        await session.execute(delete(Attachment))
        await session.execute(delete(Volume))

    pipeline = VolumePipeline(answer=Delete(also=also))
    async with stepping(database.session_factory, pipeline) as steps:
        await _work(steps)
        assert (counted(steps)["deleted"], counted(steps)["retried"]) == (0, 1)
    assert len(await read_all(database, Attachment)) == 1
    assert is_free(await read(database, volume))


class LastAttachment(AttachmentPipeline):
    """Deletes attachments, and notes so in their volume."""

    locks = (Volume,)

    def __init__(self, **settings: Any) -> None:
        super().__init__(answer=self._answer, **settings)

    async def _answer(self, item: PipelineItem[Any]) -> Delete:
        [volume] = await item.lock_related(Volume, Volume.id == item.row.volume_id)
        return Delete(related={volume: {"status": "detached"}}, hint=[Volume])


async def test_related_rows_are_written_and_freed(database: TemporaryDatabase) -> None:
    """They would be leased until they expire, by a row that is gone."""
    [volume] = await add(database, Volume())
    await add(database, Attachment(volume_id=volume.id))
    async with stepping(database.session_factory, LastAttachment()) as steps:
        await _work(steps)
        assert counted(steps)["deleted"] == 1
    after = await read(database, volume)
    assert (after.status, is_free(after)) == ("detached", True)
    assert await read_all(database, Attachment) == []


class KeptIfRenamed(RunPipeline):
    intent = (Run.status,)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [(RunPipeline, Delete(unless_changed=["status"])), (KeptIfRenamed, Delete())],
    ids=["unless_changed", "intent"],
)
async def test_a_row_that_was_changed_stays(
    database: TemporaryDatabase, kind: Any, answer: Delete
) -> None:
    """What a service asked for meanwhile would be deleted with the row."""
    [row] = await add(database, Run(id=1))

    async def process(_item: Any) -> Delete:
        await change(database, row, status="wanted again")
        return answer

    async with stepping(database.session_factory, kind(answer=process)) as steps:
        await _work(steps)
        assert (counted(steps)["changed"], counted(steps)["deleted"]) == (1, 0)
    after = await read(database, row)
    assert (after.status, is_free(after)) == ("wanted again", True)


async def test_a_row_that_nothing_changed_is_deleted(database: TemporaryDatabase) -> None:
    """The comparison would keep every row."""
    await add(database, Run(id=1))
    pipeline = KeptIfRenamed(answer=Delete(unless_changed=["result"]))
    async with stepping(database.session_factory, pipeline) as steps:
        await _work(steps)
    assert await read_all(database, Run) == []


# ---------------------------------------------------------------- lost answers


async def test_who_deleted_a_row_is_unknown_once_the_lease_is_over(
    database: TemporaryDatabase,
) -> None:
    """Another holder may have deleted it: both would count it, and this one's `also` may never have
    been.
    """
    await ground.add(database, Run(id=1), Run(id=2))
    first, second = await ground.claimed(database, RUNS)
    async with database.session_factory.begin() as session:
        await session.execute(delete(Run).where(Run.id == first.id))

    async def ask(connection: Any) -> dict[Any, Written]:
        return await deleted(connection, RUNS, [first, second])

    assert await ground.transact(database, ask, RUNS) == {
        first.id: Written.APPLIED,
        second.id: Written.STALE,
    }
    first.lock_expires_at -= timedelta(hours=1)
    assert (await ground.transact(database, ask, RUNS))[first.id] is Written.UNKNOWN


async def test_the_token_is_asked_for_again(database: TemporaryDatabase) -> None:
    """A row would be deleted that was not locked for its holder, by a mistake above."""
    await ground.add(database, Run(id=1), Run(id=2))
    items = await ground.claimed(database, RUNS)
    items[0].lock_token = RUNS.new_token()

    async def work(connection: Any) -> frozenset[Any]:
        return await delete_locked(connection, RUNS, items)

    assert await ground.transact(database, work, RUNS) == {items[1].id}


async def test_nobody_waits_for_a_row_to_which_something_is_added(
    postgresql_database: TemporaryDatabase,
) -> None:
    """All outcomes of a batch would wait for a long transaction that adds a child to one row."""
    await ground.add(postgresql_database, Run(id=1), Run(id=2))
    items = await ground.claimed(postgresql_database, RUNS)
    async with postgresql_database.session_factory() as other, asyncio.timeout(30):
        await other.execute(text("SELECT 1 FROM runs WHERE id = 1 FOR KEY SHARE"))

        async def work(connection: Any) -> frozenset[Any]:
            return await delete_locked(connection, RUNS, items)

        assert await ground.transact(postgresql_database, work, RUNS) == {2}
    async with postgresql_database.session_factory() as session:
        assert list(await session.scalars(select(Run.id))) == [1]


@virtual_time
async def test_a_deletion_survives_death_at_every_await(
    virtual_database: TemporaryDatabase,
) -> None:
    """A replica that dies while it deletes would leave half of it behind."""

    def build(_world: object) -> RunPipeline:
        async def answer(_item: Any) -> Delete:
            await asyncio.sleep(0)
            return Delete(also=_nothing)

        return RunPipeline(answer=answer)

    await virtual_database.create_tables(Run.metadata)
    moments = await crash_everywhere(
        virtual_database, row=Run, world=object, build=build, effects=lambda _world: {}
    )
    assert moments >= 2


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (Delete(unless_changed=["no"]), "no column 'no'"),
        (Delete(also="no"), "also must be a function"),  # type: ignore[arg-type]
        (Delete(hint=[5]), "hint takes models"),  # type: ignore[list-item]
    ],
    ids=["unless_changed", "also", "hint"],
)
async def test_what_cannot_be_done_is_refused(
    database: TemporaryDatabase, outcome: Delete, says: str
) -> None:
    """It would be found in the transaction, after the work was done."""
    [row] = await add(database, Run(id=1))
    async with stepping(database.session_factory, RunPipeline(answer=outcome)) as steps:
        await _work(steps)
    assert OutcomeError.__name__ in (await read(database, row)).last_error  # type: ignore[operator]
    assert says in ((await read(database, row)).last_error or "")
