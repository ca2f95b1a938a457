"""Tests of the event loop on which time jumps."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from rowlock.testing import VirtualTimeLoop, run_virtual, virtual_time
from rowlock.testing.virtual_time import (
    START_S,
    LivelockError,
    NothingCanHappenError,
    TasksLeftBehindError,
)

if TYPE_CHECKING:
    pass


@virtual_time
async def test_time_jumps_exactly_to_each_timer() -> None:
    """Timers fire in their order, at their time, and nothing is waited for."""
    loop = asyncio.get_running_loop()
    fired: list[tuple[str, float]] = []
    for name, delay_s in (("late", 3600.1), ("early", 0.3), ("later", 7200.0)):
        loop.call_at(START_S + delay_s, lambda name=name: fired.append((name, loop.time())))
    await asyncio.sleep(8000)
    assert fired == [
        ("early", START_S + 0.3),
        ("late", START_S + 3600.1),
        ("later", START_S + 7200.0),
    ]
    assert loop.time() == START_S + 8000


@virtual_time
async def test_timeouts_of_asyncio_follow_virtual_time() -> None:
    """`asyncio.timeout`, `wait_for` and `wait` end at their virtual time."""
    loop = asyncio.get_running_loop()
    never = asyncio.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30):
            await never.wait()
    assert loop.time() == START_S + 30
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(never.wait(), 15)
    waiter = asyncio.create_task(never.wait())
    _done, pending = await asyncio.wait({waiter}, timeout=5)
    assert pending == {waiter}
    assert loop.time() == START_S + 50
    never.set()
    await waiter


@virtual_time(max_iterations=1000)
async def test_no_timer_fires_early() -> None:
    """Timers less than a nanosecond apart have a time each: whoever wakes finds that its
    deadline has come.
    """
    loop = asyncio.get_running_loop()
    deadlines = [
        START_S + rest_s for rest_s in (1e-12, 5e-10, 9e-10, 0.1 + 0.2, 0.1 + 0.2 + 4e-10, 1 / 3)
    ]
    fired: list[float] = []
    for deadline in deadlines:
        loop.call_at(deadline, lambda: fired.append(loop.time()))
    while loop.time() < deadlines[-1]:  # noqa: ASYNC110 - the very pattern under test
        await asyncio.sleep(deadlines[-1] - loop.time())
    assert fired == deadlines


def test_waiting_for_ever_is_an_error_that_names_the_waiting() -> None:
    """A deadlock is reported at once, with the tasks concerned, instead of hanging the run."""

    async def wait_for_nobody() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.create_task(wait_for_nobody(), name="lonely")

    with pytest.raises(NothingCanHappenError, match=r"lonely at .*wait_for_nobody, line \d+"):
        run_virtual(main)


def test_turning_on_the_spot_is_an_error() -> None:
    """A livelock that needs no time is stopped by the number of turns."""

    async def spin() -> None:
        while True:  # noqa: ASYNC110 - the very pattern under test
            await asyncio.sleep(0)

    with pytest.raises(LivelockError, match="500 turns"):
        run_virtual(spin, max_iterations=500)


def test_polling_for_ever_is_an_error() -> None:
    """A livelock that sleeps is stopped by the virtual seconds."""

    async def poll() -> None:
        while True:  # noqa: ASYNC110 - the very pattern under test
            await asyncio.sleep(5)

    with pytest.raises(LivelockError, match="60 virtual seconds"):
        run_virtual(poll, max_virtual_s=60)


@pytest.mark.parametrize("limits", [{"max_virtual_s": 0.0}, {"max_iterations": 0}])
def test_limits_must_be_positive(limits: dict[str, int]) -> None:
    """A loop that could not take one step is refused when it is made."""
    with pytest.raises(ValueError, match="must be positive"):
        VirtualTimeLoop(**limits)


@virtual_time
async def test_time_stands_still_while_a_thread_runs() -> None:
    """A thread's result comes before any timer, however far the loop could jump."""
    release = threading.Event()
    sleeper = asyncio.create_task(asyncio.sleep(3600))
    thread = asyncio.create_task(asyncio.to_thread(release.wait, 10))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(release.set)
    assert await thread
    assert asyncio.get_running_loop().time() == START_S
    assert not sleeper.done()
    await sleeper


def test_a_task_left_alive_fails_the_run() -> None:
    """A test cannot pass while something that it started still runs."""

    async def main() -> None:
        asyncio.get_running_loop().leaked = asyncio.create_task(asyncio.sleep(1), name="leaked")  # type: ignore[attr-defined]

    with pytest.raises(TasksLeftBehindError, match="leaked"):
        run_virtual(main)


def test_the_decorator_hands_on_failures() -> None:
    """A failed assertion under the decorator fails the test."""

    @virtual_time
    async def failing() -> None:
        await asyncio.sleep(1)
        pytest.fail("on purpose")

    with pytest.raises(pytest.fail.Exception, match="on purpose"):
        failing()
