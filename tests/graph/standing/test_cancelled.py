"""A cancelled `submit`: nothing runs for it when it returns, and its neighbours are unharmed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from rowlock.graph import Flow, StandingGraph
from rowlock.testing import run_virtual, virtual_time

from ...lengths import at_length
from .scenes import Gate, doubled, outcomes, settled

OTHERS = 20


class Watched:
    def __init__(self) -> None:
        self.running: list[Any] = []
        self.begun: list[Any] = []

    async def awaited(self, value: Any) -> Any:
        self.begun.append(value)
        self.running.append(value)
        try:
            await asyncio.sleep(0)
            await asyncio.sleep(0.1)
        finally:
            await asyncio.sleep(0)
            self.running.remove(value)
        return value

    def called(self, value: Any) -> Any:
        self.begun.append(value)
        return value

    async def shared(self, values: Sequence[Any]) -> Sequence[Any]:
        self.begun += values
        self.running += values
        await asyncio.sleep(0.1)
        for value in values:
            self.running.remove(value)
        return values

    def parts(self, value: Any) -> Iterator[Any]:
        """Give parts, and note when the last one was read."""
        self.running.append(value)
        try:
            for _ in range(3):
                self.begun.append(value)
                yield value
        finally:
            self.running.remove(value)

    def build(self, flow: Flow[Any]) -> Flow[Any]:
        return (
            flow.amap(self.awaited, lanes=4)
            .map(self.called, lanes=2)
            .fan_out(
                self.parts, lambda parts: parts.amap_batch(self.shared, size=8, within=1), groups=3
            )
            .map(lambda found: found[0], lanes=2, keep_order=True)
            .amap(self.awaited, lanes=8)
        )


async def scene(steps: int) -> bool:
    """Cancel one of the callers after so many steps of the loop; return whether it was inside."""
    watched = Watched()
    async with StandingGraph(watched.build) as graph:
        others = [asyncio.create_task(graph.submit(one)) for one in range(OTHERS // 2)]
        one = asyncio.create_task(graph.submit("cancelled"))
        others += [asyncio.create_task(graph.submit(one)) for one in range(OTHERS // 2, OTHERS)]
        for step in range(1, steps + 1):
            # On this loop no time passes while something is ready.
            await asyncio.sleep(0 if step % 20 else 0.12)
        was_inside = not one.done()
        one.cancel()
        await asyncio.wait([one])
        assert one.cancelled() or not was_inside
        assert "cancelled" not in watched.running
        begun = watched.begun.count("cancelled")
        assert await asyncio.gather(*others) == list(range(OTHERS))
        assert watched.begun.count("cancelled") == begun
        await settled()
        assert not watched.running
        loop: Any = asyncio.get_running_loop()
        assert [timer for timer in loop._scheduled if not timer.cancelled()] == []
        for operator in graph.statistics().operators:
            assert operator.held == 0, operator
        assert asyncio.all_tasks() == {asyncio.current_task()}
    return was_inside


def test_cancelled_at_each_suspension() -> None:
    """A call would go on for a row that is released, or a neighbour be lost with it."""
    steps = 0
    while run_virtual(partial(scene, steps)):
        steps += at_length(5, 1)
    assert steps > 50


async def test_a_shared_call_is_never_cancelled_for_one_of_many() -> None:
    """Neighbours would lose the call that they share; or the row be released while it runs."""
    gate = Gate()
    async with StandingGraph(
        lambda flow: flow.amap_batch(gate.all_passed, size=3, within=60)
    ) as graph:
        submits = [asyncio.create_task(graph.submit(one)) for one in range(3)]
        await settled()
        submits[1].cancel()
        await settled()
        assert not submits[1].done()
        gate.open()
        found = await outcomes(submits)
    assert (found[0], found[2]) == (0, 2)
    assert isinstance(found[1], asyncio.CancelledError)
    assert gate.cancelled == []


async def test_a_shared_call_is_cancelled_with_its_last_caller() -> None:
    """A call would go on for no caller, and a shutdown wait for it."""
    gate = Gate()
    async with StandingGraph(
        lambda flow: flow.amap_batch(gate.all_passed, size=2, within=60)
    ) as graph:
        submits = [asyncio.create_task(graph.submit(one)) for one in range(2)]
        await settled()
        for submit in submits:
            submit.cancel()
        found = await outcomes(submits)
        assert [type(one) for one in found] == [asyncio.CancelledError] * 2
        assert gate.cancelled == [[0, 1]]
        gate.open()
        assert await asyncio.gather(graph.submit(1), graph.submit(2)) == [1, 2]


async def test_a_call_in_a_thread_is_waited_for() -> None:
    """A row would be released while a call still works on it."""
    begun, go_on = threading.Event(), threading.Event()
    done: list[int] = []

    def stuck(value: int) -> int:
        begun.set()
        go_on.wait()
        done.append(value)
        return value

    async with StandingGraph(lambda flow: flow.map(stuck).map(stuck)) as graph:
        submit = asyncio.create_task(graph.submit(1))
        await asyncio.to_thread(begun.wait)
        for _ in range(3):
            submit.cancel()
            await settled()
            assert not submit.done()
        go_on.set()
        assert [type(one) for one in await outcomes([submit])] == [asyncio.CancelledError]
        assert done == [1]
        assert await graph.submit(2) == 2


async def test_a_coroutine_that_ignores_its_cancellation_is_cancelled_again() -> None:
    """A caller that is cancelled twice would wait for ever."""
    times = 0

    async def stubborn(value: int) -> int:
        nonlocal times
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                times += 1
        return value

    async with StandingGraph(lambda flow: flow.amap(stubborn)) as graph:
        submit = asyncio.create_task(graph.submit(1))
        await settled()
        submit.cancel()
        await settled()
        assert (times, submit.done()) == (1, False)
        submit.cancel()
        assert [type(one) for one in await outcomes([submit])] == [asyncio.CancelledError]


async def test_a_value_that_waits_for_room_is_left_out() -> None:
    """A caller would have to wait until there is room for what it does not want any more."""
    gate = Gate()
    async with StandingGraph(lambda flow: flow.amap(gate.passed)) as graph:
        submits = [asyncio.create_task(graph.submit(one)) for one in range(9)]
        await settled()
        submits[8].cancel()
        await settled()
        assert submits[8].done()
        gate.open()
        assert await asyncio.gather(*submits[:8]) == list(range(8))
    assert gate.begun == list(range(8))


@virtual_time
async def test_a_batch_does_not_wait_for_callers_that_have_left() -> None:
    """A value would be kept, and a timer run, for an hour after its caller has left."""
    loop: Any = asyncio.get_running_loop()

    async def embed(values: Sequence[int]) -> Sequence[int]:
        return values

    async with StandingGraph(lambda flow: flow.amap_batch(embed, size=9, within=3600)) as graph:
        submit = asyncio.create_task(graph.submit(1))
        await settled()
        # That of the batch, and the one by which calls that take long are found.
        assert len([timer for timer in loop._scheduled if not timer.cancelled()]) == 2
        submit.cancel()
        await asyncio.wait([submit])
        await settled()
        assert [timer for timer in loop._scheduled if not timer.cancelled()] == []


@pytest.mark.parametrize("on", ["loop", "thread"])
async def test_parts_of_a_caller_that_has_left_are_not_read(on: Any) -> None:
    """A file would stay open, or be read to its end, for a row that is released."""
    read: list[int] = []
    closed: list[bool] = []
    gate = Gate()

    def parts(_value: int) -> Iterator[int]:
        try:
            for number in range(1000):
                read.append(number)
                yield number
        finally:
            closed.append(True)

    def build(flow: Flow[int]) -> Flow[Any]:
        return flow.fan_out(parts, lambda inside: inside.map(doubled, on=on).amap(gate.passed))

    async with StandingGraph(build) as graph:
        submit = asyncio.create_task(graph.submit(1))
        await gate.has_begun.wait()
        submit.cancel()
        await asyncio.wait([submit])
        assert closed == [True]
        count = len(read)
        await settled()
        assert len(read) == count < 100


@pytest.mark.timeout(60)
async def test_parts_do_not_wait_for_room_that_a_neighbour_has() -> None:
    """A row that is lost would be kept open until a neighbour's call has ended."""
    closed: list[str] = []
    has_parts, gate = asyncio.Event(), Gate()

    def parts(value: str) -> Iterator[str]:
        try:
            yield from [value] * (1 if value == "neighbour" else 9)
        finally:
            closed.append(value)

    def passed(part: str) -> str:
        if part == "lost":
            has_parts.set()
        return part

    graph: StandingGraph[str, Any] = StandingGraph(
        lambda flow: flow.fan_out(
            parts, lambda inside: inside.map(passed, on="loop").amap(gate.passed)
        )
    )
    async with graph:
        neighbour = asyncio.create_task(graph.submit("neighbour"))
        await gate.has_begun.wait()
        lost = asyncio.create_task(graph.submit("lost"))
        await has_parts.wait()
        await settled()
        lost.cancel()
        await asyncio.wait([lost])
        assert (closed, neighbour.done()) == (["neighbour", "lost"], False)
        gate.open()
        assert await neighbour == ("neighbour", ["neighbour"])


