"""Tests of submissions: one row for a key, within the ceiling, in the caller's transaction, on
both databases.
"""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import MappedColumn

from rowlock import (
    AdmissionRejected,
    LockColumns,
    OutcomeError,
    PipelineManager,
    ScheduleColumns,
)
from rowlock.dispatch import (
    COMPLETED,
    FAILED,
    PENDING,
    RUNNING,
    DispatchColumns,
    DispatchPipeline,
    Draining,
)
from rowlock.testing import TemporaryDatabase

from .renders import Base, Fleet, Render, Scenes, add, all_renders, now_of, submit


def pipeline_of(**settings: Any) -> DispatchPipeline[Render]:
    """Return a pipeline that is never started: what an API process has."""
    return DispatchPipeline(Render, handler=Scenes(), engine=Fleet(), **settings)


async def test_twenty_at_once_make_one_row(database: TemporaryDatabase) -> None:
    """Clients that are impatient would have the same work done many times."""
    renders = pipeline_of()
    made = await asyncio.gather(*(submit(database, renders, "a") for _ in range(20)))
    assert sorted(fresh for [(_, fresh)] in made) == [False] * 19 + [True]
    assert len({row.id for [(row, _)] in made}) == 1
    assert len(await all_renders(database)) == 1


async def test_a_settled_key_is_free_again(database: TemporaryDatabase) -> None:
    """Work could be done once and never again."""
    renders = pipeline_of()
    [(first, _)] = await submit(database, renders, "a")
    for status in (COMPLETED, FAILED):
        async with database.session_factory.begin() as session:
            await session.execute(update(Render).values(status=status))
        [(again, fresh)] = await submit(database, renders, "a")
        assert fresh
        assert again.id != first.id
        first = again


async def test_it_joins_the_callers_transaction(database: TemporaryDatabase) -> None:
    """A submission would be there although its transaction was rolled back, or end it."""
    renders = pipeline_of()
    async with database.session_factory() as session:
        row, fresh = await renders.submit(session, dedup_key="a", scene="s")
        assert (row.scene, row.status, fresh) == ("s", PENDING, True)
        assert session.in_transaction()
        row.size = 7
        again, fresh = await renders.submit(session, dedup_key="a")
        assert again is row
        assert not fresh
        await session.rollback()
    assert await all_renders(database) == []


@pytest.mark.parametrize("attaches", [True, False])
async def test_the_ceiling_is_told_before_anything_is_written(
    database: TemporaryDatabase, attaches: bool
) -> None:
    """A flood would fill the table, or a client that polls its own job would be sent away."""
    renders = pipeline_of(max_active=3, attach_at_ceiling=attaches, retry_interval=7)
    await submit(database, renders, "a", "b", "c")
    with pytest.raises(AdmissionRejected) as refusal:
        await submit(database, renders, "d")
    assert (refusal.value.active, refusal.value.ceiling) == (3, 3)
    assert len(await all_renders(database)) == 3
    if attaches:
        assert [fresh for _, fresh in await submit(database, renders, "a")] == [False]
    else:
        with pytest.raises(AdmissionRejected):
            await submit(database, renders, "a")
    async with database.session_factory.begin() as session:
        assert await renders.count_active(session) == 3
        await session.execute(
            update(Render).where(Render.dedup_key == "b").values(status=COMPLETED)
        )
        assert await renders.count_active(session) == 2
    assert [fresh for _, fresh in await submit(database, renders, "d")] == [True]


async def test_those_who_are_refused_at_once_come_back_one_by_one(
    database: TemporaryDatabase,
) -> None:
    """A flood that was shed would be back whole, as many seconds later to the second."""
    renders = pipeline_of(max_active=1, retry_interval=120)
    await submit(database, renders, "a")
    waits_s = set()
    for _ in range(20):
        with pytest.raises(AdmissionRejected) as refusal:
            await submit(database, renders, "b")
        waits_s.add(refusal.value.retry_after_s)
    assert len(waits_s) > 10
    assert min(waits_s) >= 120
    assert max(waits_s) <= 150


@pytest.mark.parametrize(
    "state",
    [
        {"status": RUNNING, "lease": timedelta(seconds=-400)},
        {"status": RUNNING, "submitted": timedelta(seconds=-400), "due": timedelta(seconds=-400)},
        {"status": PENDING, "submitted": timedelta(seconds=-20_000)},
        {"status": PENDING, "parked": True},
    ],
    ids=[
        "its holder died and nobody came",
        "it was released and nobody came",
        "its deadline is long over",
        "it was parked",
    ],
)
async def test_a_stale_row_gives_way(database: TemporaryDatabase, state: dict[str, Any]) -> None:
    """A row that nobody will ever finish would keep its key for ever."""
    now = await now_of(database)
    old = Render(
        dedup_key="a",
        status=state["status"],
        submitted_at=now + state.get("submitted", timedelta(0)),
    )
    if "due" in state:
        old.due_at = now + state["due"]
    if "lease" in state:
        old.lock_token, old.lock_owner, old.lock_expires_at = (
            uuid.uuid4(),
            "DispatchRender",
            now + state["lease"],
        )
    if "parked" in state:
        old.parked_at = now
    await add(database, old)
    [(new, fresh)] = await submit(database, pipeline_of(max_active=1), "a")
    assert fresh
    rows = {row.id: row for row in await all_renders(database)}
    assert rows[new.id].status == PENDING
    gone = rows[old.id]
    assert (gone.status, gone.superseded_by) == (FAILED, str(new.id))
    assert gone.error == "stale: no replica was working on it when it was submitted again"
    assert gone.finished_at is not None


