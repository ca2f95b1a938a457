"""Calls that take long: looked at now and then while there are any, and reported.

A call is reported when it has run for 5 s, and again each time that its age has doubled. Nothing is
ended here: a call may take long by right, and `timeout` of its operator is for those that may not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from rowlock.graph.building.topology import Node

LONG_S: Final = 5.0
"""After this time a call is reported for the first time, and so often calls are looked at; in
seconds.
"""


class CallWatch:
    """Looks at the calls of one run."""

    def __init__(
        self,
        calls: Callable[[], Iterable[Node]],
        *,
        stopwatch: Callable[[], float],
        on_long: Callable[[Node, float], None],
        on_look: Callable[[], None] = lambda: None,
    ) -> None:
        """Look at nothing yet.

        Args:
            calls: returns the nodes whose calls run in threads or are awaited.
            stopwatch: of the run.
            on_long: called with the node of a call that takes long, and for how long it has run.
            on_look: called each time that calls are looked at.
        """
        self._calls = calls
        self._stopwatch = stopwatch
        self._on_long = on_long
        self._on_look = on_look
        self._timer: asyncio.TimerHandle | None = None
        self._reported: dict[Node, tuple[float, float]] = {}

    def begin(self) -> None:
        """Look every `LONG_S` seconds from now on."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LONG_S, self._look)

    def end(self) -> None:
        """Look no longer."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _look(self) -> None:
        self._timer = None
        self.begin()
        now, reported = self._stopwatch(), self._reported
        self._reported = {}
        for node in self._calls():
            began_at, due_s = reported.get(node, (0.0, 0.0))
            if node.started_at != began_at:
                began_at, due_s = node.started_at, LONG_S
            age_s = now - began_at
            if age_s >= due_s:
                self._on_long(node, age_s)
                due_s = 2 * age_s
            self._reported[node] = (began_at, due_s)
        self._on_look()
