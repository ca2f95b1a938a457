"""The two clocks. That nobody else asks the time is a law of its own (``tidy/test_clock.py``)."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

from rowlock.clock import monotonic, sleep, stopwatch, utc_now
from rowlock.testing import virtual_time


def test_utc_now_is_aware_and_in_utc() -> None:
    """Events of replicas in different zones could not be compared."""
    before = datetime.now(UTC)
    now = utc_now()
    assert before <= now <= datetime.now(UTC)
    assert now.utcoffset() == timedelta(0)


def test_monotonic_without_a_loop() -> None:
    """A ticket could not be shown by a synchronous host."""
    before = time.monotonic()
    assert before <= monotonic() <= time.monotonic()


@virtual_time
async def test_monotonic_is_the_loops_clock() -> None:
    """Trust would be counted on a clock that a test cannot move."""
    before = monotonic()
    assert before == asyncio.get_running_loop().time()
    await asyncio.sleep(3600)
    assert monotonic() - before == 3600


@virtual_time
async def test_sleep_is_of_the_loop() -> None:
    """A loop on virtual time would really wait."""
    before = asyncio.get_running_loop().time()
    await sleep(1800)
    assert asyncio.get_running_loop().time() - before == 1800


async def test_monotonic_does_not_jump_between_threads_and_loop() -> None:
    """A deadline that was set in a worker thread would mean another moment in the loop."""
    before = monotonic()
    in_thread = await asyncio.to_thread(monotonic)
    assert before <= in_thread <= monotonic()


@virtual_time
async def test_a_stopwatch_is_moved_with_the_loop() -> None:
    """Shares of busy time would mix a test's time with real time."""
    clock = stopwatch()
    before = clock()
    await asyncio.sleep(3600)
    assert clock() - before == 3600
    assert await asyncio.to_thread(clock) - before == 3600


async def test_a_stopwatch_sees_time_pass_within_a_step_of_the_loop() -> None:
    """A loop that keeps the time of its iteration, as uvloop does, would show calls as free."""
    loop = asyncio.get_running_loop()
    kept = loop.time()
    loop.time = lambda: kept  # type: ignore[method-assign]
    try:
        clock = stopwatch()
        before = clock()
        while clock() == before:
            pass
        assert clock() > before
    finally:
        del loop.time


def test_a_stopwatch_without_a_loop() -> None:
    """A graph could not be measured in a thread that runs no loop."""
    clock = stopwatch()
    before = clock()
    assert before <= time.monotonic() <= clock()
