"""Tests of the queue: order, watermarks, wake-ups that are not lost, and its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowlock import InternalError, PipelineItem
from rowlock.pipelines.item_queue import ItemQueue
from rowlock.testing import run_virtual, virtual_time

from .scenes import ticket, turns

Queue = ItemQueue[Any]
Taker = asyncio.Task[PipelineItem[Any] | None]


def taker_of(queue: Queue) -> Taker:
    """Start a worker that wants one item."""
    return asyncio.create_task(queue.take())


@virtual_time
async def test_oldest_due_first_across_fetches() -> None:
    """A row that heads the line would wait behind everything that an earlier fetch brought."""
    queue: Queue = ItemQueue(10, 5)
    late, early, never = ticket(20.0), ticket(10.0), ticket(float("-inf"))
    queue.put([late])
    queue.put([early, never])
    assert list(queue) == [never, early, late]
    assert [await queue.take() for _ in range(3)] == [never, early, late]


@virtual_time
async def test_equals_leave_in_the_order_in_which_they_came() -> None:
    """Of rows that were due together, the first would be overtaken for ever."""
    queue: Queue = ItemQueue(10, 5)
    items = [ticket(1.0) for _ in range(5)]
    queue.put(items[:2])
    queue.put(items[2:])
    assert [await queue.take() for _ in items] == items


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
async def test_an_overflow_is_a_bug_of_ours_and_adds_nothing() -> None:
    """Memory would grow without bound, or a batch be queued by half."""
    queue: Queue = ItemQueue(2, 1)
    queue.put([ticket()])
    with pytest.raises(InternalError, match="2 items for 1 places"):
        queue.put([ticket(), ticket()])
    assert len(queue) == 1


@virtual_time
async def test_a_waiting_worker_is_woken_at_once() -> None:
    """An item would lie in the queue while workers are idle."""
    queue: Queue = ItemQueue(4, 2)
    takers = [taker_of(queue) for _ in range(3)]
    await turns()
    items = [ticket(), ticket()]
    queue.put(items)
    await turns()
    assert [taker.done() for taker in takers] == [True, True, False]
    assert [taker.result() for taker in takers[:2]] == items
    queue.close()
    assert await takers[2] is None


@virtual_time
async def test_a_taken_item_frees_its_place_loudly() -> None:
    """The fetcher would not hear that there is room again."""
    queue: Queue = ItemQueue(2, 1)
    heard: list[int] = []
    queue.on_room = lambda: heard.append(queue.room)
    queue.put([ticket(), ticket()])
    await queue.take()
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
    assert [item.place for item in queue] == [2, 3, 4]
    assert [await queue.take() for _ in range(3)] == [items[3], items[0], items[2]]


@virtual_time
async def test_close_returns_what_was_not_started_oldest_first() -> None:
    """What was claimed and not started would stay locked after a shutdown."""
    queue: Queue = ItemQueue(4, 2)
    items = [ticket(2.0), ticket(1.0)]
    queue.put(items)
    assert queue.close() == [items[1], items[0]]
    assert (len(queue), queue.room) == (0, 0)
    assert queue.close() == []
    assert await queue.take() is None
    with pytest.raises(InternalError):
        queue.put([ticket()])


@virtual_time
async def test_close_sends_every_waiting_worker_home() -> None:
    """A shutdown would wait for workers that wait for items."""
    queue: Queue = ItemQueue(4, 2)
    takers = [taker_of(queue) for _ in range(3)]
    await turns()
    queue.close()
    assert await asyncio.gather(*takers) == [None, None, None]


@virtual_time
async def test_a_cancelled_worker_hands_its_wake_up_on() -> None:
    """An item would lie in the queue although another worker waits, until the next one comes."""
    queue: Queue = ItemQueue(4, 2)
    first, second = taker_of(queue), taker_of(queue)
    await turns()
    queue.put([item := ticket()])
    first.cancel()
    await turns()
    assert first.cancelled()
    assert second.done()
    assert second.result() is item


@virtual_time
async def test_workers_that_gave_up_waiting_are_passed_over() -> None:
    """A wake-up would go to a worker that is no longer there."""
    queue: Queue = ItemQueue(4, 2)
    first, second = taker_of(queue), taker_of(queue)
    await turns()
    first.cancel()
    await turns()
    queue.put([item := ticket()])
    await turns()
    assert second.done()
    assert second.result() is item


@virtual_time
async def test_repr_tells_its_state() -> None:
    """A log line about the queue would say nothing."""
    queue: Queue = ItemQueue(4, 2)
    queue.put([ticket()])
    assert repr(queue) == "<ItemQueue 1/4, low 2, 0 waiting>"
    queue.close()
    assert repr(queue) == "<ItemQueue 0/4, low 2, 0 waiting closed>"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(min_value=0, max_value=3)),
        st.tuples(st.just("take"), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(min_value=0, max_value=5)),
        st.tuples(st.just("discard"), st.integers(min_value=0, max_value=5)),
        st.tuples(st.just("settle"), st.just(0)),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(steps=STEPS)
def test_no_item_waits_while_a_worker_waits(steps: list[tuple[str, int]]) -> None:
    """Some order of puts, takes, cancellations and discards would lose a wake-up or an item, or hand one out twice."""

    async def play() -> None:
        queue: Queue = ItemQueue(8, 4)
        takers: list[Taker] = []
        put: list[PipelineItem[Any]] = []
        discarded: list[PipelineItem[Any]] = []
        for name, number in steps:
            match name:
                case "put":
                    items = [ticket(float(place)) for place in range(min(number, queue.room))]
                    queue.put(items)
                    put += items
                case "take":
                    takers.append(taker_of(queue))
                case "cancel" if takers:
                    takers[number % len(takers)].cancel()
                case "discard" if len(queue):
                    item = list(queue)[number % len(queue)]
                    queue.discard([item])
                    discarded.append(item)
                case "settle":
                    await turns(5)
                    assert not (len(queue) and any(not taker.done() for taker in takers)), "an item waits for nobody"
        await turns(5)
        left = queue.close()
        await asyncio.wait(takers or [asyncio.create_task(turns())])
        taken = [taker.result() for taker in takers if not taker.cancelled()]
        seen = [item for item in taken if item is not None] + discarded + left
        assert sorted(map(id, seen)) == sorted(map(id, put))

    run_virtual(play)


@virtual_time
async def test_a_queue_that_holds_nothing_ahead_has_room_for_those_who_wait() -> None:
    """A replica whose workers are all busy for hours would lease as many rows again, and keep them from one that is idle."""
    queue: Queue = ItemQueue(4, 1, holds_ahead=False)
    told: list[tuple[int, bool]] = []
    queue.on_room = lambda: told.append((queue.room, queue.is_low))
    assert (queue.room, queue.is_low) == (0, False)
    first, second = taker_of(queue), taker_of(queue)
    await turns()
    assert told == [(1, True), (2, True)]
    queue.put([ticket()])
    assert queue.room == 1
    await turns()
    assert (first.done(), second.done(), queue.room) == (True, False, 1)
    second.cancel()
    await turns()
    assert (queue.room, queue.is_low) == (0, False)


@virtual_time
async def test_what_was_asked_for_by_somebody_who_is_gone_waits_for_the_next() -> None:
    """A worker that is cancelled while its row is being claimed would leave that row leased, and the fetcher with an error."""
    queue: Queue = ItemQueue(1, 1, holds_ahead=False)
    taker = taker_of(queue)
    await turns()
    taker.cancel()
    await turns()
    queue.put([item := ticket()])
    assert await queue.take() is item
    with pytest.raises(InternalError, match="2 items for 1 places"):
        queue.put([ticket(), ticket()])
