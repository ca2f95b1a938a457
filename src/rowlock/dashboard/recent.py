"""Answers that several viewers ask for at once: asked once, and good for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from rowlock.clock import monotonic
from rowlock.containment import contained_task

T = TypeVar("T")

RECENT_S: Final = 1.0
"""How long an answer is good, in seconds."""
KEPT_MAX: Final = 256
"""Most answers that are kept."""


@dataclass(slots=True)
class _Answer:
    task: asyncio.Task[Any]
    begun: float
    ended: float | None = None


class RecentAnswers:
    """Keeps answers for `RECENT_S`; what fails is asked again by the next one."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, _Answer] = {}

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what `ask` gives, or has given to somebody else just now."""
        # A process may have several loops, and a fork has none of its parent's.
        place = (id(asyncio.get_running_loop()), key)
        answer = self._answers.get(place)
        if answer is None or not self._is_good(answer):
            answer = self._begin(place, ask)
        return cast("T", await asyncio.shield(answer.task))

    def forget(self) -> None:
        """Have everything asked anew: somebody has changed what there is."""
        self._answers.clear()

    def _is_good(self, answer: _Answer) -> bool:
        if answer.task.get_loop() is not asyncio.get_running_loop():
            return False
        if not answer.task.done():
            return True
        has_failed = answer.task.cancelled() or answer.task.exception() is not None
        return not has_failed and monotonic() - (answer.ended or 0.0) < RECENT_S

    def _begin(self, place: Hashable, ask: Callable[[], Awaitable[Any]]) -> _Answer:
        while len(self._answers) >= KEPT_MAX:
            del self._answers[next(iter(self._answers))]
        task = contained_task(_awaited(ask), name="rowlock: dashboard")
        answer = _Answer(task, monotonic())
        self._answers.pop(place, None)
        self._answers[place] = answer

        def ended(task: asyncio.Task[Any]) -> None:
            answer.ended = monotonic()
            # Retrieved here, too: everybody who waited for it may be gone.
            if not task.cancelled():
                task.exception()

        task.add_done_callback(ended)
        return answer


def _awaited(ask: Callable[[], Awaitable[T]]) -> Coroutine[Any, Any, T]:
    async def run() -> T:
        return await ask()

    return run()
