"""Computes one stage of the steps of one shard from what was read: nothing is read here.

It runs in a thread, while the shard waits; so nothing else touches its states. A shard whose
handler hangs may be dropped meanwhile, and begin anew: with states that are not the thread's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from rowlock.clock import stopwatch
from rowlock.streams.committing.step_write import PartRow
from rowlock.streams.computing.batch import EventBatch
from rowlock.streams.computing.compute import Computed, PoisonedKey, compute, keys_of
from rowlock.streams.computing.context import StepTime
from rowlock.streams.computing.handlers import StageHandler
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.computing.rows import SourceRows
from rowlock.streams.cutting.flow_view import RecordedCut
from rowlock.streams.outputs.output import ResultRow
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.failures import is_last_attempt
from rowlock.streams.shards.steps.slow_calls import SlowCalls
from rowlock.streams.shards.steps.steps_of import ShardDid, StagesDone
from rowlock.streams.state.cache import StageCache


class StageComputing:
    """Computes a stage of a flow, for shards of one replica.

    Args:
        program: the flow.
        number: of the stage.
        calls: sees which handler is called.
    """

    def __init__(self, program: FlowProgram, number: int, calls: SlowCalls) -> None:
        self._program = program
        self._number = number
        self._calls = calls
        self._stage: StageHandler = calls.watched(program.stages[number])

    def __repr__(self) -> str:
        return f"<StageComputing of {self._program.name}, {self._stage.name}>"

    def compute(self, did: ShardDid, events: Sequence[Sequence[SourceRows]]) -> None:
        """Do the stage, up to the first step that fails.

        Args:
            did: by the shard, in the stages before; it is added to, and the states in memory are
                those behind these steps then.
            events: of the shard, of each step, part by part.
        """
        self._calls.computes(did.shard.range.lo)
        for cut, own in zip(did.steps.cuts, events, strict=True):
            clock = stopwatch()
            began = clock()
            batch: EventBatch[Any] = EventBatch(own)
            cache = did.cache[self._stage.name]
            due = cache.timers.due(cut.now)
            done = did.done.setdefault(cut.step, StagesDone())
            computed = None
            if len(batch) or due:
                found = self._compute_step(did, cut, batch, due=due, done=done)
                if isinstance(found, PoisonedKey):
                    did.poisoned, did.step = found, cut.step
                    return
                computed = found
                keep(cache, computed, due)
                self._hand_out(did, cut.step, computed)
            done.add(computed, clock() - began)

    def _compute_step(
        self,
        did: ShardDid,
        cut: RecordedCut,
        batch: EventBatch[Any],
        *,
        due: Sequence[str],
        done: StagesDone,
    ) -> Computed | PoisonedKey:
        program, shard, cache = self._program, did.shard, did.cache[self._stage.name]
        keys: Any = batch.keys if self._stage.by is None else keys_of(self._stage, batch)
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
            before=done.handed_out,
        )

    def _hand_out(self, did: ShardDid, step: int, computed: Computed) -> None:
        for name, messages in computed.messages.items():
            did.sent.setdefault(name, {}).setdefault(step, {})[self._number] = messages
        if not did.is_replay:
            add_results(did, computed, step)


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
    """Add the results of a stage behind those of the stages before."""
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
