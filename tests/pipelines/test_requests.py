"""Requests of services: heard by pipelines once they are committed, and not before."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import (
    ModelError,
    OutcomeError,
    PipelineManager,
    events,
    pipeline_hinter,
    request_update,
)
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Attachment, Base, Run, RunPipeline, Volume, VolumePipeline, heard_events
from ..leases.holding import passing
from .scenes import add, is_claim, read

pytestmark = pytest.mark.either_database(but=["test_a_request_during_an_attempt_is_next"])


class OtherBase(DeclarativeBase):
    """Tables of this test alone."""


class Plain(OtherBase):
    __tablename__ = "plain"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def hints() -> Iterator[list[str]]:
    heard: list[str] = []
    wakes = {name: lambda name=name: heard.append(name) for name in ("Volume", "Run")}
    for name, wake in wakes.items():
        pipeline_hinter.attach(name, wake)
    yield heard
    for name, wake in wakes.items():
        pipeline_hinter.detach(name, wake)


async def test_a_hint_follows_the_commit(database: TemporaryDatabase, hints: list[str]) -> None:
    """A fetcher that looks before the commit sees nothing, and then rests."""
    [row] = await add(database, Volume())
    async with database.session_factory.begin() as session:
        assert await request_update(session, Volume, row.id, {"status": "stopping"})
        assert hints == []
    assert hints == ["Volume"]
    assert (await read(database, row)).status == "stopping"


async def test_nobody_is_told_of_a_row_that_is_not_there(
    database: TemporaryDatabase, hints: list[str]
) -> None:
    """A client that asks for what is gone would keep pipelines busy, and be told that all is
    well.
    """
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        assert await request_update(session, Volume, uuid.uuid4(), {"status": "stopping"}) is False
    assert hints == []


async def test_bad_requests_are_refused(
    sqlite_database: TemporaryDatabase, hints: list[str]
) -> None:
    """A service would overwrite a lease; or a hint would be raised for a request that was
    refused.
    """
    [row] = await add(sqlite_database, Volume())

    async with sqlite_database.session_factory.begin() as session:
        with pytest.raises(OutcomeError, match="written by rowlock"):
            await request_update(session, Volume, row.id, {"lock_owner": "me"})
        with pytest.raises(ModelError, match="has no column lock_token"):
            await request_update(session, Plain, row.id, {"status": "stopping"})
    assert hints == []


async def test_a_pipeline_at_rest_is_woken(database: TemporaryDatabase) -> None:
    """A request would wait for the next time that somebody looks."""
    await add(database, Run(id=1, status="done"))
    pipeline = RunPipeline(fetch_delays=(3600,))
    with heard_events() as heard, passing(database.engine, is_claim) as claims:
        async with PipelineManager(database.session_factory, [pipeline]):
            await claims.wait_for(1)
            async with database.session_factory.begin() as session:
                assert await request_update(session, Run, 1, {"status": "queued"})
            await heard.wait_for(events.ItemApplied)
    assert (await read(database, Run(id=1))).status == "done"


async def test_a_request_waits_for_no_lease(database: TemporaryDatabase) -> None:
    """A service would have to wait until the pipeline is done, which is what a request is there
    to avoid.
    """
    [row] = await add(database, Volume())
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        [item] = await steps.fetch_once()
        async with database.session_factory.begin() as session:
            assert await request_update(session, Volume, row.id, {"size_gb": 7})
        assert (await read(database, row)).lock_token == item.lock_token
        await steps.work_once()
    after = await read(database, row)
    assert (after.status, after.size_gb) == ("active", 7)


@pytest.mark.parametrize("outcome", ["applied", "retried"])
async def test_a_request_during_an_attempt_is_next(
    database: TemporaryDatabase, outcome: str
) -> None:
    """The row would wait for its usual interval, or for the delay of a retry, with the request
    in it.
    """
    await add(database, Run(id=1))

    async def work(item: Any) -> None:
        async with database.session_factory.begin() as session:
            await request_update(session, Run, 1, {"result": "asked"})
        if outcome == "retried":
            raise LookupError

    async with stepping(database.session_factory, RunPipeline(answer=work)) as steps:
        await steps.fetch_once()
        await steps.work_once()
        assert (await read(database, Run(id=1))).lock_token is None
        assert [item.id for item in await steps.fetch_once()] == [1]


async def test_rows_of_a_model_without_a_schedule(
    database: TemporaryDatabase, hints: list[str]
) -> None:
    """A model with the four lock columns alone could not be asked for anything."""
    [volume] = await add(database, Volume())
    [child] = await add(database, Attachment(volume_id=volume.id))
    async with database.session_factory.begin() as session:
        assert await request_update(session, Attachment, child.id, {"name": "renamed"})
    assert (await read(database, child)).name == "renamed"
    assert hints == []
