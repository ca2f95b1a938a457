"""What the loop of a shard does next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rowlock.stream_errors import ShardStateError, StepPassedError
from rowlock.streams.computing.hashing import BUCKETS, BucketRange
from rowlock.streams.shards.states import (
    FlowView,
    NextAction,
    Pause,
    Paused,
    Run,
    ShardState,
    ShardView,
    Stop,
    Stopped,
    next_action,
)

FLOW = FlowView(next_step=9, may_cut=True, shards_wanted=4)
QUIET = replace(FLOW, may_cut=False)
WIDE = replace(FLOW, shards_wanted=8)


def shard(version: int, *, has_sent: bool = False) -> ShardView:
    return ShardView(BucketRange(0, BUCKETS // 4), version, has_sent)


@pytest.mark.parametrize(
    ("state", "flow", "version", "action"),
    [
        (Stopped(), FLOW, 5, NextAction.LEAVE),
        (Run(5, 7), FLOW, 5, NextAction.REPLAY),
        (Run(7, 7), FLOW, 5, NextAction.RUN),
        (Run(8, 7), FLOW, 5, NextAction.RUN),
        (Run(9, 7), FLOW, 9, NextAction.CUT),
        (Run(9, 7), QUIET, 9, NextAction.WAIT),
        (Pause(5, 7), FLOW, 5, NextAction.REPLAY),
        (Pause(8, 7), FLOW, 5, NextAction.RUN),
        (Pause(9, 7), FLOW, 9, NextAction.WAIT),
        (Paused(9, 7), FLOW, 9, NextAction.WAIT),
        (Stop(5, 7, 8), FLOW, 5, NextAction.REPLAY),
        (Stop(7, 7, 8), FLOW, 5, NextAction.RUN),
        (Stop(8, 7, 8), FLOW, 5, NextAction.WRITE),
        (Stop(8, 7, 8), FLOW, 8, NextAction.LEAVE),
        (Stop(6, 7, 6), FLOW, 5, NextAction.WRITE),
    ],
    ids=str,
)
def test_next(state: ShardState, flow: FlowView, version: int, action: NextAction) -> None:
    """A shard would wait for a cut while one is there, or cut what it has to leave to others."""
    assert next_action(state, flow, shard(version)) is action


@pytest.mark.parametrize(
    ("state", "flow", "version", "action"),
    [
        (Run(7, 7), WIDE, 7, NextAction.SPLIT),
        (Run(9, 7), WIDE, 9, NextAction.SPLIT),
        (Run(7, 7), WIDE, 5, NextAction.WRITE),
        (Run(6, 7), WIDE, 6, NextAction.REPLAY),
        (Pause(7, 7), WIDE, 7, NextAction.RUN),
        (Stop(7, 7, 7), WIDE, 7, NextAction.LEAVE),
        (Run(7, 7), replace(FLOW, shards_wanted=2), 7, NextAction.RUN),
    ],
    ids=str,
)
def test_split(state: ShardState, flow: FlowView, version: int, action: NextAction) -> None:
    """A replay would span a split."""
    assert next_action(state, flow, shard(version)) is action


@pytest.mark.parametrize("version", [5, 7])
def test_a_range_that_has_sent_is_not_split(version: int) -> None:
    """Messages would come twice: those of the range, and those of its halves."""
    assert next_action(Run(7, 7), WIDE, shard(version, has_sent=True)) is NextAction.RUN


@pytest.mark.parametrize(
    ("state", "flow"), [(Run(10, 7), FLOW), (Run(5, 10), FLOW), (Pause(10, 7), FLOW)]
)
def test_impossible(state: ShardState, flow: FlowView) -> None:
    """After a partial restore a shard would wait for ever for steps that it has done."""
    with pytest.raises(ShardStateError):
        next_action(state, flow, shard(5))


def test_passed() -> None:
    """A shard would be released with a state that others do not expect."""
    with pytest.raises(StepPassedError):
        next_action(Stop(9, 7, 8), FLOW, shard(9))
