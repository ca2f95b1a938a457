"""Replicas of a ledger whose rounds a test makes one by one, so that it says who is how far."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import Apply, Outcome, PipelineHinter, PipelineItem
from rowlock.streams import StreamFlow
from rowlock.streams.computing.hashing import BucketRange
from rowlock.streams.cutter import Cutter, KnownFlow
from rowlock.streams.flow_row import ensure_flow
from rowlock.streams.shards.pipeline import FlowPipeline
from rowlock.streams.shards.replicas import OwnShard
from rowlock.streams.shards.runner import FlowRounds, Left
from rowlock.testing import Steps, stepping

from .ledger import Ledger, until

ROUNDS_MAX = 200
"""Most rounds in which something must have come to pass."""


class PipelineByHand(FlowPipeline):
    """Holds shards, and leaves the rounds to a test."""

    rounds: FlowRounds

    async def process(self, item: PipelineItem[Any]) -> Outcome:
        """Hold a shard until a round has it leave."""
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        own = BucketRange(item.row.lo, item.row.hi)
        shard = OwnShard(item, own, outcome, self.rounds.new_cache())
        former = self.rounds.shards.get(item.id)
        if former is not None:
            former.drop()
            former.leave(Apply())
        self.rounds.shards[item.id] = shard
        return await outcome

    async def look_around(self) -> None:
        """Look no more: the test says which shards are whose."""


class Replica:
    """A replica that does what a test says, and nothing else."""

    def __init__(self, ledger: Ledger, pipeline: PipelineByHand, steps: Steps[Any]) -> None:
        self._ledger = ledger
        self._pipeline = pipeline
        self._steps = steps
        self.rounds = FlowRounds(
            pipeline.program, steps.run.context, pipeline.replicas, wake=lambda: None
        )
        pipeline.rounds = self.rounds

    @property
    def shards(self) -> dict[int, OwnShard]:
        return {shard.range.lo: shard for shard in self.rounds.shards.values()}

    @property
    def hinter(self) -> PipelineHinter:
        return self._steps.run.context.hinter

    async def claim(self, *lows: int) -> None:
        rows = {row.lo: row for row in await self._ledger.shards()}
        wanted = {rows[lo].id: BucketRange(lo, rows[lo].hi) for lo in lows}
        replicas = self._pipeline.replicas
        others = replicas.mine
        replicas.mine = wanted
        before = set(self.rounds.shards.values())
        # A row whose lease was taken away is claimed here again once its loss is noticed.
        heartbeater = self._steps.run.heartbeater
        heartbeater._lose_all([item for item in heartbeater.tracked() if item.id in wanted])

        async def have_begun() -> bool:
            found = {shard.range.lo for shard in {*self.rounds.shards.values()} - before}
            if not {item.id for item in heartbeater.tracked()} >= set(wanted):
                await self._steps.run.fetcher.fetch_once(len(lows))
            return found >= set(lows)

        await until(have_begun)
        replicas.mine = {**others, **wanted}

    def wants(self, shards: int) -> None:
        """Have it split and join shards until there are so many."""
        self._pipeline.replicas.wanted = shards

    def give_away(self, *lows: int) -> None:
        mine = self._pipeline.replicas.mine
        self._pipeline.replicas.mine = {
            key: each for key, each in mine.items() if each.lo not in lows
        }

    async def cut(self) -> None:
        """Cut the next step, and do nothing of it."""
        program, transact = self._pipeline.program, self._steps.run.context.transact
        known = KnownFlow(program)

        async def look(session: AsyncSession, connection: AsyncConnection) -> None:
            await known.look(connection, first=(await self._ledger.flow_row()).next_step)

        await transact(look, purpose="look at a flow", writes=False)
        assert isinstance(await Cutter(program, transact).cut(known, []), Sequence)

    async def round(self) -> Left:
        """Make one round; release the shards that it has left."""
        self.rounds.look_anew()
        left = await self.rounds.make()
        for key, shard in list(self.rounds.shards.items()):
            if shard.is_leaving:
                del self.rounds.shards[key]
                await until(partial(self._is_released, shard))
        return left

    async def _is_released(self, shard: OwnShard) -> bool:
        tokens = [row.lock_token for row in await self._ledger.shards()]
        return shard.item.lock_token not in tokens

    async def until(self, check: Callable[[], Any]) -> None:
        for _ in range(ROUNDS_MAX):
            if check():
                return
            await self.round()
        raise AssertionError(f"it has not come to pass in {ROUNDS_MAX} rounds")

    async def until_stuck(self) -> Left:
        """Make rounds until there is nothing more to do here; return why."""
        for _ in range(ROUNDS_MAX):
            left = await self.round()
            if left is not Left.MORE:
                return left
        raise AssertionError(f"there is more to do after {ROUNDS_MAX} rounds")


@asynccontextmanager
async def by_hand(
    ledger: Ledger, count: int = 1, *, flow: StreamFlow[Any] | None = None
) -> AsyncIterator[list[Replica]]:
    """Give replicas of a flow, of the ledger by default; none of them holds a shard."""
    async with AsyncExitStack() as stack:
        yield [await join(ledger, flow or ledger.flow, stack) for _ in range(count)]


async def join(ledger: Ledger, flow: StreamFlow[Any], stack: AsyncExitStack) -> Replica:
    settings = {**flow.pipeline_settings, "lock_timeout": timedelta(hours=1)}
    pipeline = PipelineByHand(flow.program, **settings)
    steps = await stack.enter_async_context(stepping(ledger.sessions, pipeline))
    steps.run.pool.start()
    await ensure_flow(pipeline.program, steps.run.context.transact)
    pipeline.replicas.wanted = len(await ledger.shards())
    return Replica(ledger, pipeline, steps)


async def go_on(*replicas: Replica) -> None:
    """Make rounds of all, in turn, until none has more to do."""
    for _ in range(ROUNDS_MAX):
        if Left.MORE not in [await replica.round() for replica in replicas]:
            return
    raise AssertionError(f"there is more to do after {ROUNDS_MAX} rounds")


async def steps_of(ledger: Ledger) -> list[tuple[int, int]]:
    """Return step and version of each shard, as they are written."""
    return [(row.step, row.version) for row in await ledger.shards()]
