"""Writes versions of shards that are held here, and splits and joins these, as is wished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.outcomes import Delete
from rowlock.streams.computing.buckets import BucketRange
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

    async def write_and_divide(self, actions: Mapping[OwnShard, NextAction]) -> bool:
        """Write versions, split and join, where that is next; return whether there was something.

        No range changes between the first message of a step and the end of the step, and no replay
        spans a change: it is made where the state is written.
        """
        to_write = [shard for shard, action in actions.items() if action is NextAction.WRITE]
        siblings = self._siblings(actions)
        to_write += [shard for pair in siblings for shard in pair if shard.version != shard.step]
        if to_write:
            await self._write(to_write, actions)
            return True
        for shard, action in actions.items():
            if action is NextAction.SPLIT:
                try:
                    await self._resharding.split(shard)
                finally:
                    # Also where the answer to its COMMIT was lost: the new half may be claimed.
                    self._context.hinter.hint_fetch(self._program.shards_topic)
                shard.drop()
                return True
        for lower, upper in siblings:
            if await self._resharding.join(lower, upper):
                upper.leave(Delete())
            lower.drop()
            upper.drop()
        return bool(siblings)

    async def _write(
        self, shards: Sequence[OwnShard], actions: Mapping[OwnShard, NextAction]
    ) -> None:
        if not any(shard.is_unrecorded for shard in shards):
            await self._writer.write_versions(shards)
            return
        # Who begins anew at an earlier version needs the messages of all others again.
        together = [shard for shard in actions if shard.is_unrecorded]
        if all(shard.at == shard.step for shard in together):
            await self._writer.write_versions(together, together=True)
            return
        # Some have written a step that others have not: their states cannot be written now. Behind
        # messages that are recorded, each can be written alone.
        self._writer.memory_from = 1 + max(shard.step for shard in together)
        for shard in together:
            shard.drop()

    def _siblings(self, actions: Mapping[OwnShard, NextAction]) -> list[tuple[OwnShard, OwnShard]]:
        """Return the pairs that are to be joined, and are at one step."""
        width = BUCKETS // self._replicas.wanted
        narrow: dict[BucketRange, OwnShard] = {
            shard.range: shard
            for shard, action in actions.items()
            if action in (NextAction.RUN, NextAction.CUT, NextAction.WAIT)
            and isinstance(shard.state, Run)
            and shard.range.width < width
            and shard.doing is None
            and not shard.view.has_sent
        }
        # Where both are here and at one step, their states are as good as written.
        rows = [layout.HeldShard(each, "here", one.at, one.at) for each, one in narrow.items()]
        found = layout.joins(rows, self._replicas.wanted)
        return [(narrow[lower.range], narrow[upper.range]) for lower, upper in found]
