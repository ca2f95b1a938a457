"""One timer for many calls that may take equally long."""

from __future__ import annotations

import asyncio
from functools import partial

from rowlock.pipelines.attempt import Deadlines
from rowlock.testing import virtual_time

from .scenes import now


@virtual_time
async def test_each_is_called_when_its_time_is_up() -> None:
    """A call that hangs would never be ended, or one that began later would be ended with it."""
    deadlines, called = Deadlines(10), dict[str, float]()
    began_at = now()
    for name in ("first", "second", "third"):
        deadlines.add(name, partial(lambda name: called.setdefault(name, now() - began_at), name))
        await asyncio.sleep(3)
    await asyncio.sleep(20)
    assert called == {"first": 10, "second": 13, "third": 16}
    assert len(deadlines) == 0


@virtual_time
async def test_what_was_removed_is_not_called() -> None:
    """A later call of the same worker would be ended by the timer of an earlier one."""
    deadlines, called = Deadlines(10), list[tuple[str, float]]()
    began_at = now()
    deadlines.add("first", lambda: called.append(("first", now() - began_at)))
    await asyncio.sleep(5)
    deadlines.remove("first")
    deadlines.add("second", lambda: called.append(("second", now() - began_at)))
    await asyncio.sleep(100)
    assert called == [("second", 15)]
    deadlines.remove("second")
    deadlines.remove("never added")


@virtual_time
async def test_after_a_rest_the_next_one_is_called_too() -> None:
    """Nothing would be ended any more once nothing had run for a while."""
    deadlines, called = Deadlines(10), list[float]()
    for _ in range(3):
        deadlines.add("one", lambda: called.append(now()))
        deadlines.remove("one")
        await asyncio.sleep(60)
    began_at = now()
    deadlines.add("one", lambda: called.append(now() - began_at))
    await asyncio.sleep(60)
    assert called == [10]


@virtual_time
async def test_one_timer_however_many_run() -> None:
    """A timer for each row would cost more than most of what is done for it, and wait in memory
    for an hour.
    """
    deadlines, loop = Deadlines(3600), asyncio.get_running_loop()
    before = len(loop._scheduled)  # type: ignore[attr-defined]
    for number in range(1000):
        deadlines.add(number, lambda: None)
        deadlines.remove(number)
    assert len(loop._scheduled) <= before + 1  # type: ignore[attr-defined]
    assert len(deadlines) == 0
