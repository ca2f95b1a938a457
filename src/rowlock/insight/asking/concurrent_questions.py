"""Questions that are asked side by side: far away it is the way to the database that takes the
time.

The one idea: as many are under way as there are places (``places.py``), and the next is begun when
one has ended. So none waits for a place behind its brothers, until its time is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from rowlock.containment import contained_task
from rowlock.insight.asking.places import QUESTIONS_AT_ONCE_MAX

Ask: TypeAlias = Callable[[], Awaitable[Any]]
"""Begins a question and gives its answer."""


async def asked_concurrently(
    asks: Sequence[Ask], *, at_once: int = QUESTIONS_AT_ONCE_MAX
) -> list[Any]:
    """Return what all of `asks` give, in their order; `at_once` of them are asked at once.

    The first that raises ends the others, and its error is raised. When this returns or raises,
    none is under way.
    """
    if len(asks) == 1:
        return [await asks[0]()]
    answers: dict[int, Any] = {}
    left = iter(enumerate(asks))

    async def ask_what_is_left() -> None:
        for number, ask in left:
            answers[number] = await ask()

    tasks: list[asyncio.Task[None]] = []
    try:
        for _ in asks[:at_once]:
            # No comprehension: if a task is refused, those before it are to be ended.
            tasks.append(contained_task(ask_what_is_left(), name="rowlock: ask"))  # noqa: PERF401
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [answers[number] for number in range(len(asks))]
