"""Backpressure: a worker says no before it has too much in hand.

Hooks are plain and synchronous: one that waits would let two offers pass at once. They are data
that can be pickled, since a worker may be another process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from rowlock.errors import SettingsError

TASKS_MAX = 10_000
"""Most tasks that one worker may be allowed at once."""


@dataclass(frozen=True, slots=True)
class BackpressureContext:
    """What a worker knows when it is offered an attempt.

    Attributes:
        active_task_count: attempts that run there.
        task: the one that is offered.
    """

    active_task_count: int
    task: Any = None


Backpressure: TypeAlias = Callable[[BackpressureContext], bool]
"""Returns whether to refuse."""


@dataclass(frozen=True, slots=True)
class TaskCountBackpressure:
    """Refuse what goes beyond `threshold` attempts at once; 0 refuses nothing.

    Raises:
        SettingsError: the threshold is negative, no whole number, or above `TASKS_MAX`.
    """

    threshold: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.threshold, int) or not 0 <= self.threshold <= TASKS_MAX:
            raise SettingsError(
                "TaskCountBackpressure takes a whole number from 0 (refuse nothing) to"
                f" {TASKS_MAX}, not {self.threshold!r}",
                pipeline="dispatch",
                settings=("threshold",),
            )

    def __call__(self, context: BackpressureContext) -> bool:
        """Return whether to refuse."""
        return self.threshold > 0 and context.active_task_count >= self.threshold
