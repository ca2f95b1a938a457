"""What happened to flows, in the past tense; see `rowlock.events`.

The replica that did it emits each event once, when the database has answered its COMMIT; if that
answer is lost, it emits none.
"""

from __future__ import annotations

from dataclasses import dataclass

from rowlock.events import Event


@dataclass(frozen=True, slots=True)
class FlowEvent(Event):
    """A fact about the flow named `flow`."""

    flow: str


@dataclass(frozen=True, slots=True)
class FlowStalled(FlowEvent):
    """A flow does not advance, for `reason`; emitted once for each kind of reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class StepCut(FlowEvent):
    """A step was cut, of `rows` rows over all shards."""

    step: int
    rows: int
    is_checkpoint: bool
    is_snapshot: bool


@dataclass(frozen=True, slots=True)
class OneShardEvent(FlowEvent):
    """A fact about the shard of the buckets from `lo` to one below `hi`."""

    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class StepDone(OneShardEvent):
    """A shard has done its part of a step: `rows` events and `outputs` results, both written with
    it.
    """

    step: int
    rows: int
    outputs: int


@dataclass(frozen=True, slots=True)
class StepFailed(OneShardEvent):
    """A shard could not do a step, for the `failures`-th time. Its shard is retried later, or it is
    parked. `error` is shortened; it names the key, where that is known.
    """

    step: int
    error: str
    failures: int
    is_parked: bool


@dataclass(frozen=True, slots=True)
class CheckpointWritten(OneShardEvent):
    """The states of a shard were written as of the start of `step`: `states` of them had
    changed.
    """

    step: int
    states: int


@dataclass(frozen=True, slots=True)
class ShardOpened(OneShardEvent):
    """A replica works on a shard from now on. Its states are those of the start of `version`; steps
    from there to `step` are replayed.
    """

    version: int
    step: int


@dataclass(frozen=True, slots=True)
class ShardReplayed(OneShardEvent):
    """A shard has repeated the steps from `first` to `last`; results came out as they were
    written.
    """

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ShardReleased(OneShardEvent):
    """A replica works on a shard no longer, whose next step is `step`; all is written, and the
    lease ends with that. Not emitted for a shard that was lost.
    """

    step: int
