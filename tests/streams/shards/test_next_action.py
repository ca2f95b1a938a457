"""What the loop of a shard does next, and what a release makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from rowlock.stream_errors import ShardStateError
from rowlock.streams.computing.hashing import BUCKETS, BucketRange
from rowlock.streams.cutter import FlowFacts
from rowlock.streams.shards.replicas import OwnShard, StepFailures
from rowlock.streams.shards.steps import NextAction, next_action, steer

NOTHING: Any = None
RUNNING, PAUSED, STOPPED = (
    FlowFacts(state, 9, False) for state in ("running", "paused", "stopped")
)
"""A flow whose step 9 is the first that is not cut."""


def shard(
    at: int, *, step: int = 7, version: int = 5, end: int | None = None, sent: int | None = None
) -> OwnShard:
    own = BucketRange(0, BUCKETS // 4)
    found = OwnShard(NOTHING, own, NOTHING, NOTHING, at, end, step, version)
    if sent is not None:
        found.sent = {(sent, "stage")}
    return found


@pytest.mark.parametrize(
    ("own", "flow", "action"),
    [
        (shard(5), RUNNING, NextAction.REPLAY),
        (shard(7), RUNNING, NextAction.RUN),
        (shard(8, step=8), RUNNING, NextAction.RUN),
        (shard(9, step=9), RUNNING, NextAction.CUT),
        (shard(5), PAUSED, NextAction.REPLAY),
        (shard(8, step=8), PAUSED, NextAction.RUN),
        (shard(9, step=9), PAUSED, NextAction.WAIT),
        (shard(5, end=8), RUNNING, NextAction.REPLAY),
        (shard(7, end=8), RUNNING, NextAction.RUN),
        (shard(8, step=8, end=8), RUNNING, NextAction.WRITE),
        (shard(8, step=8, version=8, end=8), RUNNING, NextAction.LEAVE),
    ],
)
def test_next(own: OwnShard, flow: FlowFacts, action: NextAction) -> None:
    """A shard would wait for a cut while one is there, cut what it has to leave to others, or be
    released with states that are not written.
    """
    assert next_action(own, flow, wanted=4) is action


@pytest.mark.parametrize(
    ("own", "flow", "action"),
    [
        (shard(7, version=7), RUNNING, NextAction.SPLIT),
        (shard(9, step=9, version=9), RUNNING, NextAction.SPLIT),
        (shard(7), RUNNING, NextAction.WRITE),
        (shard(6, version=6), RUNNING, NextAction.REPLAY),
        (shard(7, version=7), PAUSED, NextAction.RUN),
        (shard(7, version=7, end=7), RUNNING, NextAction.LEAVE),
    ],
)
def test_split(own: OwnShard, flow: FlowFacts, action: NextAction) -> None:
    """A replay would span a split."""
    assert next_action(own, flow, wanted=8) is action


@pytest.mark.parametrize("version", [5, 7])
def test_a_range_that_has_sent_is_not_split(version: int) -> None:
    """Messages would come twice: those of the range, and those of its halves."""
    assert next_action(shard(7, version=version, sent=7), RUNNING, wanted=8) is NextAction.RUN


@pytest.mark.parametrize("own", [shard(10, step=10), shard(5, step=10), shard(9, step=9, end=8)])
def test_impossible(own: OwnShard) -> None:
    """After a partial restore a shard would wait for ever for steps that it has done, or be
    released with a state that others do not expect.
    """
    with pytest.raises(ShardStateError, match="is at step"):
        next_action(own, RUNNING, wanted=4)


@pytest.mark.parametrize(("at", "doing", "end"), [(3, None, 7), (3, "steps", 7), (7, "steps", 8)])
def test_a_shard_that_leaves_repeats_what_is_written(at: int, doing: object, end: int) -> None:
    """States of the step at which a replay is broken off would be written as those of the step
    that the row says; or the step under way be lost.
    """
    own = shard(at)
    own.doing = doing
    steer(own, RUNNING, leaves=True)
    assert own.end == end
    steer(own, STOPPED, leaves=True)
    assert own.end == end


@pytest.mark.parametrize(("flow", "end"), [(RUNNING, None), (PAUSED, None), (STOPPED, 9)])
def test_a_shard_of_a_stopped_flow_does_what_is_cut(flow: FlowFacts, end: int | None) -> None:
    """Steps that are cut would be left behind the answer to a stop."""
    own = shard(7)
    steer(own, flow, leaves=False)
    assert own.end == end


def test_failures_count_at_one_step() -> None:
    """A shard that now and then meets a deadlock would be parked after a year."""
    failures = StepFailures(4, 7)
    assert (failures.at(7), failures.at(8)) == (4, 0)
    assert failures.with_failure(7) == (5, 7)
    assert failures.with_failure(8) == (1, 8)
