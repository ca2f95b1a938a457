"""Timers of nodes: threads set and cancel them, in any order as the loop sees it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rowlock.graph.event_loop import LoopLanes
from rowlock.testing import virtual_time

SECONDS = 5.0


class TimedNode:
    """What the loop asks of a node about its timer.

    Attributes:
        timer: the number of its latest timer.
        has_timer: that timer is set.
    """

    def __init__(self) -> None:
        self.timer = 0
        self.has_timer = False

    def arm(self) -> int:
        """Set the next timer, as the scheduler does under its mutex."""
        self.timer += 1
        self.has_timer = True
        return self.timer


class Fired:
    """A scheduler that notes which timers have fired."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def timer_fired(self, node: TimedNode, number: int) -> None:
        self.numbers.append(number)

    def advance(self, *, wait: bool, asks_max: int) -> list[Any]:
        return []


def lanes_with(fired: Fired) -> Any:
    lanes: Any = LoopLanes(on_stop=lambda: None, on_end=lambda: None)
    lanes.scheduler = fired
    return lanes


@virtual_time
async def test_a_late_setting_takes_no_later_timer_away() -> None:
    """A batch would wait for its time for ever: what one thread decided first reached the loop
    behind what another thread decided after it.
    """
    fired, node = Fired(), TimedNode()
    lanes = lanes_with(fired)
    first, second = node.arm(), node.arm()
    lanes.set_timer(node, second, SECONDS)
    lanes.set_timer(node, first, SECONDS)
    await asyncio.sleep(2 * SECONDS)
    assert fired.numbers == [second]


@virtual_time
async def test_a_late_cancelling_takes_no_later_timer_away() -> None:
    """As above, where the first timer was cancelled before the second was set."""
    fired, node = Fired(), TimedNode()
    lanes = lanes_with(fired)
    lanes.set_timer(node, node.arm(), SECONDS)
    await asyncio.sleep(0)
    node.has_timer = False
    number = node.arm()
    lanes.set_timer(node, number, SECONDS)
    lanes.cancel_timer(node)
    await asyncio.sleep(2 * SECONDS)
    assert fired.numbers == [number]


@virtual_time
@pytest.mark.parametrize("is_set_again", [False, True])
async def test_a_timer_that_was_cancelled_does_not_fire(is_set_again: bool) -> None:
    """A node would be asked for a time that was called off."""
    fired, node = Fired(), TimedNode()
    lanes = lanes_with(fired)
    first = node.arm()
    lanes.set_timer(node, first, SECONDS)
    await asyncio.sleep(0)
    if is_set_again:
        lanes.set_timer(node, node.arm(), 3 * SECONDS)
    else:
        node.has_timer = False
        lanes.cancel_timer(node)
    await asyncio.sleep(2 * SECONDS)
    assert fired.numbers == []
    await asyncio.sleep(2 * SECONDS)
    assert fired.numbers == ([node.timer] if is_set_again else [])
