"""Tests of the queue: order, watermarks, wake-ups that are not lost, and its end."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rowlock import PipelineItem
from rowlock.pipelines.context import ItemQueue
from rowlock.testing import virtual_time

from .scenes import ticket

Queue = ItemQueue[Any]


@virtual_time
async def test_oldest_due_first_across_fetches() -> None:
    """A row that heads the line would wait behind everything that an earlier fetch brought."""
    queue: Queue = ItemQueue(10, 5)
    late, early, never = ticket(20.0), ticket(10.0), ticket(float("-inf"))
    queue.put([late])
    queue.put([early, never])
    assert queue.waiting() == [never, early, late]
    assert [queue.get() for _ in range(3)] == [never, early, late]


@virtual_time
async def test_equals_leave_in_the_order_in_which_they_came() -> None:
    """Of rows that were due together, the first would be overtaken for ever."""
    queue: Queue = ItemQueue(10, 5)
    items = [ticket(1.0) for _ in range(5)]
    queue.put(items[:2])
    queue.put(items[2:])
    assert [queue.get() for _ in items] == items


@virtual_time
async def test_watermarks() -> None:
    """The fetcher would claim more than there is room for, or not claim while workers starve."""
    queue: Queue = ItemQueue(4, 2)
    assert (queue.room, queue.is_low) == (4, True)
    queue.put([ticket()])
    assert (queue.room, queue.is_low) == (3, True)
    queue.put([ticket()])
    assert (queue.room, queue.is_low) == (2, False)
    queue.put([ticket(), ticket()])
    assert (queue.room, queue.is_low, len(queue)) == (0, False, 4)


@virtual_time
async def test_a_taken_item_frees_its_place_loudly() -> None:
    """The fetcher would not hear that there is room again."""
    queue: Queue = ItemQueue(2, 1)
    heard: list[int] = []
    queue.on_room = lambda: heard.append(queue.room)
    queue.put([ticket(), ticket()])
    queue.get()
    assert heard == [1]


@virtual_time
async def test_a_discarded_item_leaves_the_others_in_order_and_frees_its_place() -> None:
    """An item whose lease was lost would still be started, or keep its place for ever."""
    queue: Queue = ItemQueue(5, 1)
    items = [ticket(float(place)) for place in (3, 1, 4, 2)]
    queue.put(items)
    heard: list[int] = []
    queue.on_room = lambda: heard.append(queue.room)
    queue.discard([items[1]])
    queue.discard([items[1]])
    assert heard == [2]
    assert [item.place for item in queue.waiting()] == [2, 3, 4]
    assert [queue.get() for _ in range(3)] == [items[3], items[0], items[2]]


@virtual_time
async def test_close_returns_what_was_not_started_oldest_first() -> None:
    """What was claimed and not started would stay locked after a shutdown."""
    queue: Queue = ItemQueue(4, 2)
    items = [ticket(2.0), ticket(1.0)]
    queue.put(items)
    assert queue.close() == [items[1], items[0]]
    assert (len(queue), queue.room) == (0, 0)
    assert queue.close() == []
    assert queue.get() is None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(min_value=0, max_value=3)),
        st.tuples(st.just("take"), st.just(0)),
        st.tuples(st.just("discard"), st.integers(min_value=0, max_value=5)),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(steps=STEPS)
def test_no_item_is_lost_or_handed_out_twice(steps: list[tuple[str, int]]) -> None:
    """Some order of puts, takes and discards would lose an item, or hand one out twice, or tell
    nobody that there is one.
    """
    queue: Queue = ItemQueue(8, 4)
    told: list[int] = []
    queue.on_items = lambda: told.append(len(queue))
    put: list[PipelineItem[Any]] = []
    seen: list[PipelineItem[Any]] = []
    for name, number in steps:
        match name:
            case "put":
                items = [ticket(float(place)) for place in range(min(number, queue.room))]
                told.clear()
                queue.put(items)
                assert told == [len(queue)]
                put += items
            case "take":
                expected = next(iter(queue.waiting()), None)
                item = queue.get()
                assert item is expected
                seen += [item] if item is not None else []
            case "discard" if len(queue):
                item = queue.waiting()[number % len(queue)]
                queue.discard([item])
                seen.append(item)
    seen += queue.close()
    assert sorted(map(id, seen)) == sorted(map(id, put))


@virtual_time
async def test_a_queue_that_holds_nothing_ahead_has_room_for_those_who_are_idle() -> None:
    """A replica whose workers are all busy for hours would lease as many rows again, and keep
    them from one that is idle.
    """
    queue: Queue = ItemQueue(4, 1, holds_ahead=False)
    idle = 0
    queue.idle = lambda: idle
    assert (queue.room, queue.is_low) == (0, False)
    idle = 2
    assert (queue.room, queue.is_low) == (2, True)
    queue.put([ticket()])
    assert (queue.room, queue.is_low) == (1, True)
    idle = 1
    assert (queue.room, queue.is_low) == (0, False)


@virtual_time
async def test_what_was_asked_for_by_somebody_who_is_gone_waits_for_the_next() -> None:
    """A worker that is busy again while its row is being claimed would leave that row leased,
    and the fetcher with an error.
    """
    queue: Queue = ItemQueue(1, 1, holds_ahead=False)
    queue.put([item := ticket()])
    assert queue.get() is item
