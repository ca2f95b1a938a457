"""A lease is broken by a person who has seen it, and by what was seen alone."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

import pytest
from sqlalchemy import text

from rowlock import Apply, Outcome, PipelineItem
from rowlock.leases.release import break_lease
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Attachment, Volume, VolumePipeline
from ..pipelines.related_scenes import GatheringPipeline, add_volume, attachments_of
from ..pipelines.scenes import add, change, is_free, read
from .ground import VOLUMES, claimed

ATTACHMENTS = LeasedTable.of(Attachment)


class SeenLease(NamedTuple):
    owner: str | None
    token: str | None


async def broken(database: TemporaryDatabase, row: Any, seen: SeenLease, **options: Any) -> bool:
    async with database.session_factory.begin() as session:
        return await break_lease(session, LeasedTable.of(type(row)), row.id, seen=seen, **options)


def seen_on(row: Any) -> SeenLease:
    return SeenLease(row.lock_owner, row.lock_token and str(row.lock_token))


async def test_a_lease_that_is_as_seen_is_broken(database: TemporaryDatabase) -> None:
    """A row of a holder that is gone would wait for the end of its lease."""
    volume, other = await add(database, Volume(), Volume())
    await claimed(database)
    volume, other = await read(database, volume), await read(database, other)
    assert await broken(database, volume, seen_on(volume))
    assert is_free(await read(database, volume))
    assert (await read(database, other)).lock_token == other.lock_token
    assert [item.id for item in await claimed(database)] == [volume.id]


@pytest.mark.parametrize(
    "changed", [{"lock_token": uuid.uuid4()}, {"lock_owner": "Other"}, {"lock_token": None}]
)
async def test_a_lease_that_has_changed_is_another_holders(
    database: TemporaryDatabase, changed: dict[str, Any]
) -> None:
    """A person would take the row from whoever has it by now."""
    [volume] = await add(database, Volume())
    await claimed(database)
    volume = await read(database, volume)
    await change(database, volume, **changed)
    assert not await broken(database, volume, seen_on(volume))
    there = await read(database, volume)
    assert {name: getattr(there, name) for name in changed} == changed
    assert there.lock_expires_at == volume.lock_expires_at


async def test_a_free_row_that_was_claimed_meanwhile_is_left_alone(
    database: TemporaryDatabase,
) -> None:
    """What was seen as free would be taken from its first holder."""
    [volume] = await add(database, Volume())
    seen = seen_on(volume)
    await claimed(database)
    assert not await broken(database, volume, seen)
    assert not is_free(await read(database, volume))


async def test_a_reservation_is_ended(database: TemporaryDatabase) -> None:
    """A row that was left by a pipeline which no longer exists would wait to be swept."""
    [volume] = await add(database, Volume(lock_owner="OldPipeline"))
    assert await broken(database, volume, seen_on(volume))
    assert is_free(await read(database, volume))


async def test_a_live_lease_may_be_spared(database_with_clock: TemporaryDatabase) -> None:
    """A holder at work would lose its row to somebody who has forced nothing."""
    [volume] = await add(database_with_clock, Volume())
    await claimed(database_with_clock)
    volume = await read(database_with_clock, volume)
    assert not await broken(database_with_clock, volume, seen_on(volume), only_ended=True)
    database_with_clock.clock.advance(31)
    assert await broken(database_with_clock, volume, seen_on(volume), only_ended=True)


async def test_the_holder_writes_nothing_more(database: TemporaryDatabase) -> None:
    """An attempt that a person has ended would be written over the next one's."""
    [volume] = await add(database, Volume())

    async def break_at_work(item: PipelineItem[Any]) -> Outcome:
        assert await broken(database, volume, seen_on(await read(database, volume)))
        return Apply({"status": "active"})

    pipeline = VolumePipeline(answer=break_at_work)
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_once()
    assert len(pipeline.stale) == 1
    assert (await read(database, volume)).status == "submitted"


async def test_rows_that_its_holder_has_locked_for_it_are_freed(
    database: TemporaryDatabase,
) -> None:
    """Children would stay with a parent that has no holder until their leases end."""
    volume, beside = [await add_volume(database, attachments=2) for _ in range(2)]
    async with stepping(database.session_factory, GatheringPipeline()) as steps:
        for item in await steps.fetch_once(2):
            await item.lock_related(Attachment, Attachment.volume_id == item.id)
        seen = seen_on(await read(database, volume))
        assert await broken(database, volume, seen, related=[ATTACHMENTS])
        freed = {row.volume_id for row in await attachments_of(database) if is_free(row)}
        held = {row.volume_id for row in await attachments_of(database) if not is_free(row)}
        assert (freed, held) == ({volume.id}, {beside.id})


async def test_a_related_row_that_is_locked_is_not_waited_for(
    postgresql_database: TemporaryDatabase,
) -> None:
    """The row that is in hand would be kept from everybody by one long transaction on a child."""
    volume = await add_volume(postgresql_database, attachments=1)
    async with stepping(postgresql_database.session_factory, GatheringPipeline()) as steps:
        [item] = await steps.fetch_once()
        [child] = await item.lock_related(Attachment, Attachment.volume_id == item.id)
        seen = seen_on(await read(postgresql_database, volume))
        async with postgresql_database.session_factory.begin() as session:
            await session.get_one(Attachment, child.id, with_for_update=True)
            async with postgresql_database.session_factory.begin() as breaking:
                # To wait would be an error here instead of a hang.
                await breaking.execute(text("SET LOCAL lock_timeout = '2s'"))
                assert await break_lease(
                    breaking, VOLUMES, volume.id, seen=seen, related=[ATTACHMENTS]
                )
        assert is_free(await read(postgresql_database, volume))
        assert not is_free(await read(postgresql_database, child))
