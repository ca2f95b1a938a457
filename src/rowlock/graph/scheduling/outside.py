"""What a scheduler shows the event loop of its run, and what it asks of it."""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from rowlock.graph.building.topology import Node


class Phase(IntEnum):
    """Where a run is; it goes on to later phases only."""

    RUNNING = 0
    """Calls are handed out."""
    STOPPING = 1
    """No call is handed out; those in flight are cancelled, and waited for."""
    CLOSING = 2
    """Sources are closed, each in its place; no other call is in flight."""
    ENDED = 3
    """Nothing is in flight, and nothing will be."""


RUNNING = Phase.RUNNING


class Outside(Protocol):
    """What the scheduler asks of the event loop; never under its mutex, and from any thread."""

    def advance_soon(self) -> None:
        """Have `Scheduler.advance` called in the loop."""

    def set_timer(self, node: Node, number: int, seconds: float) -> None:
        """Have `Scheduler.timer_fired` called in that time, instead of for an earlier timer."""

    def cancel_timer(self, node: Node) -> None:
        """Forget the timer of a node."""

    def cancel_calls(self) -> None:
        """Cancel the coroutines in flight."""

    def ended(self) -> None:
        """Note that the run has ended."""
