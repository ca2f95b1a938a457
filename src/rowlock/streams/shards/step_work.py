"""The steps of some shards, up to what is to be written: read, compute, exchange, compare.

The one idea: shards here that are at the same step go through it stage by stage, together, several
steps at once where they lag. The first stage reads the rows of the sources, each further one what
it was sent; where that is not all there yet, the steps stay under way, and nothing here waits
for them.

Each stage is computed in a thread, with no session open, while the shard waits; so nothing else
touches its states. A shard whose handler hangs goes on alone, and the others without it; it may be
dropped meanwhile, and begin anew: with states that are not the thread's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.clock import stopwatch
from rowlock.spi import PipelineContext, Wake
from rowlock.streams.computing.compute import Computed, PoisonedKey, compute, keys_of
from rowlock.streams.computing.handlers import StageHandler, StepTime
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.computing.rows import EventBatch, SourceRows, divide
from rowlock.streams.cut_plan import Cut
from rowlock.streams.exchanging import Events, Exchange, ReceivingStage
from rowlock.streams.key_states import (
    TIMERS_READ_MAX,
    ShardCache,
    StageCache,
    StoredTimer,
    read_states,
    read_timers,
)
from rowlock.streams.outputs import ResultRow
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.replicas import OwnShard
from rowlock.streams.shards.slow_calls import SlowCalls
from rowlock.streams.shards.steps import PartRow, ShardDid, StagesDone, StageThread, StepsOf
from rowlock.streams.tables import StreamDatabase


async def open_timers(
    connection: AsyncConnection, program: FlowProgram, shard: OwnShard, *, until: Any = None
) -> None:
    """Read the timers of a shard: the earliest, or those up to `until` at least."""
    cache: ShardCache = shard.cache
    while True:
        after = cache.timers_read_until
        found: list[StoredTimer] = await read_timers(
            connection, program.tables.state, program.id, buckets=shard.range, after=after
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


def finish(did: ShardDid) -> None:
    """Make the records of steps all of whose stages are done; of a replay, compare them."""
    lo = did.shard.range.lo
    for step in did.steps.numbers:
        if step >= did.step:
            return
        part = did.done[step].part(step)
        if did.is_replay:
            did.differs = difference(part, did.steps.parts.get((lo, step)))
            if did.differs is not None:
                did.step = step
        elif part is not None:
            did.parts.append(part)


def due_keys(cache: StageCache, until: Any) -> list[str]:
    """Return keys whose timer of a stage is due at `until`, as far as it is set by now."""
    timers = cache.timers
    if timers.earliest is None or timers.earliest > until:
        return []
    return [key for key, at in timers.known.items() if at <= until]


def keep(cache: StageCache, computed: Computed, due: Sequence[str]) -> None:
    """Keep what a step has made of states, and the timers that were due and are still set."""
    cache.change(computed.states)
    for key in due:
        if key not in computed.states:
            cache.timers.set(key, cache.states((key,))[key].timer_at)


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


def add_results(did: ShardDid, computed: Computed, step: int) -> None:
    by_output = sorted(computed.results, key=attrgetter("output"))
    lo = did.shard.range.lo
    buckets: dict[str, int] = {}
    for name, results in groupby(by_output, key=attrgetter("output")):
        rows = did.results.setdefault(name, [])
        first = sum(row.step == step for row in rows)
        for seq, result in enumerate(results, first):
            bucket = lo
            if result.key is not None:
                bucket = buckets.get(result.key) or buckets.setdefault(
                    result.key, bucket_of(result.key)
                )
            rows.append(ResultRow(step, lo, seq, bucket, result.key, result.stored))


class StepWork:
    def __init__(
        self, program: FlowProgram, context: PipelineContext[Any], *, calls: SlowCalls, wake: Wake
    ) -> None:
        self.under_way: list[StepsOf] = []  # steps that were begun and are not through
        self._program = program
        self._database = StreamDatabase(context.transact)
        self._calls = calls
        self._wake = wake
        self._stages = [calls.watched(stage) for stage in program.stages]
        self._receiving = receiving_stages(program)
        self.exchange = Exchange(program, context)

    def begin(self, steps: StepsOf) -> None:
        """Have shards be within these steps until `advance` returns what they did."""
        self.under_way.append(steps)
        for shard in steps.shards:
            shard.doing = steps
            steps.did[shard] = ShardDid(shard, steps, shard.cache, steps.cuts[-1].step + 1)

    async def advance(self, steps: StepsOf) -> list[ShardDid]:
        """Do as many stages as there are events for; return what finished or failed."""
        # What is known of their states is as of behind these steps then; after an error it may be
        # wrong.
        through: list[ShardDid] = []
        steps.shards = [shard for shard in steps.shards if shard.doing is steps]
        while steps.shards:
            if steps.thread is None:
                events = await self._events(steps)
                if events is None:
                    break
                steps.events = dict(zip(steps.shards, events, strict=True))
                finds_keys = steps.stage > 0 or self._program.stages[0].by is not None
                self._begin_thread(steps, finds_keys=finds_keys)
            if not await self._is_computed(steps):
                break
            if steps.keys is not None:
                missing = self._missing(steps, steps.keys)
                if any(missing):
                    load = partial(self._load, steps=steps, missing=missing)
                    await self._database.read("read the states of steps", load)
                self._begin_thread(steps, finds_keys=False)
                continue
            steps.stage += 1
            through += self._take_out(steps)
            if steps.shards:
                await self._send(steps)
                through += self._take_out(steps)
        if not steps.shards:
            self.under_way.remove(steps)
        return through

    def _take_out(self, steps: StepsOf) -> list[ShardDid]:
        """Release from these steps the shards that finished or failed, and those not held."""
        is_through = steps.stage == len(self._stages)
        did = [steps.did[shard] for shard in steps.shards]
        through = [one for one in did if is_through or one.has_failed]
        for one in through:
            one.shard.doing = None
        steps.shards = [shard for shard in steps.shards if shard.doing is steps]
        return through

    async def _events(self, steps: StepsOf) -> Events | None:
        if steps.stage == 0:
            return await self._read(steps)
        stage = self._receiving[steps.stage - 1]
        return await self.exchange.receive(stage, steps.numbers, steps.shards)

    async def _read(self, steps: StepsOf) -> Events:
        """Return the rows of the sources; their states are read with them where keys are known."""
        await self._read_timers(steps)

        async def read(connection: AsyncConnection) -> Events:
            events = await self._rows(connection, steps)
            if self._program.stages[0].by is None:
                keys = {
                    shard: self._keys(steps.did[shard], own, 0)
                    for shard, own in zip(steps.shards, events, strict=True)
                }
                await self._load(connection, steps, self._missing(steps, keys))
            replays = [shard for shard in steps.shards if steps.did[shard].is_replay]
            if replays:
                steps.parts = await self._parts(connection, steps, replays)
            return events

        return await self._database.read("read the rows of steps", read)

    async def _rows(self, connection: AsyncConnection, steps: StepsOf) -> Events:
        ranges = [shard.range for shard in steps.shards]
        rows: list[list[SourceRows]] = [[] for _ in ranges]
        for name, source in self._program.sources.items():
            after, upto = steps.before.upto[name], steps.cuts[-1].upto[name]
            if upto > after:
                found = await source.read(connection, ranges, after=after, upto=upto)
                for own, part in zip(rows, divide(found, ranges), strict=True):
                    own.append(part)
        return [_by_step(own, steps) for own in rows]

    async def _read_timers(self, steps: StepsOf) -> None:
        """Read timers that may be due in these steps and are not known yet."""
        until = steps.cuts[-1].now
        lacking = [
            shard
            for shard in steps.shards
            if (known := shard.cache.timers_read_until) is not None and known <= until
        ]
        for shard in lacking:
            read = partial(open_timers, program=self._program, shard=shard, until=until)
            await self._database.read("read timers", read)

    async def _parts(
        self, connection: AsyncConnection, steps: StepsOf, shards: Sequence[OwnShard]
    ) -> dict[tuple[int, int], Any]:
        table = self._program.tables.parts
        found = select(table).where(
            table.c.flow_id == self._program.id,
            table.c.step.between(steps.cuts[0].step, steps.cuts[-1].step),
            table.c.lo.in_([shard.range.lo for shard in shards]),
        )
        rows = (await connection.execute(found)).all()
        return {(row.lo, row.step): row for row in rows}

    def _keys(self, did: ShardDid, own: Sequence[Sequence[SourceRows]], number: int) -> list[str]:
        stage = self._program.stages[number]
        batch: EventBatch[Any] = EventBatch([part for of_step in own for part in of_step])
        keys: Any = batch.keys if stage.by is None else keys_of(stage, batch)
        due = due_keys(did.cache[stage.name], did.steps.cuts[-1].now)
        return list(dict.fromkeys([*keys, *due]))

    def _missing(self, steps: StepsOf, keys: Mapping[OwnShard, Sequence[str]]) -> list[list[str]]:
        """Return for each shard the keys whose states are not known."""
        name = self._program.stages[steps.stage].name
        caches, fold = [shard.cache[name] for shard in steps.shards], self._program.folds.get(name)
        if fold is not None and not fold.is_cached:
            # Rows of the host are read anew, since another writer may have changed them.
            for cache in caches:
                cache.shrink(0)
        pairs = zip(steps.shards, caches, strict=True)
        return [cache.missing(keys[shard]) for shard, cache in pairs]

    async def _load(
        self, connection: AsyncConnection, steps: StepsOf, missing: Sequence[Sequence[str]]
    ) -> None:
        program, name = self._program, self._program.stages[steps.stage].name
        wanted = [key for own in missing for key in own]
        if not wanted:
            return
        fold, table = program.folds.get(name), program.tables.state
        if fold is not None:
            found = await fold.read(connection, wanted)
        else:
            found = await read_states(connection, table, program.id, name=name, keys=wanted)
        for shard, own in zip(steps.shards, missing, strict=True):
            shard.cache[name].read(own, found)

    def _compute(self, did: ShardDid, events: Sequence[Sequence[SourceRows]], number: int) -> None:
        """Do the stage up to the first step that fails; `events` are those of each step."""
        # `did` is added to, and the states in memory are those behind these steps then.
        stage = self._stages[number]
        self._calls.computes(did.shard.range.lo)
        for cut, own in zip(did.steps.cuts, events, strict=True):
            clock = stopwatch()
            began = clock()
            batch: EventBatch[Any] = EventBatch(own)
            cache = did.cache[stage.name]
            due = cache.timers.due(cut.now)
            done = did.done.setdefault(cut.step, StagesDone())
            computed = None
            if len(batch) or due:
                found = self._compute_step(did, cut, batch, stage=stage, due=due, done=done)
                if isinstance(found, PoisonedKey):
                    did.poisoned, did.step = found, cut.step
                    return
                computed = found
                keep(cache, computed, due)
                for name, messages in computed.messages.items():
                    did.sent.setdefault(name, {}).setdefault(cut.step, {})[number] = messages
                if not did.is_replay:
                    add_results(did, computed, cut.step)
            done.add(computed, clock() - began)

    def _compute_step(
        self,
        did: ShardDid,
        cut: Cut,
        batch: EventBatch[Any],
        *,
        stage: StageHandler,
        due: Sequence[str],
        done: StagesDone,
    ) -> Computed | PoisonedKey:
        program, shard, cache = self._program, did.shard, did.cache[stage.name]
        keys: Any = batch.keys if stage.by is None else keys_of(stage, batch)
        states = cache.states(dict.fromkeys([*keys, *due]))
        # So that this attempt moves the events of keys that fail, where the stage does that.
        is_last = shard.failures.at(cut.step) + 1 >= program.settings.failures_max
        return compute(
            stage,
            batch,
            states,
            step=StepTime(program.name, cut.step, cut.now),
            shard=shard.range,
            is_last_attempt=is_last or cut.step < shard.step,
            before=done.handed_out,
        )

    def _begin_thread(self, steps: StepsOf, *, finds_keys: bool) -> None:
        number, is_last = steps.stage, steps.stage + 1 == len(self._stages)
        keys: dict[OwnShard, list[str]] = {}
        steps.keys = keys if finds_keys else None

        def compute(did: ShardDid, own: Sequence[Sequence[SourceRows]]) -> None:
            if finds_keys:
                keys[did.shard] = self._keys(did, own, number)
                return
            self._compute(did, own, number)
            if is_last:
                finish(did)

        dids = [(steps.did[shard], steps.events[shard]) for shard in steps.shards]
        steps.thread = StageThread(dids, compute, calls=self._calls, wake=self._wake)

    async def _is_computed(self, steps: StepsOf) -> bool:
        """Return whether the thread has ended; False while it hangs in all of these shards."""
        while True:
            thread = steps.thread
            assert thread is not None
            await thread.wait()
            if thread.is_done or len(steps.shards) == 1:
                break
            self._set_apart(steps, thread)
        for shard in steps.shards:
            shard.is_computed = not thread.is_done
        if thread.is_done:
            steps.thread = None
        return thread.is_done

    def _set_apart(self, steps: StepsOf, thread: StageThread) -> None:
        """Have the shard in which a handler hangs go on alone, and the others without it."""
        did, steps.thread = thread.leave()
        apart = replace(steps, shards=[did.shard], did={did.shard: did}, thread=thread)
        did.shard.doing, did.shard.is_computed = apart, True
        self.under_way.append(apart)
        steps.shards = [shard for shard in steps.shards if shard is not did.shard]

    async def _send(self, steps: StepsOf) -> None:
        stage = self._receiving[steps.stage - 1]
        parcels = {}
        for shard in steps.shards:
            sent = steps.did[shard].sent.pop(stage.name, {})
            # Also if it is nothing: the others wait until it has been said.
            parcels[shard] = {step: sent.get(step, {}) for step in steps.numbers}
        for shard, text in (await self.exchange.send(stage, parcels)).items():
            did = steps.did[shard]
            did.differs, did.step = text, steps.cuts[0].step


def receiving_stages(program: FlowProgram) -> list[ReceivingStage]:
    is_batch = [stage.kind == "batch" for stage in program.stages]
    return [
        ReceivingStage(number, exchange.name, exchange.codec, is_batch[:number])
        for number, exchange in enumerate(program.exchanges, 1)
    ]


def _by_step(rows: Sequence[SourceRows], steps: StepsOf) -> list[list[SourceRows]]:
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
