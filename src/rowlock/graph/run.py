"""`run_graph`: one run of a graph, from its checks to its hooks, however it ends; and
`stream_graph`: the same with the values of a flow as an asynchronous iterator, with back pressure.

A run returns only when none of its calls runs any more, so that its caller may rely on that: a
lease is not released while a call still works on its row. A cancelled caller therefore waits until
the calls in flight have ended; then it is cancelled.

The last node of a stream holds one value for the consumer, and asks for the next only when that was
taken. So a slow consumer slows the graph down, and one that leaves ends it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from inspect import isawaitable
from typing import Any, Final, Generic, TypeVar

from rowlock.errors import GraphClosed, GraphError, GraphTimeLimit
from rowlock.graph.event_loop import LoopLanes
from rowlock.graph.flow import Flow
from rowlock.graph.host_code import (
    KeepGoing,
    bounded,
    check_plain_function,
    check_type,
    seconds_of,
    shown,
)
from rowlock.graph.processor import NodeStatus, OutputPort, Port, Processor
from rowlock.graph.statistics import GraphStatistics, statistics_in_steps
from rowlock.graph.threads import GraphRuntime, ThreadLanes, replaced_meanwhile
from rowlock.graph.topology import CHECKED_AT_ONCE, NODES_MAX, Node, Topology
from rowlock.logs import get_logger
from rowlock.tasks import as_host_code, as_ordinary, finish

SECONDS_MAX: Final = 366 * 24 * 3600.0
"""The longest time limit and the longest grace, in seconds."""


class RunSettings:
    """How one run is to go on, and to end; see `run_graph`."""

    def __init__(
        self,
        *,
        time_limit: timedelta | float | None = None,
        keep_going: KeepGoing | None = None,
        grace: timedelta | float | None = None,
        threads: int | None = None,
        runtime: GraphRuntime | None = None,
        shows_values: bool = False,
    ) -> None:
        check_keep_going(keep_going)
        check_runtime(runtime)
        check_type("shows_values", shows_values, bool)
        self.time_limit_s = seconds_of("time_limit", time_limit, high=SECONDS_MAX, may_be_0=True)
        self.grace_s = seconds_of("grace", grace, high=SECONDS_MAX, may_be_0=True)
        self.threads = None if threads is None else bounded("threads", threads, high=NODES_MAX)
        self.keep_going = keep_going
        self.runtime = runtime
        self.shows_values = shows_values


def check_keep_going(keep_going: object) -> None:
    if keep_going is not None:
        check_plain_function("keep_going", keep_going)


def check_runtime(runtime: object) -> None:
    if runtime is not None:
        check_type("runtime", runtime, GraphRuntime)


logger = get_logger(__name__)


def forget_values(graph: Topology) -> Iterator[None]:
    """Forget all values of a run that has ended, step by step."""
    dropped = graph.changes.dropped
    for node in graph.nodes:
        for port in node.processor.inputs:
            if port.is_connected:
                port.edge.clear()
        try:
            if not node.is_abandoned:
                node.processor.clear()
            node.processor.attach(None)
        except BaseException as error:  # a processor may be the host's
            extra = {"operator": node.operator}
            logger.warning("%(operator)s could not forget its values", extra, exc_info=error)
        node.processor.context = None
        if not node.index % CHECKED_AT_ONCE:
            dropped.clear()
            yield
    dropped.clear()


def log_later_errors(graph: Topology) -> None:
    for later in graph.later_errors:
        text = "%(operator)s failed after the run was to end"
        logger.warning(text, {"operator": later.operator}, exc_info=later.error)
        later.error.with_traceback(None)


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
    if not isinstance(graph, Topology):
        raise GraphError(f"run_graph() wants a graph, as sink() returns it, not {shown(graph)}")
    graph.begin_run()
    settings: RunSettings | None = None
    mistake: GraphError | None = None
    try:
        settings = RunSettings(
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
    graph: Topology, settings: RunSettings | None, mistake: GraphError | None = None
) -> GraphStatistics:
    """Run `graph`, whose run has begun, as `run_graph` does; or end it at once with a mistake."""
    run = GraphRun(graph, settings, mistake)
    with replaced_meanwhile():
        await run.to_its_end()
    return await statistics_in_steps(graph)


class GraphRun:
    def __init__(
        self,
        graph: Topology,
        settings: RunSettings | None = None,
        mistake: GraphError | None = None,
    ) -> None:
        settings = settings or RunSettings()
        self.graph = graph
        graph.shows_values = settings.shows_values
        self._limit_s = settings.time_limit_s
        self._grace_s = settings.grace_s
        self._mistake = mistake
        self._end = asyncio.Event()
        self._grace_timer: asyncio.TimerHandle | None = None
        self.lanes = LoopLanes(
            graph,
            context=copy_context(),
            keep_going=settings.keep_going,
            on_stop=self._begin_grace,
            on_end=self._end.set,
        )
        self.scheduler = self.lanes.scheduler
        self._threads = ThreadLanes(settings.runtime, self.lanes, threads_max=settings.threads)

    async def to_its_end(self) -> None:
        """Run, clean up and call the hooks of the end; raise what ended the run (`run_graph`)."""
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
        self.lanes.advance_soon()
        try:
            await self._wait(cancelled)
        finally:
            del cancelled

    async def _prepare(self) -> None:
        if self._mistake is not None:
            raise self._mistake
        for _ in self.graph.checks():
            await asyncio.sleep(0)
        for hook in self.graph.start_hooks:
            await as_host_code(partial(_call_hook, hook))

    async def _wait(self, cancelled: asyncio.CancelledError | None) -> None:
        loop, limit_s = asyncio.get_running_loop(), self._limit_s
        over = GraphTimeLimit(graph=self.graph.name, time_limit_s=limit_s or 0.0)
        timer = None if limit_s is None else loop.call_later(limit_s, self.scheduler.stop, over)
        # Nothing but the end of the event loop cancels this one.
        until_loop_ends = asyncio.create_task(self._end.wait(), name="rowlock: a run of a graph")
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
            self._threads.replace(node)
            text = "A call ignored the end of its run and is abandoned: %(operator)s"
            logger.warning(text, {"operator": node.operator})
        return nodes

    async def _clean_up(self, error: BaseException | None) -> BaseException | None:
        """Forget all values and call the hooks of the end; return what the first of them raised."""
        for _ in forget_values(self.graph):
            await asyncio.sleep(0)
        log_later_errors(self.graph)
        return await self._call_end_hooks(error)

    async def _call_end_hooks(self, error: BaseException | None) -> BaseException | None:
        failure: BaseException | None = None
        for hook, is_always in self.graph.end_hooks:
            if failure is not None and not is_always:
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


# ---------------------------------------------------------------- streams


T = TypeVar("T")


class StreamSink(Processor, Generic[T]):
    """Holds the next value for a consumer in the event loop that this is made in."""

    def __init__(self) -> None:
        super().__init__(inputs=1, name="stream")
        self.values: deque[T] = deque()
        # The consumer has the value. The node knows so only when it is asked, and holds the value
        # until then: a call that ends in between would find that nothing can go on.
        self.is_taken = False
        self.is_ready = asyncio.Event()  # set when the consumer is to look
        self._is_held = False
        self._loop = asyncio.get_running_loop()

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        del changed
        input_ = self.inputs[0]
        if self.is_taken:
            self.is_taken = self._is_held = False
        if self._is_held:
            return NodeStatus.NEED_DATA
        if input_.has_data:
            self._is_held = True
            self.values.append(input_.pull())
            self.merged += 1
            with suppress(RuntimeError):  # the loop is closed, and its consumer is gone
                self._loop.call_soon_threadsafe(self.is_ready.set)
        elif input_.is_finished:
            return NodeStatus.FINISHED
        else:
            input_.need()
        return NodeStatus.NEED_DATA

    def is_open(self) -> bool:
        return self._is_held


class StreamValues(AsyncIterator[T]):
    """The values of a run, for any number of tasks."""

    # Not a generator: one whose reader gives up waiting is at its end, and one that is read by two
    # tasks fails.

    def __init__(self, graph: str, sink: StreamSink[T], run: asyncio.Task[Any]) -> None:
        self._graph = graph
        self._sink = sink
        self._run: asyncio.Task[Any] | None = run
        run.add_done_callback(lambda _task: sink.is_ready.set())

    async def __anext__(self) -> T:
        """Return the next value, or raise what ended the run; `GraphClosed` after the block."""
        sink = self._sink
        while not sink.values:
            # No frame of the error may refer to the run, which refers to the error.
            if self._run is None or self._run.cancelled():
                raise GraphClosed(self._graph)
            if self._run.done():
                self._run.result()
                raise StopAsyncIteration
            sink.is_ready.clear()
            await sink.is_ready.wait()
        value = sink.values.popleft()
        sink.is_taken = True
        sink.wake()
        return value

    def leave(self) -> None:
        self._run = None
        self._sink.values.clear()
        self._sink.is_ready.set()


@asynccontextmanager
async def stream_output(
    graph: Topology, output: OutputPort[T], settings: RunSettings | None = None
) -> AsyncIterator[AsyncIterator[T]]:
    """Run `graph` in the block, and give the values of `output`; see `stream_graph`."""
    sink = StreamSink[T]()
    graph.add([sink])
    graph.connect(output, sink.inputs[0])
    graph.begin_run()
    run = asyncio.create_task(run_with(graph, settings), name=f"rowlock: stream {graph.name}")
    values = StreamValues(graph.name, sink, run)
    try:
        yield values
    finally:
        try:
            await _left(run)
        finally:
            values.leave()


async def _left(run: asyncio.Task[Any]) -> None:
    if not run.done():
        run.cancel()
    cancelled = None
    while not run.done():
        try:
            await asyncio.wait([run])
        except asyncio.CancelledError as error:
            cancelled = error
            run.cancel()
    if cancelled is not None:
        raise cancelled
    if not run.cancelled():
        run.exception()


def stream_graph(
    flow: Flow[T],
    *,
    time_limit: timedelta | float | None = None,
    keep_going: Callable[[], bool] | None = None,
    grace: timedelta | float | None = None,
    threads: int | None = None,
    runtime: GraphRuntime | None = None,
    shows_values: bool = False,
) -> AbstractAsyncContextManager[AsyncIterator[T]]:
    """Run the graph of `flow` in the block, and give its values as they come.

    The iterator raises what ends the run. Leaving the block ends the run, and waits until none of
    its calls runs. Several tasks may read; one that still does when the block is left gets a
    `GraphClosed`.

    Args:
        flow: has no reader yet; the rest of its graph is complete.
        time_limit: seconds that the run may take.
        keep_going: asked before each call; the run ends once it returns False.
        grace: seconds that calls in threads may go on after the end.
        threads: how many calls may run in threads at the same time.
        runtime: whose threads; those of this process by default.
        shows_values: the note on an error quotes the value of its call, shortened.

    Raises:
        GraphError: the flow has a reader, the graph is incomplete, or it has run, or an argument is
            wrong.
    """
    check_type("flow", flow, Flow)
    settings = RunSettings(
        time_limit=time_limit,
        keep_going=keep_going,
        grace=grace,
        threads=threads,
        runtime=runtime,
        shows_values=shows_values,
    )
    return stream_output(flow.graph, flow.last_output("stream"), settings)
