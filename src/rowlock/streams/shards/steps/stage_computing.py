"""Computes the steps of one shard from what was read, and compares replays: nothing is read here.

It runs in a thread, while the shard waits; so nothing else touches its states.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
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
from rowlock.streams.shards.own_shard import OwnShard
from rowlock.streams.shards.steps.steps_of import ShardDid, StepsOf
from rowlock.streams.state.cache import StageCache


class StageComputing:
    """Computes a stage of a flow, for shards of one replica.

    Args:
        program: the flow.
        stage: of the flow.
    """

    def __init__(self, program: FlowProgram, stage: StageHandler) -> None:
        self._program = program
        self._stage = stage

    def __repr__(self) -> str:
        return f"<StageComputing of {self._program.name}>"

    def compute_shard(
        self,
        shard: OwnShard,
        rows: Sequence[SourceRows],
        steps: StepsOf,
        *,
        parts: Mapping[tuple[int, int], Any],
    ) -> ShardDid:
        """Return what a shard did, up to the first step that failed or came out otherwise.

        Args:
            shard: whose states are changed in memory.
            rows: of the shard in all of these steps, source by source.
            steps: that it does.
            parts: what replays are compared with, by `lo` and step.
        """
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


def due_keys(shard: OwnShard, steps: StepsOf) -> list[str]:
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
