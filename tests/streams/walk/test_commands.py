"""Commands to a flow: pause, resume, stop, start, checkpoint, other numbers of shards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import update

from rowlock import PipelineManager, events
from rowlock.errors import ConfigurationError, PipelineError
from rowlock.streams.cut_plan import Checkpoint
from rowlock.streams.shards.dividing import Dividing
from rowlock.streams.shards.layout import DynamicShards
from rowlock.streams.shards.replicas import OwnShard
from rowlock.testing import TemporaryDatabase, run_until_settled, stepping

from ...host import heard_events
from ...lengths import at_length
from .flows import FAST, add_up, is_at_end, open_bank, until

pytestmark = pytest.mark.either_database


async def test_a_stopped_flow_has_written_all(database: TemporaryDatabase) -> None:
    """States would be in memory alone, or shards held by replicas, after a flow was stopped."""
    bank = await open_bank(database, checkpoint=Checkpoint(steps=1000), **FAST)
    add_up(bank)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await bank.pay(100)
        await until(partial(is_at_end, bank))
        assert await bank.balances() == {}
        async with bank.sessions.begin() as session:
            answer = await bank.flow.stop(session)

        async def are_free() -> bool:
            rows = await bank.shards()
            return all(row.lock_token is None and row.version == answer for row in rows)

        await until(are_free)
        assert await bank.balances() == bank.paid
        await bank.pay(50)
        async with bank.sessions.begin() as session:
            await bank.flow.start(session)
        await until(partial(is_at_end, bank))
    assert await bank.balances() == bank.paid


@pytest.mark.parametrize("steps", at_length([1000], [1, 1000]))
async def test_shards_are_split_and_joined(database: TemporaryDatabase, steps: int) -> None:
    """A payment would be lost or counted twice where ranges change; or an operator would be warned
    of each shard that was joined.
    """
    # Longer than a starved machine stands still: a lease that ends is another matter.
    settings = {**FAST, "lock_timeout": 120.0}
    bank = await open_bank(database, shards=1, checkpoint=Checkpoint(steps=steps), **settings)
    add_up(bank)
    with heard_events() as heard:
        async with PipelineManager(bank.sessions, bank.streams.pipelines()):
            for wanted in (4, 1):
                await bank.pay(60)
                await until(partial(is_at_end, bank))
                async with bank.sessions.begin() as session:
                    await bank.flow.reshard(session, wanted)
                await bank.pay(60)

                async def are_so_many(wanted: int = wanted) -> bool:
                    rows = await bank.shards()
                    widths = {row.hi - row.lo for row in rows}
                    return len(rows) == wanted and len(widths) == 1

                await until(are_so_many)
                await until(partial(is_at_end, bank))
    assert heard.of(events.ItemStale) == heard.of(events.LeaseExpired) == []
    deleted = [one for one in heard.of(events.ItemApplied) if one.outcome == "Delete"]
    assert len(deleted) == 3
    assert await bank.balances() == bank.paid
    last = {key: value for _, key, value in await bank.results()}
    assert last == bank.paid


async def test_commands_to_a_flow_that_was_never_started(database: TemporaryDatabase) -> None:
    """A command would be taken and come to nothing."""
    bank = await open_bank(database, **FAST)
    add_up(bank)
    async with bank.sessions.begin() as session:
        with pytest.raises(PipelineError, match="no row yet"):
            await bank.flow.pause(session)


async def test_numbers_of_shards_that_cannot_be(database: TemporaryDatabase) -> None:
    """Buckets would be in no shard, or the number be changed back at once."""
    bank = await open_bank(database, **FAST)
    other = await open_bank(database, shards=DynamicShards(), **FAST)
    async with bank.sessions.begin() as session:
        with pytest.raises(ValueError, match="power of two"):
            await bank.flow.reshard(session, 3)
        with pytest.raises(ConfigurationError, match="itself"):
            await other.flow.reshard(session, 4)


async def test_another_number_in_the_declaration_is_told(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A host would declare more shards, and nothing would come of it, without a word."""
    bank = await open_bank(database, shards=2)
    add_up(bank)

    async def told() -> list[str]:
        caplog.clear()
        await run_until_settled(bank.sessions, bank.streams.pipelines())
        return [one.message for one in caplog.records if "is declared with" in one.message]

    assert await told() == []
    program = bank.flow.program
    object.__setattr__(program, "shards", 8)
    (text,) = await told()
    assert "the flow balances is declared with 8 shards, and has 2" in text
    assert "reshard(session, 8)" in text
    assert len(await bank.shards()) == 2
    async with bank.sessions.begin() as session:
        await bank.flow.reshard(session, 8)
    assert await told() == []
    object.__setattr__(program, "shards", DynamicShards())
    assert await told() == []


async def test_shards_of_a_stopped_flow_stay_free(database: TemporaryDatabase) -> None:
    """Replicas would claim and release the shards of a stopped flow again and again; or what is cut
    would be left undone since its holder died.
    """
    bank = await open_bank(database)
    add_up(bank)
    await bank.pay(100)
    (pipeline, *_) = bank.streams.pipelines()
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    async with bank.sessions.begin() as session:
        await bank.flow.stop(session)
    async with stepping(bank.sessions, pipeline) as steps:
        assert await steps.fetch_once() == []
        shards = bank.streams.tables.shards
        async with bank.sessions.begin() as session:
            behind = update(shards).where(shards.c.lo == 0).values(step=1, version=1)
            await session.execute(behind)
        found = await steps.fetch_once()
        assert [item.id for item in found] == [bank.flow.program.shard_id(0)]
        async with bank.sessions.begin() as session:
            await bank.flow.start(session)
        assert len(await steps.fetch_once()) == 3


async def test_a_heartbeat_behind_a_join(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat that finds the row deleted would take its lease for lost, and warn of it."""
    bank = await open_bank(database, shards=2, **FAST)
    add_up(bank)
    seen: list[bool] = []
    join = Dividing.join

    async def watched(self: Dividing, lower: OwnShard, upper: OwnShard) -> bool:
        transact: Callable[..., Awaitable[Any]] = self._database.transact

        async def and_look(*arguments: Any, **options: Any) -> None:
            await transact(*arguments, **options)
            seen.append(upper.item.is_settling)

        self._database.transact = and_look  # type: ignore[assignment]
        return await join(self, lower, upper)

    monkeypatch.setattr(Dividing, "join", watched)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):

        async def are_so_many(number: int) -> bool:
            return len(await bank.shards()) == number

        await until(lambda: are_so_many(2))
        async with bank.sessions.begin() as session:
            await bank.flow.reshard(session, 1)
        await until(lambda: are_so_many(1))
    assert seen == [True]