async def test_a_caller_waits_until_its_parts_are_closed() -> None:
    """A file would be open when the row is released; the close of a generator may take long."""
    gate, closing, may_close = Gate(), threading.Event(), threading.Event()

    def parts(_value: int) -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            closing.set()
            may_close.wait()

    def build(flow: Flow[int]) -> Flow[Any]:
        return flow.fan_out(parts, lambda inside: inside.amap(gate.passed))

    async with StandingGraph(build) as graph:
        submit = asyncio.create_task(graph.submit(1))
        await gate.has_begun.wait()
        submit.cancel()
        await asyncio.to_thread(closing.wait)
        await settled()
        is_waiting = not submit.done()
        may_close.set()
        await asyncio.wait([submit])
    assert is_waiting


@pytest.mark.parametrize("key", [True, lambda value: value % 2])
async def test_order_is_kept_without_those_that_have_left(key: Any) -> None:
    """Values behind one that is cancelled would wait for it for ever."""
    gate = Gate()
    async with StandingGraph(lambda flow: flow.amap(gate.passed, lanes=3, keep_order=key)) as graph:
        submits = [asyncio.create_task(graph.submit(one)) for one in range(8)]
        await settled()
        submits[0].cancel()
        await asyncio.wait([submits[0]])
        gate.open()
        assert await asyncio.gather(*submits[1:]) == list(range(1, 8))


async def test_a_task_that_was_cancelled_for_one_goes_on_for_others() -> None:
    """A call that swallows its cancellation would leave it to the next one in its task."""
    seen: list[int] = []
    gate = Gate()

    async def swallow(values: Sequence[int]) -> Sequence[int]:
        task = asyncio.current_task()
        assert task is not None
        seen.append(task.cancelling())
        with contextlib.suppress(asyncio.CancelledError):
            await gate.passed(values)
        return values

    async with StandingGraph(lambda flow: flow.amap_batch(swallow, size=1, within=1)) as graph:
        submits = [asyncio.create_task(graph.submit(one)) for one in range(3)]
        await settled()
        submits[0].cancel()
        await settled()
        gate.open()
        assert await asyncio.gather(*submits[1:]) == [1, 2]
    assert seen == [0, 0, 0]
