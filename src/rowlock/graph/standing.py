"""`StandingGraph`: a graph that stays open, and takes values one by one.

Callers share its lanes, its batches and its bounds, and nothing else: each gets its own result or
its own error, and one that is cancelled harms no other. While no caller waits, nothing runs: there
is no task, no timer and no thread of its own.

Its nodes are built by the host's function, checked at once, and run for as long as none of them
breaks. A value whose parts are inside counts once towards its capacity, however many parts it has.
A call that has run for 5 s is reported, and again each time that its age has doubled; nothing is
ended for that: `timeout` of an operator is for calls that may not take long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from rowlock.clock import stopwatch
from rowlock.errors import GraphClosed, GraphDeadlockError, GraphError
from rowlock.graph.envelopes import OUTLET, Caller, EnvelopeCarrier, Inlet, Outlet
from rowlock.graph.event_loop import LoopLanes
from rowlock.graph.fix_point import flags_of
from rowlock.graph.flow import Flow, Graph
from rowlock.graph.host_code import check_plain_function, check_type, not_awaited
from rowlock.graph.run import check_keep_going, check_runtime, forget_values, log_later_errors
from rowlock.graph.statistics import GraphStatistics, statistics_of
from rowlock.graph.stock.batches import BatchProcessor
from rowlock.graph.stock.parts import GatherProcessor, ScatterProcessor
from rowlock.graph.threads import GraphRuntime, ThreadLanes
from rowlock.graph.topology import Node, Topology, node_of, targets_of
from rowlock.logs import get_logger
from rowlock.tasks import as_ordinary, finish

logger = get_logger(__name__)


LONG_S: Final = 5.0
"""After this time a call is reported for the first time, and so often calls are looked at; in
seconds.
"""


def capacity_of(graph: Topology) -> int:
    of_parts = _nodes_of_parts(graph)
    edges = sum(
        1
        for edge in graph.edges
        if (source := node_of(edge.source)).index not in of_parts
        and not isinstance(source.processor, ScatterProcessor)
    )
    held = sum(_held_by(node) for node in graph.nodes if node.index not in of_parts)
    return edges + held


def _held_by(node: Node) -> int:
    processor = node.processor
    if isinstance(processor, ScatterProcessor):
        return processor.groups
    return 0 if isinstance(processor, GatherProcessor) else processor.holds_max


def _nodes_of_parts(graph: Topology) -> set[int]:
    found: set[int] = set()
    for node in graph.nodes:
        if not isinstance(node.processor, ScatterProcessor):
            continue
        gather = node.processor.gather
        waiting = targets_of(node)
        while waiting:
            one = waiting.pop()
            if one.processor is not gather and one.index not in found:
                found.add(one.index)
                waiting += targets_of(one)
    return found


STUCK_S: Final = 200.0
"""After this time of a call the graph is reported as a whole, in seconds."""


class StandingNodes:
    def __init__(self, owner: StandingGraph[Any, Any]) -> None:
        self.graph: Final = Graph(owner.name)
        self.callers: dict[Caller, None] = {}
        self.is_over = False  # no caller may enter any more: a node broke, or the graph was closed
        # Set when no call runs any more; None before the run
        self.ended: asyncio.Event | None = None
        self._owner = owner
        self._inlet = Inlet()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lanes: LoopLanes
        self._threads: ThreadLanes
        self._timer: asyncio.TimerHandle | None = None
        self._reported: dict[Node, tuple[float, float]] = {}
        self._is_stuck = False
        self.graph.shows_values = owner._shows_values
        self._build(owner._build, EnvelopeCarrier(owner._leaves))
        processors = [node.processor for node in self.graph.nodes]
        self._batches = [one for one in processors if isinstance(one, BatchProcessor)]

    def _build(self, build: Callable[[Any], object], carrier: EnvelopeCarrier) -> None:
        graph, inlet, outlet = self.graph, self._inlet, Outlet()
        graph.add([inlet])
        flow = not_awaited(build(Flow(graph, inlet.outputs, carrier)))
        if not (isinstance(flow, Flow) and flow._carrier is carrier):
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

    def begin(self) -> None:
        """Run in the running event loop, unless this has begun."""
        loop = asyncio.get_running_loop()
        if self._loop is not None:
            self._check_loop()
            return
        self._loop, self.ended = loop, asyncio.Event()
        self.graph.stopwatch = stopwatch()
        self.graph.started_at = self.graph.stopwatch()
        context = self._owner._context.copy()
        self._lanes = LoopLanes(
            self.graph, context=context, on_stop=self._stopped, on_end=self._ended
        )
        self._threads = ThreadLanes(self._owner._runtime, self._lanes)
        for _ in self._lanes.scheduler.start():
            pass
        self._lanes.advance_soon()

    @property
    def has_ended(self) -> bool:
        return self.ended is not None and self.ended.is_set()

    @property
    def is_of_closed_loop(self) -> bool:
        return self._loop is not None and self._loop.is_closed()

    def enter(self, caller: Caller, value: object) -> None:
        if not self.callers:
            self._look_later()
        self.callers[caller] = None
        self._inlet.put(caller, value)

    def done(self, caller: Caller) -> None:
        """Take in that a caller has its result or its error; from any thread."""
        self._inlet.left(caller)
        if caller.has_left:
            for batch in self._batches:
                batch.wake()  # it may hold values of this caller, and wait for others

    def returned(self, caller: Caller) -> None:
        self.callers.pop(caller, None)
        if not self.callers and self._timer is not None:
            self._timer.cancel()
            # A cancelled timer keeps the context of the caller that set it.
            self._timer = None

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LONG_S, self._look)

    def _look(self) -> None:
        """Report calls that take long, and replace threads whose callers want no result."""
        self._look_later()
        now, reported = self.graph.stopwatch(), self._reported
        self._reported = {}
        for node in (*self._lanes.nodes(), *self._threads.nodes()):
            began_at, due_s = reported.get(node, (0.0, 0.0))
            if node.started_at != began_at:
                began_at, due_s = node.started_at, LONG_S
            age_s = now - began_at
            if age_s >= due_s:
                self._report_long(node, age_s)
                due_s = 2 * age_s
            self._reported[node] = (began_at, due_s)
        for caller in self.callers:
            for call in list(caller.calls) if caller.is_done else ():
                if call.is_obsolete and call.task is None:
                    self._threads.replace(node_of(call.processor))

    def _report_long(self, node: Node, seconds: float) -> None:
        self._owner._call_took_long(node, seconds)
        if seconds >= STUCK_S and not self._is_stuck:
            self._is_stuck = True
            extra = {"graph": self.graph.name, "text": flags_of(self.graph)}
            logger.warning("The graph %(graph)s, since a call takes very long:\n%(text)s", extra)

    async def end(self) -> None:
        """End the run, and wait until no call runs."""
        self._check_loop()
        self._lanes.scheduler.stop(None)
        assert self.ended is not None
        await self.ended.wait()

    def _check_loop(self) -> None:
        if self._loop is not asyncio.get_running_loop():
            msg = f"{self.graph.name!r} runs in another event loop"
            raise GraphError(msg)

    def _stopped(self) -> None:
        scheduler = self._lanes.scheduler
        error, scheduler.error = scheduler.error, None
        if error is not None and not self.is_over:
            self._owner._has_broken(as_ordinary(error))
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


T = TypeVar("T")
R = TypeVar("R")


class StandingGraph(Generic[T, R]):
    """A graph that stays open; each `submit` puts one value in, and returns its result.

        async with StandingGraph(build) as pages:
            vectors = await pages.submit(page)

    It belongs to the event loop in which the first value is submitted. A node that breaks, which is
    one whose ``event`` raises or that can never go on, fails the values inside; the next `submit`
    gets fresh nodes.

    Attributes:
        name: for errors, pictures and logs.

    Raises:
        GraphError: `build` made a mistake, or returned another flow; or an argument is wrong.
    """

    _leaves: tuple[type, ...] = ()
    """Instances of these that an operator returns are results at once."""

    def __init__(
        self,
        build: Callable[[Flow[T]], Flow[R]],
        *,
        name: str = "graph",
        runtime: GraphRuntime | None = None,
        shows_values: bool = False,
    ) -> None:
        """Build the graph.

        Args:
            build: gets the flow of submitted values, and returns that of their results: one for
                each value. It is called now, and again for fresh nodes.
            name: for errors, pictures and logs.
            runtime: whose threads; those of this process by default.
            shows_values: the note on an error quotes the value of its call, shortened. The note is
                logged with the error, so by default it names operator and lane only.
        """
        check_plain_function("build", build)
        check_runtime(runtime)
        check_type("shows_values", shows_values, bool)
        self.name = name
        self._build: Callable[[Any], Any] = build
        self._shows_values = shows_values
        self._runtime = runtime
        self._context = copy_context()
        self._is_closed = False
        self._broken_by: Exception | None = None
        self._running: list[StandingNodes] = []
        self._nodes = StandingNodes(self)

    async def submit(self, value: T, *, keep_going: Callable[[], bool] | None = None) -> R:
        """Put `value` in as soon as there is room, and return its result.

        It returns when no call runs for the value, also if it is cancelled: coroutines that run for
        this value alone are cancelled, calls in threads and those that other values share are
        waited for. No further call begins for it.

        Args:
            value: goes through the graph.
            keep_going: asked before each call, in its place; once it returns False no further call
                begins.

        Raises:
            GraphClosed: the graph is closed, or was closed meanwhile.
            GraphInterrupted: `keep_going` returned False.
            GraphDeadlockError: the nodes wait for each other.
            GraphError: the graph runs in another event loop, or `keep_going` cannot be called.
            HostCodeError: a call raised what no caller can be given, such as ``SystemExit``.
            Exception: whatever a call raised.
        """
        check_keep_going(keep_going)
        nodes = self._open_nodes()
        caller = Caller(self.name, keep_going=keep_going, on_done=nodes.done)
        nodes.enter(caller, value)
        try:
            result: R = await caller.outcome()
        finally:
            nodes.returned(caller)
        return result

    async def aclose(self) -> None:
        """End what runs, wait until no call runs, and take no further value. Again: it waits again.

        Values inside fail with `GraphClosed`.

        Raises:
            GraphError: the graph runs in another event loop. It takes no further value there.
        """
        self._is_closed = True
        await finish(self._end(), purpose=f"close the graph {self.name!r}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    @property
    def graph(self) -> Graph:
        """The graph of the present nodes, for pictures."""
        return self._nodes.graph

    @property
    def capacity(self) -> int:
        """How many submitted values the present nodes hold at most; further ones wait outside."""
        return capacity_of(self._nodes.graph)

    def statistics(self) -> GraphStatistics:
        """Return what the present nodes have done so far."""
        return statistics_of(self._nodes.graph)

    def _open_nodes(self) -> StandingNodes:
        if self._is_closed:
            raise GraphClosed(self.name)
        if self._nodes.is_over or self._nodes.is_of_closed_loop:
            try:
                self._nodes = StandingNodes(self)
            except Exception:
                raise
            # A `SystemExit` of `build` is not to end the event loop.
            except BaseException as raised:
                raise as_ordinary(raised) from raised
            if self._broken_by is not None:
                self._rebuilt(self._broken_by)
                self._broken_by = None
        nodes = self._nodes
        if nodes.ended is None:
            self._running = [one for one in self._running if not one.has_ended]
            self._running.append(nodes)
        nodes.begin()
        return nodes

    def _has_broken(self, error: Exception) -> None:
        self._broken_by = error
        if isinstance(error, GraphDeadlockError):
            self._deadlocked(error)

    def _deadlocked(self, error: GraphDeadlockError) -> None:
        """Report that the nodes waited for each other, so the values inside failed."""
        logger.error("%(text)s", {"graph": self.name, "text": f"{error}\n{error.text}"})

    def _rebuilt(self, error: Exception) -> None:
        text = "The graph %(graph)s has fresh nodes: one broke"
        logger.error(text, {"graph": self.name}, exc_info=error)

    def _call_took_long(self, node: Node, seconds: float) -> None:
        logger.warning(
            "A call of %(operator)s (lane %(lane)s) of the graph %(graph)s takes long:"
            " %(seconds).0f s so far",
            {"graph": self.name, "operator": node.operator, "seconds": seconds, "lane": node.lane},
        )

    async def _end(self) -> None:
        for nodes in self._running:
            if not nodes.is_of_closed_loop:
                await nodes.end()
        self._running.clear()
