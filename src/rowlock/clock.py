"""The only file that asks the time, and how long to wait next.

`monotonic` measures how long a holder may trust its lease: it is the running event loop's clock, so
a virtual-time loop moves it, and it does not jump when the host's wall clock is set. `utc_now`
stamps events and logs. Leases themselves are judged by the database's clock, in SQL: see
``rows/database_time.py``. Delays are spread by jitter so that replicas do not march in step.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Protocol

REAL_WITHIN_S = 60.0
"""How far a loop's clock may be behind the process's own, in seconds: turns may be long."""


def utc_now() -> datetime:
    """Return the host's wall clock as an aware UTC time. Never used for leases."""
    return datetime.now(UTC)


def monotonic() -> float:
    """Return seconds of the running loop's clock, or of the process where no loop runs.

    Both are CLOCK_MONOTONIC on the loops of asyncio and uvloop, so the two agree.
    """
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


def is_real() -> bool:
    """Whether the running loop's clock is the process's own: a test's loop may have another."""
    loop = asyncio.get_running_loop()
    return (
        not getattr(loop, "is_virtual", False)
        and abs(loop.time() - time.monotonic()) < REAL_WITHIN_S
    )


def ahead_of_monotonic() -> tuple[float, ...]:
    """Return by how much the clocks that go on while the machine sleeps, or a virtual machine is
    paused, are ahead of the monotonic one, in seconds; nothing where a test moves the time. Two
    readings also differ if the wall clock was set.
    """
    if not is_real():
        return ()
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    asleep = time.time() if boot is None else time.clock_gettime(boot)
    now = time.monotonic()
    return asleep - now, time.time() - now


def stopwatch() -> Callable[[], float]:
    """Return a clock for busy time, in seconds, that any thread may read: the loop's where a test
    moves it, else the process's, since some loops keep the time of their iteration.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return time.monotonic
    return time.monotonic if is_real() else loop.time


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def rest(woken: asyncio.Event, seconds: float | None) -> None:
    """Wait until `woken` is set from now on, or for `seconds`; None is no limit.

    What set it before does not count, so the caller's reason to rest must have been found in this
    very step of the loop.
    """
    woken.clear()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await woken.wait()


JITTER = 0.2
"""Largest relative deviation from a delay: ±20 %."""

EAGER_CHANCE = 0.1
"""How often a fetcher that is backing off tries the shortest delay instead: one time in ten."""


class Randomness(Protocol):
    """`random.Random`, or the module `random`."""

    def random(self) -> float: ...

    def uniform(self, a: float, b: float) -> float: ...


def jittered(delay_s: float, *, rng: Randomness = random) -> float:
    """Return `delay_s` moved by at most `JITTER` either way."""
    return delay_s * rng.uniform(1 - JITTER, 1 + JITTER)


def fetch_delay(
    delays_s: Sequence[float], empty_fetches: int, *, rng: Randomness = random
) -> float:
    """Return how long a fetcher rests after `empty_fetches` in a row: walks along `delays_s` and
    stays at the last. Now and then it is the first one, so that work without a hint is seen sooner.
    """
    if empty_fetches > 1 and rng.random() < EAGER_CHANCE:
        return jittered(delays_s[0], rng=rng)
    return jittered(delays_s[min(max(empty_fetches, 1), len(delays_s)) - 1], rng=rng)


def exponential(attempt: int, *, first_s: float, most_s: float, rng: Randomness = random) -> float:
    """Return the capped delay after failed attempt `attempt` (from 1), with jitter, in seconds."""
    doublings = min(max(attempt, 1) - 1, 62)
    return min(jittered(min(first_s * 2.0**doublings, most_s), rng=rng), most_s)
