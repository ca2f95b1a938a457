"""Attempts on the event loop itself: for work that waits for others most of the time."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable
from typing import Any, ClassVar

from rowlock.dispatch.engines.local import LocalEngine, called
from rowlock.dispatch.task import AttemptEvent, Failed, Task
from rowlock.errors import ConfigurationError

_WRONG_KIND = "LoopEngine takes an `async def` handler with yield; use ThreadEngine for a `def`"


class LoopEngine(LocalEngine):
    """Runs an ``async def`` handler on the event loop; it must not block it.

    Args:
        workers: how many attempts run at once.
        backpressure: how many each of them takes; one by default.
    """

    kind: ClassVar[str] = "loop"

    def check_handler(self, handler: Callable[..., Any]) -> None:
        """Refuse a handler that would block the event loop."""
        if inspect.isgeneratorfunction(called(handler)):
            raise ConfigurationError(_WRONG_KIND)

    def run(self, worker: str, task: Task[Any]) -> AsyncGenerator[AttemptEvent, None]:
        """Return the events of the task's handler: its own generator, so that it is one whole."""
        try:
            events: Any = task.handler(task)
        # The handler is host code, and fails as if it had begun.
        except Exception as error:  # noqa: BLE001
            return _fails(error)
        if not hasattr(events, "__anext__"):
            return _fails(ConfigurationError(_WRONG_KIND))
        return events  # type: ignore[no-any-return]


async def _fails(error: Exception) -> AsyncGenerator[AttemptEvent, None]:
    yield Failed.of(error)
