"""Processes that are killed, frozen and thawed in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from .environment.faulty_connection import FaultyConnection
from .environment.loop import SimulationLoop
from .environment.processes import Process, current_process


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(
        loop_factory=lambda: SimulationLoop(max_virtual_s=100, max_iterations=10_000)
    ) as runner:
        runner.run(scene())


def process() -> Process:
    return Process("it", FaultyConnection(Random(1)))


async def beat(notes: list[str]) -> None:
    try:
        for number in range(5):
            notes.append(str(number))
            await asyncio.sleep(1)
    finally:
        notes.append("finally")


def test_a_killed_process_does_nothing_any_more() -> None:
    """A replica that was killed would release its rows in a ``finally``, as no killed process
    does.
    """

    async def scene() -> None:
        it, notes = process(), list[str]()
        task = it.spawn(beat(notes), name="beat")
        await asyncio.sleep(1.5)
        it.kill()
        task.cancel()
        await asyncio.sleep(10)
        assert notes == ["0", "1"]
        it.rise()
        await asyncio.wait({task})
        assert notes == ["0", "1", "finally"]

    play(scene)


def test_a_frozen_process_goes_on_where_it_was_and_late() -> None:
    """A replica would notice its own freeze, or work in the middle of it."""

    async def scene() -> None:
        it, notes = process(), list[str]()
        task = it.spawn(beat(notes), name="beat")
        await asyncio.sleep(1.5)
        it.freeze()
        await asyncio.sleep(10)
        assert notes == ["0", "1"]
        it.thaw()
        await asyncio.sleep(0.01)
        assert notes == ["0", "1", "2"]
        await asyncio.sleep(1.5)
        assert notes == ["0", "1", "2", "3"]
        await task

    play(scene)


def test_a_timer_that_is_cancelled_after_the_thaw_does_not_fire() -> None:
    """What came due during a freeze would run although its process has called it off meanwhile."""

    async def scene() -> None:
        it, notes = process(), list[str]()
        loop = asyncio.get_running_loop()
        second = it.call(lambda: loop.call_later(2, notes.append, "second"))
        it.call(lambda: loop.call_later(1, second.cancel))
        it.freeze()
        await asyncio.sleep(5)
        it.thaw()
        await asyncio.sleep(1)
        assert notes == []

    play(scene)


def test_whatever_a_process_starts_belongs_to_it() -> None:
    """A task, a timer or a callback of a dead replica would go on."""

    async def scene() -> None:
        it, seen = process(), list[Process | None]()
        loop = asyncio.get_running_loop()

        def look() -> None:
            seen.append(current_process.get())

        async def start() -> None:
            loop.call_soon(look)
            loop.call_later(1, look)
            future = loop.create_future()
            future.add_done_callback(lambda _: look())
            loop.call_later(1, future.set_result, None)
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0)).add_done_callback(lambda _: look())

        await it.spawn(start(), name="start")
        await asyncio.sleep(2)
        assert seen == [it] * 4
        assert current_process.get() is None

    play(scene)
