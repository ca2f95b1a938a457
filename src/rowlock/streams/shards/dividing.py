"""Writes versions of shards that are held here, and splits and joins these, as is wished."""

from __future__ import annotations

from typing import Any

from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.outcomes import Delete
from rowlock.streams.computing.hashing import BUCKETS
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards import layout
from rowlock.streams.shards.next_action import NextAction
from rowlock.streams.shards.own_shard import OwnShard
from rowlock.streams.shards.replicas import Replicas
from rowlock.streams.shards.resharding import Resharding
from rowlock.streams.shards.states import Run
from rowlock.streams.shards.writing import StepWriter


class Dividing:
    """Sees to the ranges of the shards of one flow that are held here.

    Args:
        program: the flow.
        context: of the pipeline whose leases these are.
        writer: writes versions.
        replicas: how many shards there are to be.
    """

    def __init__(
        self,
        program: FlowProgram,
        context: PipelineContext[Any],
        writer: StepWriter,
        *,
        replicas: Replicas,
    ) -> None:
        self._program = program
        self._context = context
        self._writer = writer
        self._replicas = replicas
        self._resharding = Resharding(program, context.leased, context.transact)

    def __repr__(self) -> str:
        return f"<Dividing of {self._program.name}>"

    async def write_and_divide(self, actions: dict[OwnShard, NextAction]) -> bool:
        """Write versions, split and join, where shards have done all that is cut; return whether
        there was something.
        """
        to_write = [shard for shard, action in actions.items() if action is NextAction.WRITE]
        to_write += self._to_write_before_joining(actions)
        if to_write:
            await self._writer.write_versions(to_write)
            return True
        for shard, action in actions.items():
            if action is NextAction.SPLIT:
                await self._resharding.split(shard)
                shard.drop()
                self._context.hinter.hint_fetch(self._program.shards_topic)
                return True
        return await self._join(actions)

    def _narrow(self, actions: dict[OwnShard, NextAction]) -> list[OwnShard]:
        """Return shards that may be joined as far as their state goes."""
        width = BUCKETS // self._replicas.wanted
        return [
            shard
            for shard, action in actions.items()
            if action in (NextAction.CUT, NextAction.WAIT)
            and isinstance(shard.state, Run)
            and shard.range.width < width
        ]

    def _to_write_before_joining(self, actions: dict[OwnShard, NextAction]) -> list[OwnShard]:
        if self._program.has_exchange:
            return []
        return [shard for shard in self._narrow(actions) if shard.version != shard.step]

    async def _join(self, actions: dict[OwnShard, NextAction]) -> bool:
        narrow = {shard.range: shard for shard in self._narrow(actions)}
        rows = [
            layout.HeldShard(each, "here", shard.step, shard.version)
            for each, shard in narrow.items()
        ]
        for lower, upper in layout.joins(rows, self._replicas.wanted):
            first, second = narrow[lower.range], narrow[upper.range]
            if await self._resharding.join(first, second):
                second.leave(Delete())
            first.drop()
            second.drop()
        return bool(rows) and any(not shard.is_open for shard in narrow.values())
