"""`StandingGraph`: a graph that stays open, and takes values one by one.

Callers share its lanes, its batches and its bounds, and nothing else: each gets its own result or
its own error, and one that is cancelled harms no other. While no caller waits, nothing runs: there
is no task, no timer and no thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

from rowlock.containment import as_ordinary
from rowlock.errors import GraphClosed, GraphDeadlockError, GraphError
from rowlock.graph.building.arguments import check_plain_function, check_type, shown
from rowlock.graph.building.flow import Flow, Graph
from rowlock.graph.lanes.runtime import GraphRuntime
from rowlock.graph.scheduling.settings import check_keep_going, check_runtime
from rowlock.graph.scheduling.statistics import GraphStatistics, statistics_of
from rowlock.graph.standing.capacity import capacity_of
from rowlock.graph.standing.envelopes import Caller
from rowlock.graph.standing.nodes import Build, StandingNodes
from rowlock.graph.standing.reports import ContainedReports, StandingReports
from rowlock.shielding import finish

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

    def __init__(
        self,
        build: Callable[[Flow[T]], Flow[R]],
        *,
        name: str = "graph",
        runtime: GraphRuntime | None = None,
        leaves: tuple[type, ...] = (),
        shows_values: bool = False,
        reports: StandingReports | None = None,
    ) -> None:
        """Build the graph.

        Args:
            build: gets the flow of submitted values, and returns that of their results: one for
                each value. It is called now, and again for fresh nodes.
            name: for errors, pictures and logs.
            runtime: whose threads; those of this process by default.
            leaves: an instance of these that an operator returns is the result at once; what else
                there is of its value in the graph is left out.
            shows_values: the note on an error quotes the value of its call, shortened. The note is
                logged with the error, so by default it names operator and lane only.
            reports: hears of what happens to the graph as a whole; it is logged by default.
        """
        check_plain_function("build", build)
        check_runtime(runtime)
        check_type("shows_values", shows_values, bool)
        if reports is not None:
            check_type("reports", reports, StandingReports)
        _check_leaves(leaves)
        self.name = name
        self._build = cast("Build", build)
        self._leaves = leaves
        self._shows_values = shows_values
        self._runtime = runtime
        self._reports = ContainedReports(reports or StandingReports())
        self._context = copy_context()
        self._is_closed = False
        self._broken_by: Exception | None = None
        self._running: list[StandingNodes] = []
        self._nodes = self._built()

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
        """Return itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
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
        """Return nodes that run in this event loop; fresh ones after some that broke."""
        if self._is_closed:
            raise GraphClosed(self.name)
        if self._nodes.is_over or self._nodes.is_of_closed_loop:
            self._nodes = self._rebuilt()
        nodes = self._nodes
        if nodes.ended is None:
            self._running = [one for one in self._running if not one.has_ended]
            self._running.append(nodes)
        nodes.begin(
            context=self._context,
            runtime=self._runtime,
            reports=self._reports,
            on_broken=self._broken,
        )
        return nodes

    def _built(self) -> StandingNodes:
        return StandingNodes(
            self._build,
            name=self.name,
            leaves=self._leaves,
            shows_values=self._shows_values,
        )

    def _rebuilt(self) -> StandingNodes:
        try:
            nodes = self._built()
        except Exception:
            raise
        except BaseException as raised:
            raise as_ordinary(raised) from raised
        if self._broken_by is not None:
            self._reports.rebuilt(self.name, self._broken_by)
            self._broken_by = None
        return nodes

    def _broken(self, error: Exception) -> None:
        self._broken_by = error
        if isinstance(error, GraphDeadlockError):
            self._reports.deadlocked(self.name, error)

    async def _end(self) -> None:
        for nodes in self._running:
            if not nodes.is_of_closed_loop:
                await nodes.end()
        self._running.clear()


def _check_leaves(leaves: object) -> None:
    if not (isinstance(leaves, tuple) and all(isinstance(one, type) for one in leaves)):
        msg = f"leaves is {shown(leaves)}; it must be a tuple of types"
        raise GraphError(msg)
