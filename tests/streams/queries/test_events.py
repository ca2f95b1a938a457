"""Events of flows: each is told once, behind its COMMIT, and none is built for nobody."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

from rowlock import PipelineManager, subscribe
from rowlock.streams import StepContext
from rowlock.streams.cut_plan import Checkpoint
from rowlock.streams.events import (
    CheckpointWritten,
    ShardOpened,
    ShardReleased,
    ShardReplayed,
    StepCut,
    StepDone,
    StepFailed,
)
from rowlock.streams.shards import writing as telling
from rowlock.streams.shards.writing import StepWriter
from rowlock.testing import TemporaryDatabase, run_until_settled

from ...host import heard_events
from ...lengths import at_length
from ..walk.flows import FAST, Bank, Paid, add_up, is_at_end, lose_leases, open_bank, pay, until
from ..walk.test_poison import RETRIES

pytestmark = pytest.mark.either_database

KINDS = (
    StepCut,
    StepDone,
    StepFailed,
    CheckpointWritten,
    ShardOpened,
    ShardReplayed,
    ShardReleased,
)


@pytest.mark.parametrize("steps", at_length([1000], [1, 1000]))
async def test_each_fact_is_told_once(database: TemporaryDatabase, steps: int) -> None:
    """A meter would count a step twice, or not at all."""
    bank = await open_bank(database, checkpoint=Checkpoint(steps=steps))
    add_up(bank)
    await bank.pay(150)
    with heard_events() as heard:
        await run_until_settled(bank.sessions, bank.streams.pipelines())
    next_step = (await bank.flow_row()).next_step
    lows = [row.lo for row in await bank.shards()]
    assert {(one.pipeline, one.flow) for one in heard.all if isinstance(one, KINDS)} == {
        ("Flow balances", "balances")
    }
    cuts = heard.of(StepCut)
    assert [one.step for one in cuts] == list(range(next_step))
    assert sum(one.rows for one in cuts) == 150
    assert {one.is_checkpoint for one in cuts} == {steps == 1}
    done = heard.of(StepDone)
    assert Counter((one.lo, one.step) for one in done) == {
        (lo, step): 1 for lo in lows for step in range(next_step)
    }
    assert sum(one.rows for one in done) == 150
    assert sum(one.outputs for one in done) == len(await bank.results())
    written = heard.of(CheckpointWritten)
    # Steps that are done together write their states once.
    assert Counter((one.lo, one.step) for one in written) == {(lo, next_step): 1 for lo in lows}
    if steps == 1000:
        assert sum(one.states for one in written) == len(bank.paid)
    assert sorted(one.lo for one in heard.of(ShardOpened)) == lows
    released = heard.of(ShardReleased)
    assert sorted((one.lo, one.step) for one in released) == [(lo, next_step) for lo in lows]
    assert heard.of(ShardReplayed) == heard.of(StepFailed) == []


async def test_a_replay_is_told(database: TemporaryDatabase) -> None:
    """Nobody would see how long recovery takes, or steps be counted again."""
    bank = await open_bank(database, shards=2, checkpoint=Checkpoint(steps=1000), **FAST)
    add_up(bank)
    with heard_events() as heard:
        async with PipelineManager(bank.sessions, bank.streams.pipelines()):
            await bank.pay(200)
            await until(partial(is_at_end, bank))
            next_step = (await bank.flow_row()).next_step
            await lose_leases(bank, 0)
            await heard.wait_for(ShardReplayed)
    replayed = heard.of(ShardReplayed)
    assert [(one.lo, one.first, one.last) for one in replayed] == [(0, 0, next_step - 1)]
    opened = [one for one in heard.of(ShardOpened) if one.lo == 0]
    assert [(one.version, one.step) for one in opened] == [(0, 0), (0, next_step)]
    done = [(one.lo, one.step) for one in heard.of(StepDone)]
    assert len(done) == len(set(done))


async def test_failures_are_told(database: TemporaryDatabase) -> None:
    """An operator would hear of a broken event only when its shard is parked, or never."""
    bank = await open_bank(database, failures_max=3, shards=1, **FAST, **RETRIES)

    @bank.flow.by_key(state=int)
    def add(step: StepContext, key: str, balance: int | None, events: list[Paid]) -> int:
        raise LookupError("no such account")

    await pay(bank.sessions, bank.payment, [("bad", 1)])
    with heard_events() as heard:
        async with PipelineManager(bank.sessions, bank.streams.pipelines()):
            await heard.wait_for(StepFailed, count=3)
    failed = heard.of(StepFailed)
    assert [(one.step, one.failures, one.is_parked) for one in failed] == [
        (0, 1, False),
        (0, 2, False),
        (0, 3, True),
    ]
    assert all("'bad'" in one.error and "no such account" in one.error for one in failed)


async def test_what_is_rolled_back_is_not_told(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step would be told that was never written."""
    bank: Bank = await open_bank(database, shards=1)
    add_up(bank)
    await bank.pay(10)
    failures = [ConnectionResetError("lost")] * 2
    write = StepWriter._write

    async def fails_at_first(self: StepWriter, *arguments: Any) -> Any:
        found = await write(self, *arguments)
        if failures:
            raise failures.pop()
        return found

    monkeypatch.setattr(StepWriter, "_write", fails_at_first)
    with heard_events() as heard:
        await run_until_settled(bank.sessions, bank.streams.pipelines())
    assert [one.step for one in heard.of(StepDone)] == [0]
    assert len(heard.of(ShardOpened)) == 3


async def test_nothing_is_built_for_nobody(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shard would pay in each step for a meter that is not there."""
    built: list[str] = []
    monkeypatch.setattr(telling, "emit", lambda event: built.append(type(event).__name__))
    bank = await open_bank(database)
    add_up(bank)
    await bank.pay(60)
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    assert built == []
    for wanted in ({ShardOpened, CheckpointWritten}, {StepCut, StepDone, ShardReleased}):
        built.clear()
        end = subscribe(print, *wanted)
        try:
            await bank.pay(10)
            await run_until_settled(bank.sessions, bank.streams.pipelines())
        finally:
            end()
        assert set(built) == {kind.__name__ for kind in wanted}
