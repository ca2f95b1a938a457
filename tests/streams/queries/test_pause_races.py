"""Pauses and stops beside cuts and steps, in whatever order these come.

The one idea: the answer to a pause is the next step of the flow's row, which a cut changes by
compare-and-set. So there is nothing to wait for, and no order in which the answer is wrong. Here
the loops of replicas are taken apart into what they do at once, by what they know then, which may
be out of date; a seed chooses who is next.

Not here: the statements (``walk/test_steps.py``), and real replicas (the last tests of this file).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Literal

import pytest

from rowlock import PipelineManager
from rowlock.streams.cut_plan import Checkpoint, Cut
from rowlock.streams.cutter import Cutter, FlowFacts, KnownFlow
from rowlock.streams.shards.layout import even_layout
from rowlock.streams.shards.replicas import OwnShard
from rowlock.streams.shards.steps import NextAction, next_action, steer
from rowlock.testing import TemporaryDatabase, stepping

from ...lengths import at_length
from ..walk.flows import FAST, add_up, is_at_end, open_bank, until
from ..walk.test_steps import known_to

pytestmark = pytest.mark.either_database(but=["test_of_many_cutters_one_cuts_each_step"])

ORDERS = at_length(500, 10_000)
ACTS = 40
"""So much is done in each order before the rest is done fairly."""
ROUNDS_MAX = 60
"""So many rounds, in which everybody acts once, a flow may take to come to rest."""
REPLICAS, SHARDS = 2, 4


@dataclass
class Row:
    """The row of the flow, and what is known of its answers."""

    state: Literal["running", "paused", "stopped"] = "running"
    next_step: int = 0
    answer: int | None = None
    """Of a pause or a stop that holds."""

    def facts(self) -> FlowFacts:
        return FlowFacts(self.state, self.next_step, False)

    def command(self, state: Literal["running", "paused", "stopped"]) -> None:
        self.state = state
        self.answer = None if state == "running" else self.next_step

    def record(self, step: int) -> None:
        if self.state == "running" and self.next_step == step:
            assert self.answer is None
            self.next_step += 1


@dataclass
class Loop:
    """The loop of one replica, act by act."""

    row: Row
    shards: list[OwnShard]
    every: int
    facts: FlowFacts = field(default_factory=lambda: Row().facts())
    inside: list[OwnShard] = field(default_factory=list)
    cut: int | None = None

    def act(self) -> bool:
        """Do what is next; return whether anything was done."""
        if self.inside:
            for shard in self.inside:
                self._write(shard)
            self.inside = []
            return True
        if self.cut is not None:
            self.row.record(self.cut)
            self.cut = None
            return True
        claims = self.claim()
        before = self.facts
        self.facts = self.row.facts()
        return self._decide() or claims or self.facts != before

    def _decide(self) -> bool:
        actions = {}
        for shard in self.shards:
            if shard.is_open:
                steer(shard, self.facts, leaves=False)
                actions[shard] = next_action(shard, self.facts, wanted=SHARDS)
        self.inside = [s for s, action in actions.items() if action is NextAction.RUN]
        if self.inside:
            return True
        for shard, action in actions.items():
            if action is NextAction.WRITE:
                shard.version = shard.step
                return True
            if action is NextAction.LEAVE:
                shard.drop()
                return True
        if NextAction.CUT in actions.values():
            self.cut = self.facts.next_step
        return False

    def _write(self, shard: OwnShard) -> None:
        shard.step += 1
        shard.at = shard.step
        if shard.step % self.every == 0:
            shard.version = shard.step

    def claim(self) -> bool:
        """Hold shards that are free and that the flow wants held; return whether there were any."""
        has_claimed = False
        for shard in self.shards:
            is_wanted = self.row.state != "stopped" or shard.version < self.row.next_step
            if not shard.is_open and is_wanted:
                # What was released is written.
                assert shard.version == shard.step
                shard.at, shard.is_open = shard.version, True
                has_claimed = True
        return has_claimed


def new_flow(rng: Random) -> tuple[Row, list[Loop]]:
    """Return a flow of which two replicas hold the shards."""
    row, every = Row(), rng.choice((1, 3))
    nothing: Any = None
    shards = [OwnShard(nothing, each, nothing, nothing) for each in even_layout(SHARDS)]
    loops = [Loop(row, shards[n::REPLICAS], every) for n in range(REPLICAS)]
    for loop in loops:
        loop.claim()
    return row, loops


def check(row: Row, loops: list[Loop]) -> None:
    for loop in loops:
        for shard in loop.shards:
            assert shard.step <= row.next_step
        for shard in loop.inside:
            # The answer is behind every step that is under way.
            assert row.answer is None or shard.step < row.answer
    assert row.answer in (None, row.next_step)


def rest(row: Row, loops: list[Loop]) -> None:
    for _ in range(ROUNDS_MAX):
        acted = [loop.act() for loop in loops]
        check(row, loops)
        if not any(acted) and not any(loop.inside or loop.cut is not None for loop in loops):
            return
    raise AssertionError("the flow does not come to rest")


def test_every_order_of_pauses_cuts_and_steps() -> None:
    """A pause would wait for a step that waits for it; or a step be done behind its answer."""
    for seed in range(ORDERS):
        rng = Random(seed)
        row, loops = new_flow(rng)
        for _ in range(ACTS):
            if rng.random() < 0.12:
                row.command(rng.choice(("running", "paused", "stopped")))
            else:
                rng.choice(loops).act()
            check(row, loops)
        row.command(rng.choice(("paused", "stopped")))
        answer = row.answer
        rest(row, loops)
        are_open = {shard.is_open for loop in loops for shard in loop.shards}
        steps = {shard.step for loop in loops for shard in loop.shards}
        assert steps == {answer}, f"seed {seed}: {steps} after the answer {answer}"
        assert are_open == {row.state == "paused"}
        if row.state == "stopped":
            assert {shard.version for loop in loops for shard in loop.shards} == {answer}
        row.command("running")
        for _ in range(4 * REPLICAS):
            for loop in loops:
                loop.act()
        assert row.next_step > (answer or 0), f"seed {seed}: nothing is cut after a pause"


def test_the_orders_differ() -> None:
    """The test above would try one order again and again."""
    ends = set()
    for seed in range(200):
        rng = Random(seed)
        row, loops = new_flow(rng)
        for _ in range(ACTS):
            rng.choice(loops).act()
        ends.add((row.next_step, *(shard.step for loop in loops for shard in loop.shards)))
    assert len(ends) > 10


@pytest.mark.at_length
@pytest.mark.parametrize("steps", [1, 1000])
async def test_real_replicas_are_paused_at_any_moment(
    database: TemporaryDatabase, steps: int
) -> None:
    """Results would change behind the answer to a pause, or a pause never take effect."""
    bank = await open_bank(database, checkpoint=Checkpoint(steps=steps), **FAST)
    add_up(bank)
    managers = [PipelineManager(bank.sessions, bank.streams.pipelines()) for _ in range(2)]
    async with managers[0], managers[1]:
        await bank.pay(20)
        await until(partial(is_at_end, bank))
        for turn in range(at_length(4, 6)):
            paying = asyncio.create_task(bank.pay(20, per_commit=3))
            for _ in range(3 * turn):
                await asyncio.sleep(0)
            async with bank.sessions.begin() as session:
                command = bank.flow.pause if turn % 2 else bank.flow.stop
                answer = await command(session)

            async def is_there(answer: int = answer) -> bool:
                return {shard.step for shard in await bank.shards()} == {answer}

            await until(is_there)
            await paying
            assert (await bank.flow_row()).next_step == answer
            assert {step for step, _, _ in await bank.results()} <= set(range(answer))
            assert {shard.step for shard in await bank.shards()} == {answer}
            async with bank.sessions.begin() as session:
                assert await bank.flow.start(session) == answer
        await until(partial(is_at_end, bank))
    assert await bank.balances() == bank.paid


async def test_of_many_cutters_one_cuts_each_step(database: TemporaryDatabase) -> None:
    """Replicas that cut at the same time would do one step over different rows."""
    bank = await open_bank(database, step_rows_max=5)
    add_up(bank)
    (pipeline, *_) = bank.streams.pipelines()
    async with stepping(bank.sessions, pipeline) as steps:
        await steps.fetch_once()
        context = steps.run.context
        cutters = [Cutter(bank.flow.program, context.transact) for _ in range(4)]
        made: list[Cut] = []
        for _ in range(6):
            await bank.pay(9)
            knowns: list[KnownFlow] = [await known_to(bank, context) for _ in cutters]
            cuts = await asyncio.gather(
                *(cutter.cut(known, []) for cutter, known in zip(cutters, knowns, strict=True))
            )
            made += [one for some in cuts if isinstance(some, Sequence) for one in some]
    assert [one.step for one in made] == list(range(len(made)))
    assert len(made) == 10
    recorded = bank.streams.tables.steps
    async with bank.sessions() as session:
        rows = (await session.execute(recorded.select().order_by(recorded.c.step))).all()
    assert [row.upto for row in rows[1:]] == [dict(one.upto) for one in made]
    assert (await bank.flow_row()).next_step == len(made)
