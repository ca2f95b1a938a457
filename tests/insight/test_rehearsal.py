"""A plan: `process` is run for a row, and nothing is written, whatever it tries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import ColumnElement, select, text

from rowlock import (
    NOW_PLACEHOLDER,
    Apply,
    ConfigurationError,
    LockWaitTimeout,
    Outcome,
    Park,
    Pipeline,
    PipelineError,
    PipelineItem,
    hold_rows,
)
from rowlock.errors import AppError
from rowlock.insight import Insight
from rowlock.insight import rehearsal as rehearsal_module
from rowlock.testing import TemporaryDatabase

from .shop import Base, Fleet, Volume

ARROW = "\N{RIGHTWARDS ARROW}"


class PlannedPipeline(Pipeline[Volume]):
    model = Volume
    rehearsable = True
    locks = (Fleet,)
    work: Callable[[PipelineItem[Volume]], Any]

    def ready(self) -> ColumnElement[bool]:
        return Volume.status == "submitted"

    async def process(self, item: PipelineItem[Volume]) -> Outcome:
        assert item.is_rehearsal
        return await type(self).work(item)  # type: ignore[no-any-return]


async def insight_with(
    database: TemporaryDatabase, work: Callable[[PipelineItem[Volume]], Any], **how: Any
) -> Insight:
    """Make volume 17 of fleet 3, and return the questions."""
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add(Fleet(id=3))
        await session.flush()
        session.add(Volume(id=17, fleet_id=3, secret="do-not-tell", attempts=2))
    PlannedPipeline.work = staticmethod(work)  # type: ignore[assignment]
    return Insight(database.session_factory, [PlannedPipeline()], **how)


async def picture(database: TemporaryDatabase) -> list[Any]:
    """Return every row of the shop, as it is."""
    async with database.engine.connect() as connection:
        tables = (Volume.__table__, Fleet.__table__)
        return [tuple(row) for table in tables for row in await connection.execute(select(table))]


async def test_a_plan_says_what_would_be_written(database: TemporaryDatabase) -> None:
    """A person would have to try it to know what it does; or see what is to be hidden."""

    async def work(item: PipelineItem[Volume]) -> Apply:
        async with item.session() as session:
            fleet = await session.get_one(Fleet, item.row.fleet_id)
            assert await item.guard(session) is not None
        [locked] = await item.lock_related(Fleet, Fleet.id == fleet.id)
        assert (locked.id, item.attempt) == (3, 3)
        values = {Volume.status: "active\x1b", "secret": "new", "due_at": NOW_PLACEHOLDER}
        return Apply(values, hint=Fleet)

    insight = await insight_with(database, work, hide=[Volume.secret])
    before = await picture(database)
    plan = await insight.rehearse("PlannedPipeline", ["17", 18])
    assert await picture(database) == before
    lines = plan.text().splitlines()
    assert lines[0] == "PlannedPipeline, rehearsed: nothing was written"
    assert lines[1].startswith("Volume 17: Apply, after ")
    assert lines[2] == f"  status: 'submitted' {ARROW} 'active\\x1b'"
    assert lines[3] == f"  secret: (hidden) {ARROW} (hidden)"
    assert lines[4].endswith(f" {ARROW} now")
    assert lines[5:] == ["  hints Fleet", "Volume 18: there is no such row"]
    assert (plan.needs_person, plan.is_complete) == (False, False)
    assert plan.to_dict()["rows"][1]["outcome"] is None


async def flushed(item: PipelineItem[Volume]) -> None:
    async with item.session() as session:
        (await session.get_one(Volume, item.id)).status = "stolen"
        await session.commit()


async def said_otherwise(item: PipelineItem[Volume]) -> None:
    """Take the protection back first, as far as the database lets anybody."""
    async with item.session() as session:
        if session.get_bind().dialect.name != "sqlite":
            await session.execute(text("SET TRANSACTION READ WRITE"))
        await session.execute(text("UPDATE volumes SET status = 'stolen'"))
        await session.commit()


async def autocommitted(item: PipelineItem[Volume]) -> None:
    async with item.session() as session:
        options = {"isolation_level": "AUTOCOMMIT"}
        connection = await session.connection(execution_options=options)
        await connection.execute(text("UPDATE volumes SET status = 'stolen'"))


async def committed_before(item: PipelineItem[Volume]) -> None:
    async with item.session() as session:
        await session.execute(select(Volume))
        await session.commit()
        await session.execute(text("UPDATE volumes SET status = 'stolen'"))
        await session.commit()


WRITES = (flushed, said_otherwise, autocommitted, committed_before)


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
async def test_whatever_it_tries_nothing_is_written(
    database: TemporaryDatabase, write: Callable[[PipelineItem[Volume]], Any]
) -> None:
    """A person who only wanted to see would have changed the database."""
    insight = await insight_with(database, write)
    before = await picture(database)
    plan = await insight.rehearse("PlannedPipeline", [17])
    assert await picture(database) == before
    [row] = plan.rows
    assert (row.outcome, plan.needs_person) == ("Retry", True)
    assert "read" in str(row.reason)


async def test_nothing_is_left_on_a_connection(postgresql_database: TemporaryDatabase) -> None:
    """Behind a pooler that gives the connection of the server to somebody else after a commit, the
    host's own transactions would only read, and no outcome could be written.
    """
    said = []

    async def ask(item: PipelineItem[Volume]) -> Outcome:
        async with item.session() as session:
            await session.execute(select(Volume))
            await session.commit()
            said.append(await session.scalar(text("SHOW transaction_read_only")))
            said.append(await session.scalar(text("SHOW default_transaction_read_only")))
        return Apply()

    await (await insight_with(postgresql_database, ask)).rehearse("PlannedPipeline", [17])
    assert said == ["on", "off"]


async def test_the_hosts_own_sessions_are_refused_to_it_alone(database: TemporaryDatabase) -> None:
    """A host's code would write by another way; or its requests would be refused meanwhile."""
    tried: list[BaseException] = []

    async def request() -> None:
        async with database.session_factory.begin() as session:
            (await session.get_one(Fleet, 3)).status = "grown"

    requests = asyncio.Queue[None]()
    answered = asyncio.Event()

    async def serve() -> None:
        await requests.get()
        await request()
        answered.set()

    async def work(item: PipelineItem[Volume]) -> Park:
        try:
            await request()
        except PipelineError as error:
            tried.append(error)
        requests.put_nowait(None)
        await answered.wait()
        return Park("seen")

    insight = await insight_with(database, work)
    server = asyncio.create_task(serve())
    plan = await insight.rehearse("PlannedPipeline", [17])
    await server
    assert [row.reason for row in plan.rows] == ["seen"]
    assert "item.session()" in str(tried[0])
    async with database.session_factory() as session:
        assert (await session.get_one(Fleet, 3)).status == "grown"
        assert (await session.get_one(Volume, 17)).lock_owner is None


