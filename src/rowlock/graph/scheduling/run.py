"""`run_graph`: one run of a graph, from its checks to its hooks, however it ends.

A run returns only when none of its calls runs any more, so that its caller may rely on that: a
lease is not released while a call still works on its row. A cancelled caller therefore waits until
the calls in flight have ended; then it is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from inspect import isawaitable

from rowlock.containment import as_host_code, as_ordinary, contained_task
from rowlock.errors import GraphError, GraphTimeLimit
from rowlock.graph.building.arguments import shown
from rowlock.graph.building.topology import Node, Topology
from rowlock.graph.lanes.runtime import GraphRuntime
from rowlock.graph.lanes.threads import replaced_meanwhile
from rowlock.graph.scheduling.settings import DEFAULTS, RunSettings, run_settings
from rowlock.graph.scheduling.statistics import GraphStatistics, statistics_in_steps
from rowlock.graph.scheduling.wiring import RunWiring, forget_values, log_later_errors
from rowlock.logs import get_logger
from rowlock.shielding import finish

logger = get_logger(__name__)


async def run_graph(
    graph: Topology,
    *,
    time_limit: timedelta | float | None = None,
    keep_going: Callable[[], bool] | None = None,
    grace: timedelta | float | None = None,
    threads: int | None = None,
    runtime: GraphRuntime | None = None,
    shows_values: bool = False,
) -> GraphStatistics:
    """Run `graph`, and return what it did.

    The first error ends the run, and is raised as it is, with a note about where it happened.
    Coroutines are cancelled at once; calls in threads are waited for, unless there is a `grace`.
    Whatever happens, sources are closed and the hooks of `Topology.on_end` are called, once.

    Args:
        graph: is run once.
        time_limit: seconds that the run may take, hooks of its begin and end not counted.
        keep_going: asked before each call, in its place; the run ends once it returns False.
        grace: seconds that calls may go on after the run is to end; those that do are abandoned.
            Without it they are waited for, unless the event loop ends.
        threads: how many of its calls may run in threads at the same time.
        runtime: whose threads; those of this process by default.
        shows_values: the note on an error quotes the value of its call, shortened. The note is
            logged with the error, so by default it names operator and lane only.

    Raises:
        GraphError: the graph is incomplete, or has run, or an argument is wrong.
        GraphDeadlockError: its nodes wait for each other.
        GraphTimeLimit: the run took longer than `time_limit`.
        GraphInterrupted: `keep_going` returned False.
        HostCodeError: a call raised what no caller can be given, such as ``SystemExit``.
        Exception: whatever a call raised first.
    """
    _check_graph(graph)
    graph.begin_run()
    settings, mistake = DEFAULTS, None
    try:
        settings = run_settings(
            time_limit=time_limit,
            keep_going=keep_going,
            grace=grace,
            threads=threads,
            runtime=runtime,
            shows_values=shows_values,
        )
    except GraphError as error:  # sources are closed, and the hooks of the end are called
        mistake = error
    try:
        return await run_with(graph, settings, mistake)
    finally:
        del mistake  # its traceback would refer to itself


async def run_with(
    graph: Topology, settings: RunSettings, mistake: GraphError | None = None
) -> GraphStatistics:
    """Run `graph`, whose run has begun, as `run_graph` does; or end it at once with a mistake."""
    run = GraphRun(graph, settings, mistake)
    with replaced_meanwhile():
        await run.to_its_end()
    return await statistics_in_steps(graph)


class GraphRun:
    """One run of a graph.

    Attributes:
        graph: that runs.
        scheduler: decides which calls are next.
    """

    def __init__(
        self,
        graph: Topology,
        settings: RunSettings = DEFAULTS,
        mistake: GraphError | None = None,
    ) -> None:
        """Belong to the running event loop; the graph is not checked yet. See `run_graph`.

        Args:
            graph: its run has begun.
            settings: how it is to go on, and to end.
            mistake: of the settings; the run ends with it.
        """
        self.graph = graph
        graph.shows_values = settings.shows_values
        self._limit_s = settings.time_limit_s
        self._grace_s = settings.grace_s
        self._mistake = mistake
        self._end = asyncio.Event()
        self._grace_timer: asyncio.TimerHandle | None = None
        self._wiring = RunWiring(
            graph,
            keep_going=settings.keep_going,
            threads_max=settings.threads,
            runtime=settings.runtime,
            on_stop=self._begin_grace,
            on_end=self._end.set,
        )
        self.scheduler = self._wiring.scheduler

    async def to_its_end(self) -> None:
        """Check, start, wait, clean up, and call the hooks of the end.

        Raises:
            BaseException: what ended the run, see `run_graph`.
        """
        error: BaseException | None = None
        try:
            await self._run()
        except BaseException as raised:  # noqa: BLE001  # the hooks of the end are called anyway
            error = raised
        try:
            raised_later = await finish(
                self._clean_up(error), purpose=f"end the run of the graph {self.graph.name!r}"
            )
            if error is not None or raised_later is not None:
                raise error or raised_later  # type: ignore[misc]
        finally:
            # A traceback of these frames would otherwise refer to itself.
            del error

    async def _run(self) -> None:
        cancelled, is_prepared = None, False
        try:
            await self._prepare()
            is_prepared = True
        except asyncio.CancelledError as error:
            cancelled = error
            self.scheduler.stop(None)
        except BaseException as error:  # noqa: BLE001  # sources are closed nevertheless
            self.scheduler.stop(error)
        for _ in self.scheduler.start(is_checked=is_prepared):
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as error:
                cancelled = error
                self.scheduler.stop(None)
        self._wiring.lanes.advance_soon()
        try:
            await self._wait(cancelled)
        finally:
            del cancelled

    async def _prepare(self) -> None:
        """Check the graph, and call the hooks of the start."""
        if self._mistake is not None:
            raise self._mistake
        for _ in self.graph.checks():
            await asyncio.sleep(0)
        for hook in self.graph.start_hooks:
            await as_host_code(partial(_call_hook, hook))

    async def _wait(self, cancelled: asyncio.CancelledError | None) -> None:
        """Wait until nothing is in flight.

        Raises:
            CancelledError: this task was cancelled meanwhile.
            BaseException: what ended the run.
        """
        loop, limit_s = asyncio.get_running_loop(), self._limit_s
        over = GraphTimeLimit(graph=self.graph.name, time_limit_s=limit_s or 0.0)
        timer = None if limit_s is None else loop.call_later(limit_s, self.scheduler.stop, over)
        # Nothing but the end of the event loop cancels this one.
        until_loop_ends = contained_task(self._end.wait(), name="rowlock: a run of a graph")
        until_loop_ends.add_done_callback(self._wait_no_longer)
        while not self._end.is_set():
            try:
                await self._end.wait()
            except asyncio.CancelledError as cancellation:
                cancelled = cancellation
                self.scheduler.stop(None)
        for handle in (timer, self._grace_timer):
            if handle is not None:
                handle.cancel()
        self.graph.ended_at = self.graph.stopwatch()
        abandoned = self._abandoned()
        error, self.scheduler.error = self.scheduler.error, None
        if error is over:
            names = tuple(dict.fromkeys(node.operator for node in abandoned))
            error = GraphTimeLimit(
                graph=self.graph.name, time_limit_s=over.time_limit_s, abandoned=names
            )
        try:
            if cancelled is not None:
                if error is not None:
                    logger.warning("The run of a cancelled caller failed", exc_info=error)
                raise cancelled
            if error is not None:
                raise as_ordinary(error)
        finally:
            del error, cancelled

    def _wait_no_longer(self, _: asyncio.Task[object]) -> None:
        """Abandon calls that still run, since the end of the event loop would wait for them."""
        if not self._end.is_set():
            self._grace_s = 0
            self._begin_grace()

    def _begin_grace(self) -> None:
        if self._grace_s is not None and self._grace_timer is None and not self._end.is_set():
            loop = asyncio.get_running_loop()
            self._grace_timer = loop.call_later(self._grace_s, self._end_grace)

    def _end_grace(self) -> None:
        self._grace_timer = None
        self.scheduler.abandon()
        self._begin_grace()  # for what closes the sources

    def _abandoned(self) -> list[Node]:
        """Return the nodes whose calls still run, and have their threads replaced."""
        nodes = [node for node in self.graph.nodes if node.is_abandoned]
        for node in nodes:
            self._wiring.replace_thread(node.processor)
            logger.warning("A call ignored the end of its run and is abandoned: %s", node.operator)
        return nodes

    async def _clean_up(self, error: BaseException | None) -> BaseException | None:
        """Forget all values and call the hooks of the end; return what the first of them raised."""
        for _ in forget_values(self.graph):
            await asyncio.sleep(0)
        log_later_errors(self.graph)
        return await self._call_end_hooks(error)

    async def _call_end_hooks(self, error: BaseException | None) -> BaseException | None:
        failure: BaseException | None = None
        for hook in self.graph.end_hooks:
            if failure is not None and not self.graph.is_always(hook):
                continue
            try:
                await _call_hook(hook, error)
            except BaseException as raised:  # the others are called nevertheless
                if failure is not None or error is not None:
                    logger.warning("A hook of the end of a graph failed", exc_info=raised)
                failure = failure or as_ordinary(raised)
        return failure


async def _call_hook(hook: Callable[..., object], *args: object) -> None:
    result = hook(*args)
    if isawaitable(result):
        await result


def _check_graph(graph: object) -> None:
    if not isinstance(graph, Topology):
        msg = f"run_graph() wants a graph, as sink() returns it, not {shown(graph)}"
        raise GraphError(msg)
