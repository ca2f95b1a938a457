"""The steps of some shards, up to what is to be written: read, compute, compare.

All shards here that are at the same step are read for together, several steps at once where they
lag; then each is computed, in a thread, with no session open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.clock import is_real
from rowlock.streams.computing.batch import EventBatch
from rowlock.streams.computing.compute import keys_of
from rowlock.streams.computing.rows import SourceRows, divide
from rowlock.streams.cutting.flow_view import Transact
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.own_shard import OwnShard
from rowlock.streams.shards.steps.stage_computing import StageComputing, due_keys
from rowlock.streams.shards.steps.steps_of import ShardDid, StepsOf
from rowlock.streams.shards.steps.timers import open_timers
from rowlock.streams.state.store import read_states


class _Read(NamedTuple):
    rows: list[list[SourceRows]]
    """Of each shard, source by source."""
    parts: dict[tuple[int, int], Any]
    """What replays are compared with, by `lo` and step."""


class StepWork:
    """Does steps of one flow, for one replica.

    Args:
        program: the flow.
        transact: runs a transaction.
    """

    def __init__(self, program: FlowProgram, transact: Transact) -> None:
        self._program = program
        self._transact = transact
        self._stage = program.stages[0]
        self._computing = StageComputing(program, self._stage)

    def __repr__(self) -> str:
        return f"<StepWork of {self._program.name}>"

    async def do(self, steps: StepsOf) -> list[ShardDid]:
        """Read, compute and compare; what is known of states is as of behind these steps then.

        Raises:
            Exception: as of the database. What is known of states may be wrong then.
        """
        await self._read_timers(steps)
        read = await self._transact(
            lambda session, connection: self._read(session, connection, steps),
            purpose="read the rows of steps",
            writes=False,
        )
        if self._stage.kind == "fold":
            keys = await _in_thread(lambda: self._fold_keys(steps, read))
            await self._transact(
                lambda session, connection: self._load(connection, steps, keys),
                purpose="read the states of steps",
                writes=False,
            )
        done: list[ShardDid] = await _in_thread(lambda: self._compute(steps, read))
        return done

    async def _read_timers(self, steps: StepsOf) -> None:
        """Read timers that may be due in these steps and are not known yet."""
        until = steps.cuts[-1].now
        lacking = [
            shard
            for shard in steps.shards
            if (known := shard.cache.timers_read_until) is not None and known <= until
        ]
        for shard in lacking:

            async def read(
                session: AsyncSession, connection: AsyncConnection, shard: OwnShard = shard
            ) -> None:
                await open_timers(connection, self._program, shard, until=until)

            await self._transact(read, purpose="read timers", writes=False)

    async def _read(
        self, session: AsyncSession, connection: AsyncConnection, steps: StepsOf
    ) -> _Read:
        ranges = [shard.range for shard in steps.shards]
        rows: list[list[SourceRows]] = [[] for _ in ranges]
        for name, source in self._program.sources.items():
            after, upto = steps.before.upto[name], steps.cuts[-1].upto[name]
            if upto > after:
                found = await source.read(connection, ranges, after=after, upto=upto)
                for own, part in zip(rows, divide(found, ranges), strict=True):
                    own.append(part)
        if self._stage.kind != "fold":
            keys = [
                _keys(parts, shard, steps) for parts, shard in zip(rows, steps.shards, strict=True)
            ]
            await self._load(connection, steps, keys)
        return _Read(rows, await self._parts(connection, steps) if steps.is_replay else {})

    async def _load(
        self, connection: AsyncConnection, steps: StepsOf, keys: Sequence[Sequence[str]]
    ) -> None:
        """Read the states of keys that are not known here; joins the caller's transaction."""
        name = self._stage.name
        caches = [shard.cache[name] for shard in steps.shards]
        missing = [cache.missing(own) for cache, own in zip(caches, keys, strict=True)]
        wanted = [key for own in missing for key in own]
        if not wanted:
            return
        table = self._program.tables.state
        found = await read_states(connection, table, self._program.id, name=name, keys=wanted)
        for cache, own in zip(caches, missing, strict=True):
            cache.read(own, found)

    def _fold_keys(self, steps: StepsOf, read: _Read) -> list[list[str]]:
        return [
            list(dict.fromkeys([*keys_of(self._stage, EventBatch(parts)), *due_keys(shard, steps)]))
            for parts, shard in zip(read.rows, steps.shards, strict=True)
        ]

    async def _parts(
        self, connection: AsyncConnection, steps: StepsOf
    ) -> dict[tuple[int, int], Any]:
        table = self._program.tables.parts
        found = select(table).where(
            table.c.flow_id == self._program.id,
            table.c.step.between(steps.cuts[0].step, steps.cuts[-1].step),
            table.c.lo.in_([shard.range.lo for shard in steps.shards]),
        )
        rows = (await connection.execute(found)).all()
        return {(row.lo, row.step): row for row in rows}

    def _compute(self, steps: StepsOf, read: _Read) -> list[ShardDid]:
        return [
            self._computing.compute_shard(shard, rows, steps, parts=read.parts)
            for shard, rows in zip(steps.shards, read.rows, strict=True)
        ]


def _keys(parts: Sequence[SourceRows], shard: OwnShard, steps: StepsOf) -> list[str]:
    keys = dict.fromkeys(key for part in parts for key in part.keys)
    keys.update(dict.fromkeys(due_keys(shard, steps)))
    return list(keys)


async def _in_thread(work: Any) -> Any:
    """Run `work` in a thread; on virtual time, where threads take none, here."""
    return await asyncio.to_thread(work) if is_real() else work()
