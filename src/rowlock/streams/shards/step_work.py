"""The steps of some shards, up to what is to be written: read, compute, compare.

All shards here that are at the same step are read for together, several steps at once where they
lag; then each is computed, in a thread, with no session open.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.clock import is_real, stopwatch
from rowlock.streams.committing.step_write import PartRow
from rowlock.streams.computing.batch import EventBatch
from rowlock.streams.computing.compute import (
    Computed,
    PoisonedKey,
    compute,
    keys_of,
)
from rowlock.streams.computing.context import StepTime
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.computing.rows import SourceRows, divide
from rowlock.streams.cutting.flow_view import RecordedCut, Transact
from rowlock.streams.outputs.output import ResultRow
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.failures import is_last_attempt
from rowlock.streams.shards.own_shard import OwnShard
from rowlock.streams.state.cache import ShardCache, StageCache
from rowlock.streams.state.store import (
    TIMERS_READ_MAX,
    StoredTimer,
    read_states,
    read_timers,
)


class StepsOf(NamedTuple):
    """Consecutive steps that some shards do next.

    Attributes:
        shards: all at the first of these steps.
        before: the cut before them.
        cuts: the steps.
        is_replay: they were written before: nothing but states is kept, and all is compared.
    """

    shards: Sequence[OwnShard]
    before: RecordedCut
    cuts: Sequence[RecordedCut]
    is_replay: bool


@dataclass(slots=True)
class ShardDid:
    """What a shard did of some steps.

    Attributes:
        shard: which one.
        step: the step behind the last one that it did.
        parts: the record of each step with something to do.
        results: by the name of the output.
        poisoned: why it did no more; None: it did all.
        differs: how a replay came out otherwise than the first time; None: it did not.
    """

    shard: OwnShard
    step: int
    parts: list[PartRow] = field(default_factory=list)
    results: dict[str, list[ResultRow]] = field(default_factory=dict)
    poisoned: PoisonedKey | None = None
    differs: str | None = None


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
            list(dict.fromkeys([*keys_of(self._stage, EventBatch(parts)), *_due(shard, steps)]))
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
            self._compute_shard(shard, rows, steps, parts=read.parts)
            for shard, rows in zip(steps.shards, read.rows, strict=True)
        ]

    def _compute_shard(
        self,
        shard: OwnShard,
        rows: Sequence[SourceRows],
        steps: StepsOf,
        *,
        parts: Mapping[tuple[int, int], Any],
    ) -> ShardDid:
        did = ShardDid(shard, steps.cuts[0].step)
        for cut, own in zip(steps.cuts, _by_step(rows, steps), strict=True):
            clock = stopwatch()
            began = clock()
            batch: EventBatch[Any] = EventBatch(own)
            cache = shard.cache[self._stage.name]
            due = cache.timers.due(cut.now)
            part = None
            if len(batch) or due:
                computed = self._compute_step(shard, cut, batch, due=due)
                if isinstance(computed, PoisonedKey):
                    did.poisoned = computed
                    return did
                part = _part(cut.step, computed, seconds=clock() - began)
                keep(cache, computed, due)
                if not steps.is_replay:
                    _add_results(did, computed, cut.step)
                    did.parts.append(part)
            if steps.is_replay:
                did.differs = difference(part, parts.get((shard.range.lo, cut.step)))
                if did.differs is not None:
                    return did
            did.step = cut.step + 1
        return did

    def _compute_step(
        self, shard: OwnShard, cut: RecordedCut, batch: EventBatch[Any], *, due: Sequence[str]
    ) -> Computed | PoisonedKey:
        program, cache = self._program, shard.cache[self._stage.name]
        keys: Any = keys_of(self._stage, batch) if self._stage.kind == "fold" else batch.keys
        states = cache.states(dict.fromkeys([*keys, *due]))
        is_last = cut.step < shard.step or is_last_attempt(
            shard.failures, cut.step, failures_max=program.settings.failures_max
        )
        return compute(
            self._stage,
            batch,
            states,
            step=StepTime(program.name, cut.step, cut.now),
            shard=shard.range,
            is_last_attempt=is_last,
        )


def _keys(parts: Sequence[SourceRows], shard: OwnShard, steps: StepsOf) -> list[str]:
    keys = dict.fromkeys(key for part in parts for key in part.keys)
    keys.update(dict.fromkeys(_due(shard, steps)))
    return list(keys)


def _due(shard: OwnShard, steps: StepsOf) -> list[str]:
    """Return keys whose timer is due in one of these steps, as far as it is set by now."""
    until = steps.cuts[-1].now
    return [
        key
        for _, stage in shard.cache
        if (earliest := stage.timers.earliest) is not None and earliest <= until
        for key, at in stage.timers.known.items()
        if at <= until
    ]


def _by_step(rows: Sequence[SourceRows], steps: StepsOf) -> list[list[SourceRows]]:
    """Return the rows of each step, source by source."""
    if len(steps.cuts) == 1:
        return [list(rows)]
    divided: list[list[SourceRows]] = [[] for _ in steps.cuts]
    for part in rows:
        begin = 0
        for own, cut in zip(divided, steps.cuts, strict=True):
            end = bisect_right(part.positions, cut.upto[part.source], lo=begin)
            if end > begin:
                own.append(part.at(range(begin, end)))
            begin = end
    return divided


def keep(cache: StageCache, computed: Computed, due: Sequence[str]) -> None:
    """Keep what a step has made of states, and the timers that were due and are still set."""
    cache.change(computed.states)
    for key in due:
        if key not in computed.states:
            cache.timers.set(key, cache.states((key,))[key].timer_at)


def _part(step: int, computed: Computed, *, seconds: float) -> PartRow:
    return PartRow(
        step,
        computed.rows,
        computed.input_digest,
        len(computed.results),
        computed.output_digest,
        seconds,
    )


def difference(now: PartRow | None, then: Any) -> str | None:
    """Return how the replay of a step differs from what was written; None if it does not."""
    if now is None and then is None:
        return None
    if now is None or then is None or now.rows != then.rows:
        rows, before = 0 if now is None else now.rows, 0 if then is None else then.rows
        return f"the input has {rows} rows, and had {before}"
    if now.input_digest != then.input_digest:
        return f"the input has the digest {now.input_digest}, and had {then.input_digest}"
    if now.output_digest != then.output_digest:
        return f"the results have the digest {now.output_digest}, and had {then.output_digest}"
    return None


def _add_results(did: ShardDid, computed: Computed, step: int) -> None:
    by_output = sorted(computed.results, key=attrgetter("output"))
    lo = did.shard.range.lo
    buckets: dict[str, int] = {}
    for name, results in groupby(by_output, key=attrgetter("output")):
        rows = did.results.setdefault(name, [])
        for seq, result in enumerate(results):
            bucket = lo
            if result.key is not None:
                bucket = buckets.get(result.key) or buckets.setdefault(
                    result.key, bucket_of(result.key)
                )
            rows.append(ResultRow(step, lo, seq, bucket, result.key, result.stored))


async def open_timers(
    connection: AsyncConnection, program: FlowProgram, shard: OwnShard, *, until: Any = None
) -> None:
    """Read the timers of a shard: the earliest, or those up to `until` at least; joins the caller's
    transaction.
    """
    cache: ShardCache = shard.cache
    while True:
        after = cache.timers_read_until
        found: list[StoredTimer] = await read_timers(
            connection, program.tables.state, program.id, ranges=[shard.range], after=after
        )
        for timer in found:
            stage = cache[timer.name]
            # What is newer in memory counts.
            if timer.key not in stage.dirty:
                stage.timers.set(timer.key, timer.at)
        is_all = len(found) < TIMERS_READ_MAX
        cache.timers_read_until = None if is_all else found[-1].at
        if is_all or until is None or found[-1].at > until:
            return


async def _in_thread(work: Any) -> Any:
    """Run `work` in a thread; on virtual time, where threads take none, here."""
    return await asyncio.to_thread(work) if is_real() else work()
