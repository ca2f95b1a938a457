"""Rounds of the batcher that are over before their first step, and before they are known."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from rowlock.database.batcher import Batcher

from .scenes import turns

TIMEOUT = timedelta(seconds=10)


async def doubled(requests: Sequence[int]) -> list[int]:
    return [2 * number for number in requests]


async def test_who_waits_for_a_round_that_was_cancelled_before_its_first_step_is_answered() -> None:
    """The last outcome of a quiet pipeline would wait for a request that may never come, its
    lease be renewed for ever.
    """
    batcher, answers = Batcher(doubled, name="test", timeout=TIMEOUT), dict[int, int | None]()
    batcher.submit_nowait(1, lambda request, answer, _error: answers.__setitem__(request, answer))
    assert batcher._round is not None
    batcher._round.cancel()
    await turns()
    assert answers == {1: 2}


async def test_a_round_that_is_over_before_it_is_known_has_no_other_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where tasks begin at once two rounds would be under way, and an outcome be told the answer
    to another one's.
    """
    loop, running, answers = asyncio.get_running_loop(), [0, 0], list[tuple[int, int | None]]()
    begin, released = asyncio.create_task, asyncio.Event()

    def at_once(work: Any, *, name: str) -> Any:
        monkeypatch.setattr(asyncio, "create_task", begin)
        try:
            work.send(None)
        except StopIteration:
            ended = loop.create_future()
            ended.set_result(None)
            return ended
        raise AssertionError("it waits")

    def name_of_task() -> str:
        task = asyncio.current_task()
        return task.get_name() if task is not None else ""

    async def run(requests: Sequence[int]) -> list[int]:
        running[0] += 1
        running[1] = max(running)
        try:
            if requests == [1] and not answers:
                raise ConnectionRefusedError
            if name_of_task() == "rowlock: test":
                await released.wait()
            return await doubled(requests)
        finally:
            running[0] -= 1

    def done(request: int, answer: int | None, error: Exception | None) -> None:
        answers.append((request, answer))
        if error is not None:
            # As the settler does with a failure, in a task of its own that begins at once.
            batcher.submit_nowait(request, done)

    batcher: Batcher[int, int] = Batcher(run, name="test", timeout=TIMEOUT)
    monkeypatch.setattr(asyncio, "create_task", at_once)
    batcher.submit_nowait(1, done)
    batcher.submit_nowait(2, done)
    await turns()
    released.set()
    await turns()
    assert sorted(answers, key=str) == [(1, 2), (1, None), (2, 4)]
    assert running == [0, 1]
