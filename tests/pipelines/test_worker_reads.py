"""The loader: rows are read under their tokens, many by one SELECT."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy.orm import load_only, selectinload
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock import PipelineItem
from rowlock.clock import monotonic
from rowlock.pipelines.worker import Loader
from rowlock.testing import Steps, TemporaryDatabase, stepping, virtual_time

from ..host import Attachment, Volume, VolumePipeline
from .scenes import add, faults_of, now
from .told import Line, repeated, told

pytestmark = pytest.mark.either_database(but=["test_many_rows_are_read_by_few_statements"])


def loader_of(steps: Steps[Any]) -> Loader[Any]:
    return Loader(steps.run.context)


def is_read(statement: str) -> bool:
    return statement.startswith("SELECT") and " IN (" in statement


async def load_all(steps: Steps[Any], items: Sequence[PipelineItem[Any]]) -> list[bool]:
    loader = loader_of(steps)
    return await asyncio.gather(*(loader.load(item) for item in items))


async def test_many_rows_are_read_by_few_statements(database: TemporaryDatabase) -> None:
    """Each item would cost a round trip and a connection of its own."""
    await add(database, *(Volume() for _ in range(20)))
    async with stepping(database.session_factory, VolumePipeline()) as steps:
        items = await steps.fetch_once()
        with faults_of(database.engine) as faults:
            assert await load_all(steps, items) == [True] * 20
        assert 1 <= len([at for at, statement in faults.sent if is_read(statement)]) <= 2
        assert [item.row.id for item in items] == [item.id for item in items]
        assert [item.row.lock_token for item in items] == [item.lock_token for item in items]


@virtual_time
async def test_a_short_outage_is_waited_out(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Items in hand would be thrown away because the database was restarted."""
    await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        [item] = await steps.fetch_once()
        with faults_of(virtual_database.engine) as faults:
            faults.fail(ConnectionRefusedError("restarting"))
            asyncio.get_running_loop().call_later(10, faults.heal)
            assert await loader_of(steps).load(item)
            assert len(faults.sent) < 30, "it backs off"
    text = f"VolumePipeline: reading row {item.id} is tried again"
    of_it = {"pipeline": "VolumePipeline", "row_id": item.id}
    again = told(caplog, "tried again")
    tries = again[-1].extra["tries"]
    assert tries > 1
    line = Line(text, {**of_it, "tries": 1}, "ConnectionRefusedError('restarting')")
    assert again == repeated(line, tries - 1, tries=tries)


@virtual_time
async def test_a_read_that_hangs_is_given_up_and_named(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker would wait for ever for a connection into a black hole, and the log not say for
    what.
    """
    await add(virtual_database, Volume())
    async with stepping(
        virtual_database.session_factory, VolumePipeline(database_timeout=4)
    ) as steps:
        [item] = await steps.fetch_once()
        began_at = now()
        with faults_of(virtual_database.engine) as faults:
            faults.hang(when=is_read)
            asyncio.get_running_loop().call_later(6, faults.heal)
            assert await loader_of(steps).load(item)
        assert now() == pytest.approx(began_at + 6, abs=0.1)
    [again] = told(caplog, "tried again")
    assert "the transaction to read rows did not end within 4 s" in str(again.error)


@virtual_time
async def test_a_long_outage_is_waited_out_only_while_trust_lasts(
    virtual_database: TemporaryDatabase,
) -> None:
    """A worker would wait for a row that is no longer its own."""
    await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        [item] = await steps.fetch_once()
        with faults_of(virtual_database.engine) as faults:
            faults.fail(ConnectionRefusedError("down"))
            assert not await loader_of(steps).load(item)
        assert item.trusted_until <= now() <= item.trusted_until + 1


@virtual_time
async def test_a_long_outage_is_waited_out_for_one_lease_at_most(
    virtual_database: TemporaryDatabase,
) -> None:
    """A worker whose lease is renewed while nothing can be read would wait for ever."""
    await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        [item] = await steps.fetch_once()
        item.trusted_until += 1000  # as if it had been renewed
        began_at = now()
        with faults_of(virtual_database.engine) as faults:
            faults.fail(ConnectionRefusedError("down"))
            with pytest.raises(ConnectionRefusedError):
                await loader_of(steps).load(item)
            assert now() == pytest.approx(began_at + 30, abs=1)
            steps.run.context.grace_over = True
            tries = len(faults.sent)
            with pytest.raises(ConnectionRefusedError):
                await loader_of(steps).load(item)
            assert len(faults.sent) == tries + 1, "not when a shutdown is in a hurry"


async def test_an_error_that_does_not_pass_is_told(sqlite_database: TemporaryDatabase) -> None:
    """A worker would try for ever to read what cannot be read."""
    await add(sqlite_database, Volume())
    async with stepping(sqlite_database.session_factory, VolumePipeline()) as steps:
        [item] = await steps.fetch_once()
        with faults_of(sqlite_database.engine) as faults:
            faults.fail(ValueError("unreadable"), when=is_read)
            with pytest.raises(ValueError, match="unreadable"):
                await loader_of(steps).load(item)


class OptionPipeline(VolumePipeline):
    """Wants the attachments, and of the volume itself one column only."""

    def options(self) -> Sequence[LoaderOption]:
        return (load_only(Volume.status), selectinload(Volume.attachments))


async def test_options_say_how_the_row_is_read(database: TemporaryDatabase) -> None:
    """A detached row would raise at the first relationship that is touched."""
    volume = Volume()
    volume.attachments = [Attachment(name="b"), Attachment(name="a")]
    await add(database, volume)
    async with stepping(database.session_factory, OptionPipeline()) as steps:
        [item] = await steps.fetch_once()
        assert await loader_of(steps).load(item)
        assert [attachment.name for attachment in item.row.attachments] == ["a", "b"]


@virtual_time
async def test_a_fresh_row_is_none_once_its_lease_is_not_trusted(
    virtual_database: TemporaryDatabase,
) -> None:
    """Work would begin under a lease that may be another's."""
    await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        [item] = await steps.fetch_once()
        item.row = Volume(id=item.id)
        assert loader_of(steps).check_fresh(item, monotonic())
        item.lose()
        assert not loader_of(steps).check_fresh(item, monotonic())
