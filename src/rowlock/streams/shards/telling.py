"""Tells what happened to shards and steps, where anybody listens; see ``events.py``."""

from __future__ import annotations

from rowlock.events import emit, has_listeners
from rowlock.streams import events
from rowlock.streams.committing.step_write import StepWrite
from rowlock.streams.cutting.plan import Cut
from rowlock.streams.shards.own_shard import OwnShard


class Telling:
    """Tells facts about one flow.

    Args:
        pipeline: its name.
        flow: the name of the flow.
    """

    def __init__(self, pipeline: str, flow: str) -> None:
        self._of = (pipeline, flow)

    def __repr__(self) -> str:
        return f"<Telling of {self._of[1]}>"

    def cut(self, cut: Cut) -> None:
        """Tell that a step was cut."""
        if has_listeners(events.StepCut):
            flags = (cut.is_checkpoint, cut.is_snapshot)
            emit(events.StepCut(*self._of, cut.step, cut.rows, *flags))

    def opened(self, shard: OwnShard) -> None:
        """Tell that a shard is worked on here."""
        if has_listeners(events.ShardOpened):
            emit(events.ShardOpened(*self._shard(shard), shard.version, shard.step))

    def released(self, shard: OwnShard) -> None:
        """Tell that a shard is worked on no longer."""
        if has_listeners(events.ShardReleased):
            emit(events.ShardReleased(*self._shard(shard), shard.step))

    def replayed(self, shard: OwnShard, first: int, end: int) -> None:
        """Tell that a shard has repeated the steps from `first` to one below `end`."""
        if has_listeners(events.ShardReplayed) and first < end:
            emit(events.ShardReplayed(*self._shard(shard), first, end - 1))

    def failed(self, shard: OwnShard, step: int, error: str, *, is_parked: bool) -> None:
        """Tell that a shard could not do a step."""
        if has_listeners(events.StepFailed):
            failures = shard.failures.with_failure(step).failures
            emit(events.StepFailed(*self._shard(shard), step, error, failures, is_parked))

    def written(self, shard: OwnShard, write: StepWrite) -> None:
        """Tell that steps of a shard were written, or its states."""
        if has_listeners(events.StepDone):
            self._done(shard, write)
        if write.is_version and has_listeners(events.CheckpointWritten):
            emit(events.CheckpointWritten(*self._shard(shard), write.version, len(write.states)))

    def _done(self, shard: OwnShard, write: StepWrite) -> None:
        parts = {part.step: part for part in write.parts}
        for step in range(write.before, write.step):
            part = parts.get(step)
            rows, outputs = (0, 0) if part is None else (part.rows, part.outputs)
            emit(events.StepDone(*self._shard(shard), step, rows, outputs))

    def _shard(self, shard: OwnShard) -> tuple[str, str, int, int]:
        return (*self._of, shard.range.lo, shard.range.hi)
