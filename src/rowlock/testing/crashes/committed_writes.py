"""Which answers to a COMMIT say that something was written: those whose loss matters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rowlock.testing.crashes.failpoints import AFTER, Boundary

__all__ = ["CommittedWrites"]


class CommittedWrites:
    """Finds the boundaries behind the COMMIT of a transaction that has written."""

    def __init__(self, writes: Callable[[str], bool]) -> None:
        self._writes = writes
        self._writing: set[object] = set()

    def __call__(self, boundary: Boundary) -> bool:
        """Whether the answer to such a COMMIT comes next; must see every boundary."""
        task = asyncio.current_task()
        if boundary.statement in ("COMMIT", "ROLLBACK"):
            is_one = boundary.is_lost_answer and task in self._writing
            if boundary.side == AFTER:
                self._writing.discard(task)
            return is_one
        if self._writes(boundary.statement):
            self._writing.add(task)
        return False
