"""Related rows during an attempt: all or none, fresh, under the item's token."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from sqlalchemy import text

from rowlock import NOW_PLACEHOLDER, Apply, RelatedLockUnavailable, Reset, Retry
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Attachment, AttachmentPipeline, Volume
from .related_scenes import (
    ATTACHMENTS,
    GatheringPipeline,
    SharingPipeline,
    add_volume,
    at_work,
    attachments_of,
    locks_of,
    write_all,
)
from .scenes import add, change, counted, faults_of, is_free, read

# ---------------------------------------------------------------- what is locked


async def test_all_are_locked_under_the_token_of_the_item(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A related row would belong to nobody in particular, or outlive the lease that it depends
    on.
    """
    seen: list[Any] = []

    async def look(item: Any, rows: list[Attachment]) -> None:
        seen.extend(
            (row.lock_token, row.lock_owner, row.lock_expires_at)
            for row in await attachments_of(database_with_clock)
        )
        assert [row.lock_token for row in rows] == [item.lock_token] * ATTACHMENTS

    async with at_work(database_with_clock, GatheringPipeline(then=look)) as (steps, _):
        database_with_clock.clock.advance(4)
        item = await steps.work_once()
    assert seen == [(item.lock_token, "GatheringPipeline", item.lock_expires_at)] * ATTACHMENTS


async def test_the_rows_are_fresh_and_in_order(database: TemporaryDatabase) -> None:
    """A decision would rest on what the rows were when the item was claimed."""
    pipeline = GatheringPipeline()
    async with at_work(database, pipeline) as (steps, _):
        [first, *_] = await attachments_of(database)
        await change(database, first, status="changed")
        await steps.work_once()
    [rows] = pipeline.locked
    assert [row.id for row in rows] == sorted(row.id for row in rows)
    assert sorted(row.status for row in rows) == ["changed", "submitted", "submitted"]


@pytest.mark.parametrize("held", [1, ATTACHMENTS])
async def test_all_or_none(database: TemporaryDatabase, held: int) -> None:
    """A parent would hold some of its children for as long as it waits for the others."""
    pipeline, children = GatheringPipeline(), AttachmentPipeline()
    async with at_work(database, pipeline) as (steps, volume):
        async with stepping(database.session_factory, children) as busy:
            await busy.fetch_once(limit=held)
            await steps.work_once()
            assert pipeline.locked == []
            assert sum(not is_free(row) for row in await attachments_of(database)) == held
            assert counted(steps)["reset"] == 1
        after = await read(database, volume)
        assert (after.lock_token, after.lock_owner, after.lock_expires_at) == (
            None,
            "GatheringPipeline",
            None,
        )
        assert after.last_processed_at is not None


async def test_the_refusal_carries_its_numbers(database: TemporaryDatabase) -> None:
    """A host could not say what it waits for."""
    refusals: list[RelatedLockUnavailable] = []

    class Curious(GatheringPipeline):
        async def process(self, item: Any) -> Any:
            try:
                return await super().process(item)
            except RelatedLockUnavailable as refusal:
                refusals.append(refusal)
                return None

    async with (
        at_work(database, Curious()) as (steps, _),
        stepping(database.session_factory, AttachmentPipeline()) as busy,
    ):
        await busy.fetch_once(limit=1)
        await steps.work_once()
    [refusal] = refusals
    assert (refusal.model, refusal.wanted, refusal.available) == (
        "Attachment",
        ATTACHMENTS,
        ATTACHMENTS - 1,
    )


async def test_no_rows_at_all_are_no_failure(database: TemporaryDatabase) -> None:
    """A parent without children would never be processed."""
    pipeline = GatheringPipeline(then=Apply({"status": "active"}))
    async with at_work(database, pipeline, attachments=0) as (steps, volume):
        await steps.work_once()
    assert pipeline.locked == [[]]
    assert (await read(database, volume)).status == "active"


async def test_a_reset_child_never_blocks_its_parent(database: TemporaryDatabase) -> None:
    """Parent and child would come back for each other for ever."""
    pipeline = GatheringPipeline(then=write_all)
    async with at_work(database, pipeline) as (steps, _):
        async with stepping(database.session_factory, AttachmentPipeline(answer=Reset())) as busy:
            await busy.fetch_once()
            assert await busy.work_all() == ATTACHMENTS
        assert {row.lock_owner for row in await attachments_of(database)} == {"AttachmentPipeline"}
        await steps.work_once()
    assert [row.status for row in await attachments_of(database)] == ["gathered"] * ATTACHMENTS
    assert await locks_of(database) == {}


