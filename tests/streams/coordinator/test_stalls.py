"""Why a flow does not advance: decided from two looks at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rowlock.streams.computing.hashing import BUCKETS
from rowlock.streams.inputs.candidates import OpenWriter
from rowlock.streams.shards.layout import even_layout
from rowlock.streams.stalls import (
    BusyCall,
    FlowLook,
    ShardLook,
    SourceLook,
    StallKind,
    stall_of,
    stall_of_cuts,
)

HELD = [ShardLook(each, 5, is_held=True, replica="host:7", seconds=3.0) for each in even_layout(4)]
WRITER = OpenWriter("3/7", 4711, "psql", 33.0)


def look(
    shards: Sequence[ShardLook] = HELD, *sources: SourceLook, next_step: int = 8, state: str = ""
) -> FlowLook:
    """Return a look at a flow whose shards have some steps to do."""
    return FlowLook(state or "running", next_step, shards, sources)


def source(upto: int, newest: int, mark: int, *writers: OpenWriter) -> SourceLook:
    return SourceLook("payments", upto, newest, mark, writers)


def with_first(**values: object) -> list[ShardLook]:
    return [replace(HELD[0], **values), *HELD[1:]]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shards", "kind", "words"),
    [
        (with_first(parked="no such account"), StallKind.PARKED, "parked at step 5: no such acc"),
        (
            with_first(is_held=False, failures=1, error="no such account"),
            StallKind.FAILING,
            "failed 1 time at step 5, and is tried again: no such account",
        ),
        (
            with_first(is_held=False, error="the session was closed"),
            StallKind.FAILING,
            "has failed at step 5, and is tried again: the session was closed",
        ),
        (with_first(is_held=False), StallKind.NO_HOLDER, "no replica holds the shard of buckets"),
        (
            [replace(one, is_held=False) for one in HELD],
            StallKind.NO_HOLDER,
            "no replica holds 4 shards",
        ),
        (
            with_first(seconds=9.25),
            StallKind.BUSY,
            "0..16384 is busy with step 5 at host:7; its last step took 9.2 s",
        ),
        (with_first(seconds=None), StallKind.BUSY, "is busy"),
    ],
)
def test_steps_that_are_not_done(shards: list[ShardLook], kind: StallKind, words: str) -> None:
    """An operator would look for the cause in the wrong place."""
    stall = stall_of(look(), look(shards))
    assert stall is not None
    assert stall.kind is kind
    assert words in stall.text


def test_the_worst_of_several_causes_is_told() -> None:
    """A shard that is parked would be called busy, and nobody would release it."""
    shards = [
        replace(HELD[0], is_held=False),
        replace(HELD[1], is_held=False, error="twice", failures=2),
        replace(HELD[2], parked="for good"),
        HELD[3],
    ]
    kinds = []
    while shards:
        stall = stall_of(look(), look(shards))
        assert stall is not None
        kinds.append(stall.kind)
        worst = {
            StallKind.PARKED: lambda one: one.parked is not None,
            StallKind.FAILING: lambda one: one.error is not None,
            StallKind.NO_HOLDER: lambda one: not one.is_held,
            StallKind.BUSY: lambda one: True,
        }[stall.kind]
        shards = [one for one in shards if not worst(one)]
    assert kinds == [StallKind.PARKED, StallKind.FAILING, StallKind.NO_HOLDER, StallKind.BUSY]


@pytest.mark.parametrize(
    ("first", "second", "kind", "words"),
    [
        ({"parked": "for good"}, {"error": "twice"}, StallKind.PARKED, "parked at step 4: for"),
        ({"error": "twice", "failures": 2}, {}, StallKind.FAILING, "failed 2 times at step 4"),
        ({"error": "long ago", "step": 5}, {"step": 5}, StallKind.NO_HOLDER, "no replica holds"),
    ],
)
def test_rows_that_a_broken_shard_keeps_from_being_cut(
    first: dict[str, Any], second: dict[str, Any], kind: StallKind, words: str
) -> None:
    """An operator would start more replicas, and none of them would hold a shard that is parked."""
    free = [replace(one, step=4, is_held=False) for one in HELD[:2]]
    shards = [replace(free[1], **second), replace(free[0], **first)]
    seen = look(shards, source(90, 120, 120), next_step=5)
    stall = stall_of_cuts(seen, seen)
    assert stall is not None
    assert stall.kind is kind
    assert words in stall.text
    held = replace(seen, shards=[*shards, replace(HELD[2], step=4)])
    cutting = stall_of_cuts(held, held)
    assert cutting is not None
    assert cutting.kind is StallKind.NOT_CUT


def test_calls_that_take_long() -> None:
    """The slowest key would be hidden behind another one, or a text have a thousand names."""
    ranges = even_layout(32)
    slow = [
        ShardLook(each, 5, is_held=True, replica="host:7", busy=BusyCall("add", f"k{n}", 2.0 + n))
        for n, each in enumerate(ranges)
    ]
    stall = stall_of(look(), look([*HELD, *slow]))
    assert stall is not None
    assert stall.kind is StallKind.BUSY
    first, *_, last = stall.text.split("; ")
    assert (
        first == f"{slow[-1]} is busy with step 5 at host:7: 'add' is at the key 'k31' for 33.0 s"
    )
    assert last == "and 16 more"
    assert stall.text.count("is at the key") == 16
    assert str(BusyCall("split", None, 1.5)) == "'split' is at all keys for 1.5 s"


def test_a_shard_that_is_further_is_no_cause() -> None:
    """A shard that is free for a moment would be named, while another one holds up all."""
    shards = [replace(HELD[0], step=7, is_held=False, parked="?"), *HELD[1:]]
    stall = stall_of(look(), look(shards))
    assert stall is not None
    assert stall.kind is StallKind.BUSY


def test_what_advances_is_not_stalled() -> None:
    """Whoever is slow would be called stuck, at every look."""
    further = [replace(one, step=6, is_held=False) for one in HELD]
    assert stall_of(look(), look(further)) is None


def test_what_has_nothing_to_do_is_not_stalled() -> None:
    """An idle flow would be called stuck."""
    seen = look(HELD, source(90, 90, 90), next_step=5)
    assert stall_of(seen, seen) is None
    # Steps that were cut since the first look may yet be done.
    assert stall_of(seen, look(HELD, next_step=8)) is None


def test_a_shard_waits_for_another_one() -> None:
    """In a flow with two stages each shard that waits would be called busy."""
    late = HELD[2].range
    stall = stall_of(look(), replace(look(), unsent={"postings": (), "sums": (late,)}))
    assert stall is not None
    assert stall.kind is StallKind.EXCHANGE
    assert "at stage 'sums' for the shard of buckets 32768..49152" in stall.text


def test_an_open_transaction_is_named() -> None:
    """Nobody would know whose transaction to end."""
    before = look(HELD, source(90, 120, 90, WRITER), next_step=5)
    stall = stall_of(before, before)
    assert stall is not None
    assert stall.kind is StallKind.HIGH_WATER
    assert "complete up to position 90 of 120" in stall.text
    assert "pid 4711 (psql, open for 33.0 s)" in stall.text
    more = look(HELD, source(90, 120, 90, WRITER, WRITER, WRITER), next_step=5)
    assert (stall_of(before, more) or stall).text.endswith("and 2 more")


def test_rows_that_came_since_the_first_look_are_no_stall() -> None:
    """Each short transaction would be named while it goes on."""
    before = look(HELD, source(90, 90, 90), next_step=5)
    assert stall_of(before, look(HELD, source(90, 120, 90, WRITER), next_step=5)) is None
    # The transaction that held it back has just ended, so the next step is about to be cut.
    held_back = look(HELD, source(90, 120, 90, WRITER), next_step=5)
    assert stall_of(held_back, look(HELD, source(90, 120, 120), next_step=5)) is None


def test_rows_that_could_be_cut_and_are_not() -> None:
    """A flow whose replicas are all gone, or cannot cut, would look idle."""
    seen = look(HELD, source(90, 120, 120), next_step=5)
    stall = stall_of(seen, seen)
    assert stall is not None
    assert stall.kind is StallKind.NOT_CUT
    free = [replace(one, is_held=False) for one in HELD]
    gone = stall_of(seen, replace(seen, shards=free))
    assert gone is not None
    assert gone.kind is StallKind.NO_HOLDER
    cut = look(HELD, source(120, 120, 120), next_step=5)
    assert stall_of(seen, cut) is None


def test_a_flow_that_is_paused_is_not_stalled() -> None:
    """What an operator wants would be reported as a fault; what keeps it from its end would not."""
    seen = look(HELD, source(90, 120, 120), next_step=5, state="paused")
    assert stall_of(seen, seen) is None
    stopping = look(with_first(parked="for good"), state="stopped")
    stall = stall_of(stopping, stopping)
    assert stall is not None
    assert stall.kind is StallKind.PARKED


def test_a_source_that_cannot_be_read_is_told() -> None:
    """Positions that went back would be seen in a log alone."""
    broken = replace(source(90, 90, 90), error="positions went back")
    seen = look(HELD, broken, next_step=5)
    stall = stall_of(seen, seen)
    assert stall is not None
    assert (stall.kind, stall.text) == (StallKind.SOURCE, "positions went back")
    assert sum(one.range.width for one in HELD) == BUCKETS
