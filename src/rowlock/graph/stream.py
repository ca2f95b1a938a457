"""`stream_output` and `stream_graph`: the values of one output, or of a flow, as an asynchronous
iterator, with back pressure.

The last node of such a graph holds one value for the consumer, and asks for the next only when that
was taken. So a slow consumer slows the graph down, and one that leaves ends it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Generic, TypeVar

from rowlock.errors import GraphClosed
from rowlock.graph.flow import Flow
from rowlock.graph.host_code import check_type
from rowlock.graph.processor import NodeStatus, OutputPort, Port, Processor
from rowlock.graph.run import DEFAULTS, RunSettings, run_settings, run_with
from rowlock.graph.threads import GraphRuntime
from rowlock.graph.topology import Topology

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
            self._check_run()
            sink.is_ready.clear()
            await sink.is_ready.wait()
        value = sink.values.popleft()
        sink.is_taken = True
        sink.wake()
        return value

    def _check_run(self) -> None:
        # No frame of the error may refer to the run, which refers to the error.
        if self._run is None or self._run.cancelled():
            raise GraphClosed(self._graph)
        if self._run.done():
            self._run.result()
            raise StopAsyncIteration

    def leave(self) -> None:
        self._run = None
        self._sink.values.clear()
        self._sink.is_ready.set()


@asynccontextmanager
async def stream_output(
    graph: Topology, output: OutputPort[T], settings: RunSettings = DEFAULTS
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
    settings = run_settings(
        time_limit=time_limit,
        keep_going=keep_going,
        grace=grace,
        threads=threads,
        runtime=runtime,
        shows_values=shows_values,
    )
    return stream_output(flow.graph, flow.last_output("stream"), settings)
