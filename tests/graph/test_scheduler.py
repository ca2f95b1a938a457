"""The scheduler by itself: its inbox, its timers, and what is done after the mutex is free."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from typing import Any

import pytest

from rowlock.errors import InternalError
from rowlock.graph import Graph
from rowlock.graph.event_loop import LoopLanes
from rowlock.graph.processor import NodeStatus, Port, Processor
from rowlock.graph.run import GraphRun, run_graph
from rowlock.graph.scheduler import UNLIMITED, Phase, Scheduler
from rowlock.graph.topology import Node
from rowlock.testing import virtual_time

from .nodes import Apply, Collect, Feed, Watched
from .runs import applied, got, line_of


class Silent:
    """An event loop that does nothing; it counts what it is asked for."""

    def __init__(self) -> None:
        self.acts: list[str] = []

    def advance_soon(self) -> None:
        self.acts.append("advance")

    def set_timer(self, node: Node, number: int, seconds: float) -> None:
        self.acts.append(f"timer {number}: {seconds}")

    def cancel_timer(self, node: Node) -> None:
        self.acts.append("no timer")

    def cancel_calls(self) -> None:
        self.acts.append("cancel")

    def ended(self) -> None:
        self.acts.append("ended")


class Waits(Watched):
    """A node that is woken from outside, and does what it is given."""

    def __init__(self, act: Callable[[Waits], NodeStatus], *, is_open: bool = True) -> None:
        super().__init__(name="waits")
        self.given = act
        self.opens = is_open
        self.times = 0

    def is_open(self) -> bool:
        return self.opens

    def answer(self, changed: Sequence[Port]) -> NodeStatus:
        self.times += 1
        return self.given(self)


def scheduled(*processors: Processor) -> tuple[Scheduler, Silent]:
    """Return a scheduler that has begun to run these nodes."""
    graph, outside = Graph(), Silent()
    for one in processors:
        graph.add([one])
    scheduler = Scheduler(graph, outside=outside, stopwatch=lambda: 0.0)
    for _ in scheduler.start():
        pass
    assert scheduler.advance(wait=True, asks_max=UNLIMITED) == []
    return scheduler, outside


def test_entry_made_under_the_mutex_is_seen_by_its_holder() -> None:
    """A wake-up would be lost: the loop does not wait for the mutex, and relies on its holder."""

    def wake_other(_node: Waits) -> NodeStatus:
        scheduler_of_other.advance(wait=False, asks_max=UNLIMITED)
        if first.times == 2:
            second.wake()
        return NodeStatus.NEED_DATA

    scheduler_of_other, _ = scheduled(Waits(lambda _node: NodeStatus.NEED_DATA))
    first = Waits(wake_other)
    second = Waits(lambda _node: NodeStatus.NEED_DATA)
    scheduler, _ = scheduled(first, second)
    first.wake()
    scheduler.advance(wait=True, asks_max=UNLIMITED)
    assert (first.times, second.times) == (2, 2)


def test_calls_are_counted_until_they_are_taken_in() -> None:
    """A run would end, or be called a deadlock, while its calls run."""
    answers = [NodeStatus.SYNC, NodeStatus.FINISHED]
    graph, outside = Graph(), Silent()
    graph.add([Waits(lambda _node: answers.pop(0), is_open=False)])
    scheduler = Scheduler(graph, outside=outside, stopwatch=lambda: 0.0)
    for _ in scheduler.start():
        pass
    (node,) = scheduler.advance(wait=True, asks_max=UNLIMITED)
    assert (scheduler.in_flight, scheduler.phase) == (1, Phase.RUNNING)
    scheduler.call_ended(node)
    assert scheduler.advance(wait=True, asks_max=UNLIMITED) == []
    assert (scheduler.in_flight, scheduler.phase, scheduler.error) == (0, Phase.ENDED, None)


def test_timer_is_in_flight() -> None:
    """A batch that waits for its time would be taken for a deadlock."""

    def wait(node: Waits) -> NodeStatus:
        if node.is_due:
            return NodeStatus.FINISHED
        node.wake_after(5.0)
        return NodeStatus.NEED_DATA

    waiting = Waits(wait, is_open=False)
    scheduler, outside = scheduled(waiting)
    assert (scheduler.in_flight, outside.acts) == (1, ["timer 1: 5.0"])
    waiting.wake()
    scheduler.advance(wait=True, asks_max=UNLIMITED)
    assert (scheduler.in_flight, outside.acts[1:]) == (1, ["advance", "timer 2: 5.0"])
    assert isinstance(waiting.owner, Node)
    scheduler.timer_fired(waiting.owner, 1)
    scheduler.advance(wait=True, asks_max=UNLIMITED)
    assert scheduler.phase is Phase.RUNNING
    scheduler.timer_fired(waiting.owner, 2)
    scheduler.advance(wait=True, asks_max=UNLIMITED)
    assert (scheduler.phase, scheduler.error) == (Phase.ENDED, None)


def test_finished_node_needs_no_timer() -> None:
    """A graph would wait an hour for a batch that was emitted long ago."""

    def finish(node: Waits) -> NodeStatus:
        node.wake_after(3600.0)
        return NodeStatus.FINISHED

    scheduler, outside = scheduled(Waits(finish))
    assert (scheduler.phase, outside.acts) == (
        Phase.ENDED,
        ["timer 1: 3600.0", "no timer", "ended"],
    )


def test_timer_outside_of_an_event_is_a_mistake() -> None:
    """A timer would be counted while another thread schedules."""
    waiting = Waits(lambda _node: NodeStatus.NEED_DATA)
    scheduled(waiting)
    with pytest.raises(InternalError, match=r"own event\(\)"):
        waiting.wake_after(1.0)


@virtual_time
async def test_timer_fires_at_its_time() -> None:
    """A batch would leave too early, too late, or never."""
    loop, at = asyncio.get_running_loop(), []

    def wait(node: Waits) -> NodeStatus:
        if node.is_due:
            at.append(loop.time() - began)
        if len(at) == 3:
            return NodeStatus.FINISHED
        node.wake_after(2.5)
        return NodeStatus.NEED_DATA

    began = loop.time()
    graph = Graph()
    graph.add([Waits(wait, is_open=False)])
    await run_graph(graph)
    assert at == [2.5, 5.0, 7.5]


class HeldBy:
    def __init__(self) -> None:
        self.lock, self.holder = threading.Lock(), 0

    def acquire(self, blocking: bool) -> bool:  # as that of a lock
        is_held = self.lock.acquire(blocking)
        if is_held:
            self.holder = threading.get_ident()
        return is_held

    def release(self) -> None:
        self.holder = 0
        self.lock.release()


class Hostile:
    """A value all of whose code looks at the mutex."""

    def __init__(self, look: Callable[[str], None]) -> None:
        self.look = look

    def __del__(self) -> None:
        self.look("__del__")

    def __eq__(self, other: object) -> bool:
        self.look("__eq__")
        return self is other

    def __hash__(self) -> int:
        self.look("__hash__")
        return 1

    def __repr__(self) -> str:
        self.look("__repr__")
        return "hostile"

    def __bool__(self) -> bool:
        self.look("__bool__")
        return False


@pytest.mark.parametrize("place", ["loop", "thread", "task"])
@pytest.mark.parametrize("end", ["all", "early", "error"])
async def test_no_host_code_under_the_mutex(place: str, end: str) -> None:
    """Code of the host that waits for another thread would stop all lanes, or deadlock."""
    looked, held = set(), set()

    def look(name: str) -> None:
        looked.add(name)
        if mutex.holder == threading.get_ident():
            held.add(name)

    def values() -> Iterator[Hostile]:
        try:
            for _ in range(10):
                look("source")
                yield Hostile(look)
        finally:
            look("close")

    def act(value: Hostile) -> Hostile:
        look("function")
        if end == "error" and len(looked) >= 3:
            raise LookupError
        return value

    graph = Graph()
    graph.add_pipe([Feed(values(), place="loop")])
    graph.add_pipe([applied(act, place)])
    graph.add_pipe([Apply(lambda value: (value, None)[1])])
    graph.add_pipe([Collect(most=3 if end == "early" else None)])
    graph.on_end(lambda _error: look("hook"))
    graph.begin_run()
    run = GraphRun(graph)
    run.scheduler._mutex = mutex = HeldBy()  # type: ignore[assignment]
    try:
        await run.to_its_end()
    except LookupError:
        assert end == "error"
    assert {"source", "function", "close", "hook", "__del__"} <= looked
    assert not held


class Rejects(Watched):
    """A sink that is done when it has a value, and does not read it."""

    def answer(self, changed: Sequence[Port]) -> NodeStatus:
        if self.inputs[0].has_data:
            return NodeStatus.FINISHED
        self.inputs[0].need()
        return NodeStatus.NEED_DATA


async def test_rejected_value_is_dropped_after_the_mutex() -> None:
    """``__del__`` of a value that no node wants would run while no other node can be asked."""
    holders: list[int] = []
    graph = Graph()
    graph.add_pipe([Feed(Hostile(lambda _name: holders.append(mutex.holder)) for _ in range(1))])
    graph.add_pipe([Rejects(inputs=1)])
    graph.begin_run()
    run = GraphRun(graph)
    run.scheduler._mutex = mutex = HeldBy()  # type: ignore[assignment]
    await run.to_its_end()
    assert holders == [0]


async def test_node_whose_event_raises_ends_the_run() -> None:
    """A mistake in a processor would end a thread, and hang the run."""

    class Broken(Apply):
        def answer(self, changed: Sequence[Port]) -> NodeStatus:
            if self.inputs[0].has_data:
                raise LookupError
            return super().answer(changed)

    graph = line_of(applied(str, "thread"), Broken(str), values=[1])
    with pytest.raises(LookupError):
        await run_graph(graph)
    assert got(graph) == []


def test_wake_outside_of_a_run_is_harmless() -> None:
    """A producer that outlives the run would fail in its own thread."""
    Processor().wake()


def test_timer_outside_of_a_run_is_a_mistake() -> None:
    """A node would wait for a timer that no loop has."""
    with pytest.raises(InternalError, match="outside of a run"):
        Processor().wake_after(1.0)


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
    ends: Any = {"on_stop": lambda: None, "on_end": lambda: None}
    lanes: Any = LoopLanes(Graph(), context=copy_context(), **ends)
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
