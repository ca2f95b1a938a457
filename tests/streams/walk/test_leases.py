"""The leases of shards as those of any pipeline: their owner's name, the end of a host, and when
nothing is left to do.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sqlalchemy import event

from rowlock import PipelineManager
from rowlock.rows.eligibility import OWNER_SEPARATOR
from rowlock.streams.program import lease_owner
from rowlock.streams.shards.pipeline import FlowPipeline
from rowlock.testing import TemporaryDatabase

from ...lengths import at_length
from .flows import FAST, add_up, is_at_end, open_bank, until

pytestmark = pytest.mark.either_database


@pytest.mark.parametrize(
    "name", at_length(["with:a mark"], ["plain", "with:a mark", "long" + "x" * 251])
)
async def test_the_owner_of_a_lease_is_the_pipeline_alone(
    database: TemporaryDatabase, name: str
) -> None:
    """Shards would count as rows that are held for somebody else, so that nobody learns of holders
    that died; or a flow with a long name would never begin.
    """
    bank = await open_bank(database)
    bank.flow = bank.streams.flow(name, bank.payment, **FAST)
    add_up(bank)
    await bank.pay(20)
    async with PipelineManager(bank.sessions, bank.streams.pipelines(bank.flow)):

        async def are_done() -> bool:
            return await bank.balances() == bank.paid

        await until(are_done)
        owners = {row.lock_owner for row in await bank.shards()} - {None}
        flow_owner = (await bank.flow_row()).lock_owner or ""
    assert len(owners) == 1
    assert not any(OWNER_SEPARATOR in one for one in (*owners, flow_owner))


def test_flows_of_like_names_are_told_apart() -> None:
    """Leases of one flow would be taken for those of another."""
    names = ["a:b", "a.b", "x" * 255, "x" * 254, "x" * 254 + ":"]
    assert len({lease_owner("Flow", name) for name in names}) == len(names)
    assert max(len(lease_owner("FlowRow", name)) for name in names) < 255


async def test_a_host_ends_without_its_database(database: TemporaryDatabase) -> None:
    """A host would be ended by an error because the last thing that it says is not heard."""
    bank = await open_bank(database, **FAST)
    add_up(bank)
    is_away = False

    def refuse(*_: Any) -> None:
        if is_away:
            raise ConnectionRefusedError("the database is away")

    event.listen(bank.database.engine.sync_engine, "before_cursor_execute", refuse)
    manager = PipelineManager(bank.sessions, bank.streams.pipelines())
    manager.start()
    await bank.pay(50)
    await until(partial(is_at_end, bank))
    is_away = True
    await manager.drain(0)
    is_away = False


async def test_an_idle_flow_has_nothing_left_however_often_it_is_asked(
    database: TemporaryDatabase,
) -> None:
    """Two flows would be waited for for ever, each of which is asked while the other one looks."""
    bank = await open_bank(database, poll_interval=1000, **FAST)
    add_up(bank)
    (pipeline, _) = bank.streams.pipelines()
    assert isinstance(pipeline, FlowPipeline)
    async with PipelineManager(bank.sessions, [pipeline]):
        await bank.pay(50)
        await until(partial(is_at_end, bank))
        has_nothing_left = pipeline.runner.has_nothing_left

        async def is_idle() -> bool:
            return has_nothing_left()

        await until(is_idle)
        for _ in range(3):
            # So that the look has been made which the last question asked for.
            await until_idle(pipeline)
            assert has_nothing_left()


async def test_a_flow_that_is_hinted_behind_its_look_has_something_left(
    database: TemporaryDatabase,
) -> None:
    """A test of a flow over the results of another one would end before these are read, if they
    come while the first flow is asked.
    """
    bank = await open_bank(database, poll_interval=1000, **FAST)
    add_up(bank)
    (pipeline, _) = bank.streams.pipelines()
    assert isinstance(pipeline, FlowPipeline)
    async with PipelineManager(bank.sessions, [pipeline]):
        await bank.pay(50)
        await until(partial(is_at_end, bank))
        for _ in range(2):
            pipeline.runner.has_nothing_left()
            await until_idle(pipeline)
        pipeline.runner.wake()
        assert not pipeline.runner.has_nothing_left()


async def until_idle(pipeline: FlowPipeline) -> None:
    async def is_idle() -> bool:
        # A look that began after it was woken last has found nothing to do.
        return pipeline.runner._found_nothing >= pipeline.runner.wakes

    await until(is_idle)