@pytest.mark.parametrize(
    ("then", "status"), [(write_all, "gathered"), (Apply({"status": "active"}), "submitted")]
)
async def test_rows_of_a_dead_holder_can_be_had(
    database_with_clock: TemporaryDatabase, then: Any, status: str
) -> None:
    """A parent would wait for a child whose own pipeline may never come back for it; and the name
    of the dead holder is no reservation that the child is given back to.
    """
    database = database_with_clock
    volume = await add_volume(database)
    await change(database, volume, status="not yet")
    async with stepping(database.session_factory, AttachmentPipeline()) as dead:
        await dead.fetch_once()
        database.clock.advance(30)
        await change(database, volume, status="submitted")
        pipeline = GatheringPipeline(then=then)
        async with stepping(database.session_factory, pipeline) as steps:
            await steps.fetch_once()
            await steps.work_once()
    assert [row.status for row in await attachments_of(database)] == [status] * ATTACHMENTS
    assert await locks_of(database) == {}


async def test_what_the_item_holds_already_counts_as_free(database: TemporaryDatabase) -> None:
    """A second look would be refused by the item's own lock."""

    async def again(item: Any, rows: list[Attachment]) -> Apply:
        some = await item.lock_related(Attachment, Attachment.name == "0")
        everything = await item.lock_related(Attachment, Attachment.volume_id == item.id)
        assert ([row.name for row in some], len(everything)) == (["0"], ATTACHMENTS)
        return write_all(item, everything)

    async with at_work(database, GatheringPipeline(then=again)) as (steps, _):
        await steps.work_once()
        assert counted(steps)["applied"] == 1
    assert await locks_of(database) == {}


async def test_the_items_own_row_is_not_among_the_related(database: TemporaryDatabase) -> None:
    """The main row would be freed twice, and its outcome taken for stale."""
    found: list[int] = []

    async def all_volumes(item: Any, rows: list[Attachment]) -> Apply:
        found.append(len(await item.lock_related(Volume, Volume.status == "submitted")))
        return Apply({"status": "active"})

    async with at_work(database, GatheringPipeline(then=all_volumes)) as (steps, volume):
        await add(database, Volume())
        await steps.work_once()
    assert found == [1]
    assert (await read(database, volume)).status == "active"
    assert await locks_of(database) == {}


# ---------------------------------------------------------------- shared rows


async def test_items_of_one_pipeline_exclude_each_other(database: TemporaryDatabase) -> None:
    """Two jobs would be placed on one instance at once."""
    inside, let_go = asyncio.Event(), asyncio.Event()
    owners: list[Any] = []

    async def stay(item: Any, rows: list[Attachment]) -> Apply:
        owners.extend(row.lock_owner for row in rows)
        inside.set()
        await let_go.wait()
        return Apply({"status": "active"})

    volume = await add_volume(database, attachments=1)
    await add(database, Volume(size_gb=2))
    pipeline = SharingPipeline(then=stay)

    async def the_only_one(item: Any) -> Any:
        return await stay(
            item, await item.lock_related(Attachment, Attachment.name == "0", shared=True)
        )

    pipeline.answer = the_only_one
    async with stepping(database.session_factory, pipeline) as steps:
        one, other = await steps.fetch_once()
        working = asyncio.create_task(steps.work_once())
        await inside.wait()
        assert await steps.work_once() is other
        assert counted(steps)["reset"] == 1
        let_go.set()
        await working
    assert owners == [f"SharingPipeline:{one.id}"]
    assert volume.id in {one.id, other.id}
    assert (await attachments_of(database))[0].lock_token is None


# ---------------------------------------------------------------- with the outcome


@pytest.mark.parametrize(
    ("then", "counter"),
    [
        (None, "applied"),
        (Apply({"status": "active"}), "applied"),
        (Retry(error="no"), "retried"),
        (Reset(), "reset"),
        (ValueError("no"), "retried"),
        (RelatedLockUnavailable(model="Disk", wanted=1, available=0), "reset"),
        ("not an outcome", "retried"),
        (Apply({"no such column": 1}), "retried"),
    ],
    ids=repr,
)
async def test_every_outcome_frees_them(
    database: TemporaryDatabase, then: Any, counter: str
) -> None:
    """A related row would stay locked by an owner that never comes."""
    async with at_work(database, GatheringPipeline(then=lambda *_: then)) as (steps, volume):
        await steps.work_once()
        assert counted(steps)[counter] == 1
    assert set(await locks_of(database)) <= {"Volume "}
    assert (await read(database, volume)).lock_token is None