async def test_a_row_is_held_meanwhile(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline would work on the row beside it; or a row at work be worked on twice."""
    owners: list[Any] = []

    async def work(item: PipelineItem[Volume]) -> Apply:
        async with item.session() as session:
            owners.append((await session.get_one(Volume, 17)).lock_owner)
        return Apply()

    insight = await insight_with(database, work)
    await insight.rehearse("PlannedPipeline", [17])
    assert owners[0].startswith("plan:")
    monkeypatch.setattr(rehearsal_module, "HOLD_WAIT", 0)
    async with hold_rows(database.session_factory, Volume, [17], owner="billing"):
        with pytest.raises(LockWaitTimeout, match="billing"):
            await insight.rehearse("PlannedPipeline", [17])


async def test_what_may_not_be_rehearsed_is_refused(sqlite_database: TemporaryDatabase) -> None:
    """A look would create a disk in the cloud."""

    async def work(item: PipelineItem[Volume]) -> Apply:
        raise AssertionError("it was run")

    insight = await insight_with(sqlite_database, work)
    with pytest.raises(AppError, match="1 to 100 rows"):
        await insight.rehearse("PlannedPipeline", [])
    insight.pipelines["PlannedPipeline"].rehearsable = False
    with pytest.raises(ConfigurationError, match="rehearsable = True"):
        await insight.rehearse("PlannedPipeline", [17])
