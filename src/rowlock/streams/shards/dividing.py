"""Writes versions of shards that are held here, and splits and joins these, as requested.

A change of ranges is one transaction, and no state is moved, since states are found by their
buckets. Only what is written is divided: no replay spans a change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sqlalchemy import delete, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import Delete
from rowlock.errors import LeaseLost
from rowlock.spi import Fenced, PipelineContext, fence
from rowlock.streams.computing.hashing import BucketRange
from rowlock.streams.key_states import count_states
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards import layout
from rowlock.streams.shards.replicas import OwnShard, Replicas
from rowlock.streams.shards.steps import NextAction
from rowlock.streams.shards.writing import StepWriter
from rowlock.streams.tables import StreamDatabase


class Dividing:
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
        self._database = StreamDatabase(context.transact)
        self._writer = writer
        self._replicas = replicas

    async def write_and_divide(
        self, actions: Mapping[OwnShard, NextAction], *, may_join: bool
    ) -> bool:
        """Write versions, split and join, where that is next; return whether it was."""
        # No range changes between the first message of a step and the end of the step, and no
        # replay spans a change: it is made where the state is written.
        to_write = [shard for shard, action in actions.items() if action is NextAction.WRITE]
        siblings = self._siblings(actions) if may_join else []
        to_write += [shard for pair in siblings for shard in pair if shard.version != shard.step]
        if to_write:
            await self._writer.write_versions(to_write)
            return True
        for shard, action in actions.items():
            if action is NextAction.SPLIT:
                try:
                    await self.split(shard)
                finally:
                    # Also where the answer to its COMMIT was lost: the new half may be claimed.
                    self._context.hinter.hint_fetch(self._program.shards_topic)
                shard.drop()
                return True
        for lower, upper in siblings:
            if await self.join(lower, upper):
                upper.leave(Delete())
            lower.drop()
            upper.drop()
        return bool(siblings)

    def _siblings(self, actions: Mapping[OwnShard, NextAction]) -> list[tuple[OwnShard, OwnShard]]:
        able: dict[BucketRange, OwnShard] = {
            shard.range: shard
            for shard, action in actions.items()
            if action in (NextAction.RUN, NextAction.CUT)
            and shard.end is None
            and shard.doing is None
            and not shard.has_sent
        }
        # Where both are here and at one step, their states are as good as written.
        at = {each: shard.at for each, shard in able.items()}
        pairs = layout.siblings(at, self._replicas.wanted)
        return [(able[lower], able[upper]) for lower, upper in pairs]

    async def split(self, shard: OwnShard) -> bool:
        """Split `shard`: it keeps the lower half of its buckets; return whether that was done."""
        lower, upper = shard.range.halves

        async def work(connection: AsyncConnection) -> None:
            program, table = self._program, self._program.tables.state
            kept, moved = [
                (await count_states(connection, table, program.id, buckets=each)).keys
                for each in (lower, upper)
            ]
            await self._fence(connection, shard, hi=lower.hi, state_keys=kept)
            half = {
                "id": program.shard_id(upper.lo),
                "flow_id": program.id,
                "lo": upper.lo,
                "hi": upper.hi,
                "step": shard.step,
                "version": shard.version,
                "snapshot": shard.snapshot,
                "state_keys": moved,
                "state_keys_at": shard.version,
            }
            await connection.execute(insert(program.tables.shards).values(half))

        return await self._if_held("split a shard", work)

    async def join(self, lower: OwnShard, upper: OwnShard) -> bool:
        """Join: `lower` takes the buckets of its sibling, whose row is deleted; return if done."""

        async def work(connection: AsyncConnection) -> None:
            both = lower.state_keys + upper.state_keys
            await self._fence(connection, lower, upper, hi=upper.range.hi, state_keys=both)
            shards = self._program.tables.shards
            await connection.execute(delete(shards).where(shards.c.id == upper.item.id))

        # From its COMMIT on there is no lease that a heartbeat could find.
        item = upper.item
        item.is_settling = True
        try:
            item.is_deleted = await self._if_held("join two shards", work)
        finally:
            item.is_settling = item.is_deleted
        return item.is_deleted

    async def _if_held(
        self, purpose: str, work: Callable[[AsyncConnection], Awaitable[None]]
    ) -> bool:
        try:
            await self._database.write(purpose, work)
        except LeaseLost:
            return False
        return True

    async def _fence(
        self, connection: AsyncConnection, first: OwnShard, *others: OwnShard, **values: int
    ) -> None:
        """Lock shards that are as their holder knows them, and write into the first row."""
        # LeaseLost if one of them is not: roll back.
        values["state_keys_at"] = first.version
        leased = self._context.leased
        step, version = leased.column("step"), leased.column("version")
        assigned = {leased.column(name): value for name, value in values.items()}
        rows = [
            Fenced(
                shard.item,
                assigned if shard is first else {},
                unless_changed={step: shard.step, version: shard.version},
            )
            for shard in (first, *others)
        ]
        tokens = await fence(connection, leased, rows, waits=True)
        if len(tokens) < len(rows):
            raise first.item.lease_lost()