@pytest.mark.parametrize("lease_s", [25, -10], ids=["held", "just expired"])
async def test_a_row_that_is_held_or_will_be_recovered_is_attached_to(
    database: TemporaryDatabase, lease_s: int
) -> None:
    """Work that is under way would be failed by whoever asks for it."""
    now = await now_of(database)
    lease = {"lock_token": uuid.uuid4(), "lock_owner": "DispatchRender"}
    held = Render(
        dedup_key="a", status=RUNNING, lock_expires_at=now + timedelta(seconds=lease_s), **lease
    )
    await add(database, held)
    [(row, fresh)] = await submit(database, pipeline_of(), "a")
    assert (row.id, fresh, row.status) == (held.id, False, RUNNING)


@pytest.mark.parametrize("recent", ["due_at", "last_processed_at", "started_at", "submitted_at"])
async def test_a_row_that_was_given_back_a_moment_ago_is_attached_to(
    database: TemporaryDatabase, recent: str
) -> None:
    """Hours of work would be thrown away by a client that asks in the second before the next
    attempt.
    """
    now = await now_of(database)
    long_ago = now - timedelta(hours=3)
    times = {
        "due_at": long_ago,
        "last_processed_at": long_ago,
        "started_at": long_ago,
        "submitted_at": long_ago,
    }
    if recent == "submitted_at":
        times = {"due_at": long_ago}
    old = Render(
        dedup_key="a", status=RUNNING, last_error="IntegrityError: no", **{**times, recent: now}
    )
    await add(database, old)
    [(row, fresh)] = await submit(database, pipeline_of(), "a")
    assert (row.id, fresh, row.status) == (old.id, False, RUNNING)


async def test_nothing_is_taken_while_the_replica_drains(database: TemporaryDatabase) -> None:
    """Work would be taken by a replica that will not do it."""
    renders = pipeline_of()
    async with PipelineManager(database.session_factory, [renders]):
        await submit(database, renders, "a")
    with pytest.raises(Draining) as refusal:
        await submit(database, renders, "b")
    assert refusal.value.retry_after == 30
    assert [row.dedup_key for row in await all_renders(database)] == ["a"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"status": "running"}, "status is written by the pipeline"),
        ({"lock_token": uuid.uuid4()}, "lock_token is written by rowlock"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_bad_submissions_are_refused_whole(
    database: TemporaryDatabase, values: dict[str, Any], says: str
) -> None:
    """A slip of the host would be found as a row that is never done."""
    async with database.session_factory() as session:
        with pytest.raises(OutcomeError, match=says):
            await pipeline_of().submit(session, dedup_key="a", **values)
        await session.commit()
    assert await all_renders(database) == []


@pytest.mark.parametrize(
    "column",
    [
        name
        for mixin in (LockColumns, ScheduleColumns, DispatchColumns)
        for name, column in vars(mixin).items()
        if isinstance(column, MappedColumn) and name != "dedup_key"
    ],
)
async def test_a_submission_gives_nothing_of_the_mixins(
    database: TemporaryDatabase, column: str
) -> None:
    """A row would wait for ever under the ceiling: parked by its own deadline, tried out from
    the start, held by nobody.
    """
    async with database.session_factory.begin() as session:
        with pytest.raises(OutcomeError, match=f"{column} is written by"):
            await pipeline_of().submit(session, dedup_key="a", **{column: None})
    assert await all_renders(database) == []


async def test_a_session_may_have_an_engine_for_each_class(database: TemporaryDatabase) -> None:
    """A host with several databases could not submit."""
    sessions = async_sessionmaker(binds={Base: database.engine}, expire_on_commit=False)
    async with sessions.begin() as session:
        _, fresh = await pipeline_of().submit(session, dedup_key="a")
    assert fresh
    assert len(await all_renders(database)) == 1


async def test_a_key_may_be_given(database: TemporaryDatabase) -> None:
    """Hosts that make their keys themselves could not submit."""
    key = uuid.uuid4()
    async with database.session_factory.begin() as session:
        row, _ = await pipeline_of().submit(session, dedup_key="a", id=key)
        assert row.id == key
