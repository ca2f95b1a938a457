"""Each lag has a cause, in words: decided from one look at a flow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rowlock.streams.inputs.candidates import OpenWriter
from rowlock.streams.shards.layout import even_layout
from rowlock.streams.stalls import FlowLook, ShardLook, SourceLook
from rowlock.streams.status import NOTHING, flow_text, shard_text, why_not_done

WRITER = OpenWriter("3/7", 4711, "psql", 33.0)
AT_END = [ShardLook(each, 8, is_held=True, replica="host:7") for each in even_layout(4)]
DONE = SourceLook("payments", upto=90, newest=90, mark=90)
LOOK = FlowLook("running", 8, AT_END, [DONE])


def with_shards(first: ShardLook, *others: ShardLook) -> FlowLook:
    return replace(LOOK, shards=[first, *others, *AT_END[1 + len(others) :]])


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (LOOK, NOTHING),
        (replace(LOOK, state="paused"), NOTHING),
        (
            with_shards(replace(AT_END[0], step=5, parked="no such account")),
            "0..16384 is parked at step 5: no such account",
        ),
        (replace(LOOK, state="paused", sources=[replace(DONE, newest=95)]), "the flow is paused"),
        (
            replace(LOOK, sources=[replace(DONE, newest=95, mark=95)]),
            "'payments' has rows up to position 95, and no step is cut for them",
        ),
    ],
)
def test_what_a_flow_waits_for(look: FlowLook, words: str) -> None:
    """An operator would be shown a lag without a cause, or a wrong one."""
    assert words in flow_text(look)


def test_each_shard_has_its_own_cause() -> None:
    """All shards would be shown with the cause of the slowest."""
    parked = replace(AT_END[0], step=5, parked="no such account")
    free = replace(AT_END[1], step=6, is_held=False)
    busy = replace(AT_END[2], step=7)
    look = with_shards(parked, free, busy)
    texts = [shard_text(look, shard) for shard in look.shards]
    assert texts[0] is not None
    assert "is parked at step 5" in texts[0]
    assert texts[1] == f"no replica holds the shard of buckets {free.range}, at step 6"
    assert texts[2] == f"the shard of buckets {busy.range} is busy with step 7 at host:7"
    assert texts[3] is None


def test_a_shard_that_waits_in_an_exchange() -> None:
    """A shard would be called busy that waits for another one."""
    waiting, parked = replace(AT_END[0], step=5), replace(AT_END[1], step=5, parked="broken")
    slow = replace(AT_END[2], step=5)
    look = replace(with_shards(waiting, slow), unsent={"postings": [slow.range]})
    look = replace(look, shards=[waiting, AT_END[1], slow, AT_END[3]])
    text = shard_text(look, waiting)
    assert text == f"shards wait in step 5 at stage 'postings' for {slow}"
    assert shard_text(look, slow) == f"{slow} is busy with step 5 at host:7"
    look = replace(look, shards=[waiting, parked], unsent={"postings": [parked.range]})
    assert f"{parked} is parked" in (shard_text(look, waiting) or "")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "no row of payments is visible at position 95"),
        ({"held_back_by": (WRITER,), "mark": 0}, "waits for the transaction of pid 4711"),
        ({"upto": 95, "newest": 95}, "is busy with step 5"),
    ],
)
def test_why_a_row_is_not_done(changed: dict[str, Any], words: str) -> None:
    """A service would tell its user a reason that concerns another row."""
    source = replace(DONE, **changed)
    look = replace(LOOK, shards=[replace(AT_END[0], step=5), *AT_END[1:]], sources=[source])
    assert words in why_not_done(look, {"payments": 95})


def test_a_row_of_a_paused_flow() -> None:
    """A wait would be explained by a transaction, and the flow be paused."""
    source = replace(DONE, held_back_by=(WRITER,))
    look = replace(LOOK, state="paused", sources=[source])
    assert why_not_done(look, {"payments": 95}) == "the flow is paused"
