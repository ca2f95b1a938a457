"""What the loop of a shard does next: one pure decision from its state and two rows.

The order of the cases is the order in which they matter: first what was written before is done
again, then what is cut, then the shard is divided, and only then is a step cut or waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from rowlock.stream_errors import ShardStateError, StepPassedError
from rowlock.streams.computing.buckets import BucketRange
from rowlock.streams.computing.hashing import BUCKETS
from rowlock.streams.shards.states import Pause, Paused, Run, ShardState, Stop, Stopped, is_replay


class NextAction(Enum):
    """What the loop of a shard does next.

    REPLAY: do the step `at` again, compare, and write no results.
    RUN: do the step `at`, which is cut, and write it.
    CUT: try to cut the step `at`.
    WAIT: until something changes.
    SPLIT: divide the shard; one half continues here.
    WRITE: write the state as the version `at`.
    LEAVE: release the lease; or end, where it is not held.
    """

    REPLAY = "replay"
    RUN = "run"
    CUT = "cut"
    WAIT = "wait"
    SPLIT = "split"
    WRITE = "write"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class FlowView:
    """What the loop of a shard needs to know of the flow's row.

    Attributes:
        next_step: the first step that is not cut.
        may_cut: the flow runs: what is found may be cut.
        shards_wanted: how many shards there are to be; a power of two.
    """

    next_step: int
    may_cut: bool
    shards_wanted: int


@dataclass(frozen=True, slots=True)
class ShardView:
    """What the loop needs to know of its shard's row.

    Attributes:
        range: its buckets.
        version: the step at the start of which the written state is.
        has_sent: messages of the step that it does next are recorded as those of this range.
    """

    range: BucketRange
    version: int
    has_sent: bool = False


def next_action(state: ShardState, flow: FlowView, shard: ShardView) -> NextAction:
    """Return what the loop does next, at its top.

    Raises:
        ShardStateError: the shard is further than the flow has cut.
        StepPassedError: it is further than where it was to stop.
    """
    match state:
        case Stopped():
            return NextAction.LEAVE
        case Paused():
            return NextAction.WAIT
        case Stop():
            return _of_stop(state, shard)
        case Run() | Pause():
            return _of_run(state, flow, shard)
        case _:
            assert_never(state)


def _of_stop(state: Stop, shard: ShardView) -> NextAction:
    if state.at > state.end:
        raise StepPassedError(at=state.at, end=state.end)
    if state.at < state.end:
        return NextAction.REPLAY if is_replay(state) else NextAction.RUN
    return NextAction.LEAVE if shard.version == state.at else NextAction.WRITE


def _of_run(state: Run | Pause, flow: FlowView, shard: ShardView) -> NextAction:
    if state.at > flow.next_step or state.written > flow.next_step:
        msg = f"{state} is ahead of the flow, whose next step is {flow.next_step}"
        raise ShardStateError(msg)
    if is_replay(state):
        return NextAction.REPLAY
    is_wide = shard.range.width * flow.shards_wanted > BUCKETS
    # Halves of a range that has sent would send the same again.
    if isinstance(state, Run) and is_wide and not shard.has_sent:
        return NextAction.SPLIT if shard.version == state.at else NextAction.WRITE
    if state.at < flow.next_step:
        return NextAction.RUN
    return NextAction.CUT if isinstance(state, Run) and flow.may_cut else NextAction.WAIT
