"""The nodes of a standing graph: built by the host's function, checked at once, and run for as long
as none of them breaks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, TypeAlias

from rowlock.clock import stopwatch
from rowlock.containment import as_ordinary
from rowlock.errors import GraphClosed, GraphError
from rowlock.graph.building.flow import Flow, Graph
from rowlock.graph.building.operators import OpenEnd
from rowlock.graph.building.topology import Node
from rowlock.graph.lanes.runtime import GraphRuntime
from rowlock.graph.scheduling.call_watch import CallWatch
from rowlock.graph.scheduling.deadlock import flags_of
from rowlock.graph.scheduling.wiring import RunWiring, forget_values, log_later_errors
from rowlock.graph.standing.ends import OUTLET, Inlet, Outlet
from rowlock.graph.standing.envelopes import Caller, EnvelopeCarrier
from rowlock.graph.standing.reports import StandingReports
from rowlock.graph.stock.batches import BatchProcessor
from rowlock.graph.unawaited import not_awaited

STUCK_S: Final = 200.0
"""After this time of a call the graph is reported as a whole, in seconds."""

Build: TypeAlias = Callable[[Flow[Any, Any]], Flow[Any, Any]]


class StandingNodes:
    """One set of nodes, and their run.

    Attributes:
        graph: that they are in.
        callers: that have entered and not returned.
        is_over: no caller may enter any more: a node broke, or the graph was closed.
        ended: set when no call runs any more; None before the run.
    """

    def __init__(
        self, build: Build, *, name: str, leaves: tuple[type, ...], shows_values: bool
    ) -> None:
        """Build and check the graph; nothing runs.

        Args:
            build: the host's.
            name: of the graph.
            leaves: instances of these are results at once, whichever operator returns them.
            shows_values: notes on errors quote values.

        Raises:
            GraphError: the graph is wrong.
            Exception: whatever `build` raised.
        """
        self.graph: Final = Graph(name)
        self.callers: dict[Caller, None] = {}
        self.is_over = False
        self.ended: asyncio.Event | None = None
        self._inlet = Inlet()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wiring: RunWiring
        self._watch: CallWatch
        self._reports: StandingReports
        self._is_stuck = False
        self._on_broken: Callable[[Exception], None]
        self.graph.shows_values = shows_values
        self._build(build, EnvelopeCarrier(leaves))
        processors = [node.processor for node in self.graph.nodes]
        self._batches = [one for one in processors if isinstance(one, BatchProcessor)]

    def _build(self, build: Build, carrier: EnvelopeCarrier) -> None:
        graph, inlet, outlet = self.graph, self._inlet, Outlet()
        graph.add([inlet])
        flow: object = not_awaited(build(Flow(OpenEnd(graph, inlet.outputs, carrier))))
        if not (isinstance(flow, Flow) and flow._end.carrier is carrier):
            msg = f"build() of {graph.name!r} returns the flow that it was given, or one behind it"
            raise GraphError(msg)
        output = flow.last_output(OUTLET)
        graph.add([outlet])
        graph.connect(output, outlet.inputs[0])
        sources = [node for node in graph.nodes if not node.processor.inputs]
        if len(sources) > 1:
            msg = f"{graph.name!r} has another source: values come from submit() only"
            raise GraphError(msg)
        if graph.start_hooks or graph.end_hooks:
            msg = f"{graph.name!r} stays open, so it has no hooks of a start or an end"
            raise GraphError(msg)
        for _ in graph.checks():
            pass
        graph.has_run = True

    def begin(
        self,
        *,
        context: Context,
        runtime: GraphRuntime | None,
        reports: StandingReports,
        on_broken: Callable[[Exception], None],
    ) -> None:
        """Run in the running event loop, unless this has begun.

        Args:
            context: of calls that several callers share.
            runtime: whose threads.
            reports: hears of calls that take long.
            on_broken: called in the loop with the error of a node that broke.

        Raises:
            GraphError: it runs in another event loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not None:
            self._check_loop()
            return
        self._loop, self.ended, self._on_broken = loop, asyncio.Event(), on_broken
        self.graph.stopwatch = stopwatch()
        self.graph.started_at = self.graph.stopwatch()
        self._wiring = RunWiring(
            self.graph,
            runtime=runtime,
            context=context,
            on_stop=self._stopped,
            on_end=self._ended,
        )
        self._reports = reports
        self._watch = CallWatch(
            self._wiring.calls,
            stopwatch=self.graph.stopwatch,
            on_long=self._report_long,
            on_look=self._replace_threads,
        )
        for _ in self._wiring.scheduler.start():
            pass
        self._wiring.lanes.advance_soon()

    @property
    def has_ended(self) -> bool:
        """Whether its run is over, with all of its calls."""
        return self.ended is not None and self.ended.is_set()

    @property
    def is_of_closed_loop(self) -> bool:
        """Whether its event loop is closed, so that nothing of it runs any more."""
        return self._loop is not None and self._loop.is_closed()

    def enter(self, caller: Caller, value: object) -> None:
        """Have a value go through the graph as soon as there is room."""
        if not self.callers:
            self._watch.begin()
        self.callers[caller] = None
        self._inlet.put(caller, value)

    def done(self, caller: Caller) -> None:
        """Take in that a caller has its result or its error; from any thread."""
        self._inlet.left(caller)
        if caller.has_left:
            for batch in self._batches:
                batch.wake()  # it may hold values of this caller, and wait for others

    def returned(self, caller: Caller) -> None:
        """Take in that a caller waits no longer."""
        self.callers.pop(caller, None)
        if not self.callers:
            self._watch.end()

    def _report_long(self, node: Node, seconds: float) -> None:
        name = self.graph.name
        self._reports.call_took_long(name, operator=node.operator, lane=node.lane, seconds=seconds)
        if seconds >= STUCK_S and not self._is_stuck:
            self._is_stuck = True
            self._reports.stuck(name, flags_of(self.graph))

    def _replace_threads(self) -> None:
        """Replace threads whose calls are waited for by callers alone that want no result."""
        for caller in self.callers:
            for call in list(caller.calls) if caller.is_done else ():
                if call.is_obsolete and call.task is None:
                    self._wiring.replace_thread(call.processor)

    async def end(self) -> None:
        """End the run, since the graph is closed, and wait until no call runs.

        Raises:
            GraphError: it runs in another event loop.
        """
        self._check_loop()
        self._wiring.scheduler.stop(None)
        assert self.ended is not None
        await self.ended.wait()

    def _check_loop(self) -> None:
        if self._loop is not asyncio.get_running_loop():
            msg = f"{self.graph.name!r} runs in another event loop"
            raise GraphError(msg)

    def _stopped(self) -> None:
        scheduler = self._wiring.scheduler
        error, scheduler.error = scheduler.error, None
        if error is not None and not self.is_over:
            self._on_broken(as_ordinary(error))
        self.is_over = True
        for caller in list(self.callers):
            closed = GraphClosed(self.graph.name)
            caller.leave(error=closed if error is None else as_ordinary(error))

    def _ended(self) -> None:
        for _ in forget_values(self.graph):
            pass
        self.graph.ended_at = self.graph.stopwatch()
        log_later_errors(self.graph)
        assert self.ended is not None
        self.ended.set()
