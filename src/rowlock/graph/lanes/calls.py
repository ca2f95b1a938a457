"""One call of host code: whether it may begin, its context, its time, and what it raised.

The same in every place. Nothing that a call raises leaves here, whatever its kind: it becomes the
error of the node, and the run ends with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context

from rowlock.containment import as_ordinary
from rowlock.errors import GraphInterrupted
from rowlock.graph.building.topology import Node, Topology, add_place
from rowlock.graph.scheduling.interrupt import goes_on
from rowlock.graph.scheduling.outside import RUNNING
from rowlock.graph.scheduling.scheduler import Scheduler, is_withdrawn
from rowlock.graph.tracebacks import set_traceback, traceback_of


class Calls:
    """Makes the calls of one run.

    Attributes:
        stopwatch: tells the time in seconds, in any thread.
    """

    def __init__(
        self,
        graph: Topology,
        scheduler: Scheduler,
        *,
        stopwatch: Callable[[], float],
        context: Context,
        keep_going: Callable[[], bool] | None,
    ) -> None:
        """Make calls for `scheduler`.

        Args:
            graph: that runs.
            scheduler: knows whether it still runs.
            stopwatch: tells the time in seconds, in any thread.
            context: calls get a copy of it, unless their processor has its own.
            keep_going: asked before each call; the run is stopped once it returns False.
        """
        self.stopwatch = stopwatch
        self._graph = graph
        self._scheduler = scheduler
        self._context = context
        self._keep_going = keep_going

    def call(self, node: Node) -> bool:
        """Make a call that is no coroutine; return False if it was withdrawn."""
        node.started_at = self.stopwatch()
        try:
            node.ticket.pop()
        except IndexError:
            return False
        if (self._keep_going is None and self._scheduler.phase is RUNNING) or self.is_wanted(node):
            processor = node.processor
            act = processor.close if node.is_closing else processor.process
            try:
                (processor.context or self._context).copy().run(act)
            except BaseException as error:  # noqa: BLE001  # a run must not end its thread or loop
                self.failed(node, error)
        node.ended_at = self.stopwatch()
        return True

    async def await_call(self, node: Node) -> None:
        """Make a call that is a coroutine, which was begun."""
        if self.is_wanted(node):
            processor = node.processor
            act = processor.async_close if node.is_closing else processor.async_process
            try:
                await act()
            except BaseException as error:  # noqa: BLE001  # a run must not end its thread or loop
                self.failed(node, error)
        node.ended_at = self.stopwatch()

    def begin(self, node: Node) -> bool:
        """Begin the call that was handed out, and return whether it was not withdrawn."""
        node.started_at = self.stopwatch()
        return is_withdrawn(node)

    def context_of(self, node: Node) -> Context:
        """Return the context variables of which the next call of a node gets a copy."""
        return node.processor.context or self._context

    def is_wanted(self, node: Node) -> bool:
        """Return whether the result of a call is wanted; stop the run if its caller says no."""
        if node.is_closing:
            return True
        if self._scheduler.phase is not RUNNING:
            return False
        if self._keep_going is None:
            return True
        try:
            is_wanted = goes_on(self._keep_going)
        except BaseException as error:  # noqa: BLE001  # it is code of the host
            self._scheduler.stop(as_ordinary(error))
            return False
        if not is_wanted:
            self._scheduler.stop(GraphInterrupted(self._graph.name))
        return is_wanted

    def failed(self, node: Node, error: BaseException) -> None:
        """Enter what a call raised, unless that is its answer to the end of the run."""
        if isinstance(error, asyncio.CancelledError) and (
            self._scheduler.phase is not RUNNING or not self.is_wanted(node)
        ):
            return  # its answer to the end of the run
        # Without the frame of this file, which would keep the node alive with the error.
        traceback = traceback_of(error)
        set_traceback(error, traceback and traceback.tb_next)
        node.error = as_ordinary(error)
        add_place(node.error, node.processor)
