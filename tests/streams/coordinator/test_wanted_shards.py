"""How many shards there are to be where that follows the replicas."""

from __future__ import annotations

from rowlock.streams.shards.layout import DynamicShards, WantedShards

TENTH = DynamicShards(0.1)


def test_more_shards_at_once_and_fewer_later() -> None:
    """A replica that is started anew would have all shards joined and split again."""
    wanted = WantedShards(TENTH, shrinks_after_s=30)
    assert wanted.after(None, replicas=1, now=0) == 16
    assert wanted.after(16, replicas=2, now=1) == 32
    assert wanted.after(32, replicas=4, now=2) == 64
    assert wanted.after(64, replicas=4, now=3) == 64
    assert not wanted.is_waiting
    assert wanted.after(64, replicas=2, now=10) == 64
    assert wanted.is_waiting
    assert wanted.after(64, replicas=4, now=20) == 64
    # It had come back, so the time begins anew.
    assert wanted.after(64, replicas=2, now=30) == 64
    assert wanted.after(64, replicas=1, now=59) == 64
    assert wanted.after(64, replicas=2, now=60) == 32
    assert not wanted.is_waiting


def test_nothing_is_found_of_a_flow_that_says_its_number() -> None:
    """What a host has asked for by `reshard` would be written over."""
    assert WantedShards(16, shrinks_after_s=0).after(4, replicas=8, now=0) is None


def test_nothing_is_found_of_a_flow_that_nobody_works_on() -> None:
    """A flow would have its shards joined while all replicas are away for a moment."""
    wanted = WantedShards(TENTH, shrinks_after_s=0)
    assert wanted.after(64, replicas=0, now=0) is None
    assert wanted.after(None, replicas=0, now=100) is None
