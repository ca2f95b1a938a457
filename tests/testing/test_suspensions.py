"""Tests of seeing suspensions: of a coroutine and of all tasks that come of it, and of nobody
else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from rowlock.testing.killable_replica import frames_of, observed

pytestmark = pytest.mark.either_database


@dataclass(eq=False)
class Noting:
    """Notes suspensions, and holds everybody as long as there is a barrier."""

    names: list[str] = field(default_factory=list)
    barrier: asyncio.Future[None] | None = None

    def suspended(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.names.append(coroutine.__name__)

    def holds(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Future[None] | None:
        return self.barrier


async def inner() -> int:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return 1


async def outer() -> int:
    """Suspend once for a task of its own, and once by itself."""
    result = await asyncio.create_task(inner())
    await asyncio.sleep(0)
    return result + 1


async def test_tasks_that_come_of_it_are_seen() -> None:
    """A cancellation in the middle of a task that somebody waits for would be left out."""
    noting = Noting()
    stranger = asyncio.create_task(inner())
    with observed(noting):
        task = asyncio.create_task(outer())
        assert await task == 2
    await stranger
    await asyncio.create_task(inner())
    assert noting.names == ["outer", "inner", "inner", "outer"]
    assert asyncio.get_running_loop().get_task_factory() is None


async def test_errors_and_cancellations_go_through() -> None:
    """Observed code would behave in another way."""
    noting = Noting()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError

    async def guarded() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return "tidied up"
        return "not cancelled"

    with observed(noting):
        failing, waiting = asyncio.create_task(fail()), asyncio.create_task(guarded())
        unstarted = asyncio.create_task(inner())
        unstarted.cancel()
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(LookupError):
            await failing
        assert await waiting == "tidied up"
        with pytest.raises(asyncio.CancelledError):
            await unstarted


async def test_who_is_held_does_not_go_on() -> None:
    """A dead replica would tidy up, when it is cancelled or when what it waits for is there."""
    noting, steps = Noting(), []

    async def live() -> None:
        try:
            steps.append("begun")
            await asyncio.sleep(0)
            steps.append("went on")
        finally:
            steps.append("tidied up")

    with observed(noting):
        task = asyncio.create_task(live())
        await asyncio.sleep(0)
        noting.barrier = asyncio.get_running_loop().create_future()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert steps == ["begun"]
        noting.barrier.set_result(None)
        with pytest.raises(asyncio.CancelledError):
            await task
    assert steps == ["begun", "tidied up"]


async def test_where_a_coroutine_waits() -> None:
    """Nobody would know which await a finding is about."""
    noting = Noting()

    async def wait() -> None:
        await inner()

    with observed(noting):
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        assert [name for _, _, name in frames_of(task.get_coro())][:2] == ["wait", "inner"]
        await task