async def test_they_are_written_and_freed_in_the_transaction_of_the_main_row(
    database: TemporaryDatabase,
) -> None:
    """A crash in between would leave a parent written and its children locked, or the reverse."""

    def now_in_both(item: Any, rows: list[Attachment]) -> Apply:
        return Apply(
            {"status": "active", "active_at": NOW_PLACEHOLDER},
            related={row: {"status": "gathered"} for row in rows},
        )

    async with at_work(database, GatheringPipeline(then=now_in_both)) as (steps, volume):
        with faults_of(database.engine) as faults:
            faults.fail(
                RuntimeError("refused"),
                when=lambda statement: statement.startswith("UPDATE attachments SET status"),
            )
            await steps.work_once()
        after = await read(database, volume)
        assert (after.status, after.active_at) == ("submitted", None)
        assert {row.status for row in await attachments_of(database)} == {"submitted"}
        assert counted(steps)["retried"] == 1
    assert await locks_of(database) == {}


async def test_one_time_for_all_rows(database: TemporaryDatabase) -> None:
    """What was written together would look as if it had been written one after the other."""

    def stamp(item: Any, rows: list[Attachment]) -> Apply:
        return Apply(
            {"active_at": NOW_PLACEHOLDER, "status": "active"},
            related={(Volume, other.id): {"active_at": NOW_PLACEHOLDER} for other in volumes},
        )

    volumes: list[Volume] = []

    async def gather(item: Any) -> Any:
        volumes.extend(await item.lock_related(Volume, Volume.status == "related"))
        return stamp(item, [])

    await add(database, Volume(status="related"), Volume(status="related"), Volume())
    pipeline = GatheringPipeline()
    pipeline.answer = gather
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        item = await steps.work_once()
    main = await read(database, item.row)
    assert main.last_processed_at == main.active_at is not None
    assert {(await read(database, other)).active_at for other in volumes} == {main.active_at}


async def test_related_rows_keep_what_was_not_written(database: TemporaryDatabase) -> None:
    """A service's change to another column of a related row would be lost."""

    async def meanwhile(item: Any, rows: list[Attachment]) -> Apply:
        await change(database, rows[0], name="renamed")
        return write_all(item, rows)

    async with at_work(database, GatheringPipeline(then=meanwhile)) as (steps, _):
        await steps.work_once()
    rows = await attachments_of(database)
    assert max(row.name for row in rows) == "renamed"
    assert {(row.status, row.last_processed_at) for row in rows} == {("gathered", None)}


# ---------------------------------------------------------------- not our own any more


async def test_a_related_row_that_was_lost_spoils_the_result(database: TemporaryDatabase) -> None:
    """A result would be written that rests on a lock which somebody else had."""

    async def robbed_of_a_child(item: Any, rows: list[Attachment]) -> Apply:
        async with database.session_factory.begin() as session:
            await session.execute(text("DELETE FROM attachments WHERE name = '1'"))
        return write_all(item, rows)

    pipeline = GatheringPipeline(then=robbed_of_a_child)
    async with at_work(database, pipeline) as (steps, volume):
        await steps.work_once()
        assert (counted(steps)["stale"], counted(steps)["applied"]) == (1, 0)
    after = await read(database, volume)
    assert (after.status, after.lock_token, after.lock_owner) == (
        "submitted",
        None,
        "GatheringPipeline",
    )
    assert {row.status for row in await attachments_of(database)} == {"submitted"}
    assert set(await locks_of(database)) == {"Volume "}
    assert len(pipeline.stale) == 1


@pytest.mark.parametrize(
    "outcome", [None, Retry(error="no disk"), Reset()], ids=["apply", "retry", "reset"]
)
async def test_the_lock_of_another_item_stands(database: TemporaryDatabase, outcome: Any) -> None:
    """A related row that another item of the same pipeline has taken meanwhile would be freed
    under its hands.
    """
    token = uuid.uuid4()

    async def robbed_of_a_child(item: Any, rows: list[Attachment]) -> Any:
        await change(database, rows[1], lock_token=token, name="taken")
        return outcome

    async with at_work(database, GatheringPipeline(then=robbed_of_a_child)) as (steps, _):
        await steps.work_once()
    tokens = {row.name: row.lock_token for row in await attachments_of(database)}
    assert {name for name, held in tokens.items() if held is not None} == {"taken"}
    assert tokens["taken"] == token


async def test_changed_meanwhile_frees_them_too(database: TemporaryDatabase) -> None:
    """A compare-and-set that fails would leave the children locked."""

    async def changed(item: Any, rows: list[Attachment]) -> Apply:
        await change(database, item.row, disk_id="by a service")
        return Apply(
            {"status": "active"},
            related={rows[0]: {"status": "x"}},
            unless_changed=[Volume.disk_id],
        )

    async with at_work(database, GatheringPipeline(then=changed)) as (steps, _):
        await steps.work_once()
        assert counted(steps)["changed"] == 1
    assert {row.status for row in await attachments_of(database)} == {"submitted"}
    assert await locks_of(database) == {}
