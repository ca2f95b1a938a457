"""What is wished of a shard, and the state that comes of it."""

from __future__ import annotations

from typing import Any

import pytest

from rowlock.streams.computing.hashing import BUCKETS, BucketRange
from rowlock.streams.flow_view import FlowFacts
from rowlock.streams.shards.replicas import OwnShard
from rowlock.streams.shards.states import Run, Stop
from rowlock.streams.shards.steps import steered

NOTHING: Any = None


@pytest.mark.parametrize(("at", "doing", "end"), [(3, None, 7), (3, "steps", 7), (7, "steps", 8)])
def test_who_leaves_does_again_what_is_written(at: int, doing: object, end: int) -> None:
    """States of the step at which a replay is broken off would be written as those of the step
    that the row says.
    """
    shard = OwnShard(NOTHING, BucketRange(0, BUCKETS), NOTHING, NOTHING, step=7)
    shard.state, shard.doing = Run(at, written=7), doing
    facts = FlowFacts("running", 9, False, None, "")
    assert steered(shard, facts, leaves=True) == Stop(at, written=7, end=end)
