"""`stream_output`: the values of one output as an asynchronous iterator, with back pressure.

The last node of such a graph holds one value for the consumer, and asks for the next only when that
was read. So a slow consumer slows the graph down, and one that leaves ends it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, TypeVar

from rowlock.containment import contained_task
from rowlock.graph.building.topology import Topology
from rowlock.graph.ports import OutputPort, Port
from rowlock.graph.processor import NodeStatus, Processor
from rowlock.graph.scheduling.run import run_with
from rowlock.graph.scheduling.settings import DEFAULTS, RunSettings

T = TypeVar("T")


class StreamSink(Processor, Generic[T]):
    """Holds the next value for a consumer in the event loop that this is made in."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        super().__init__(inputs=1, name="stream")
        self._loop = asyncio.get_running_loop()
        self._values: deque[T] = deque()
        self._is_ready = asyncio.Event()

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        """Move a value to where the consumer reads it."""
        input_ = self.inputs[0]
        if not self._values:
            if input_.has_data:
                self._values.append(input_.pull())
                self.merged += 1
                with suppress(RuntimeError):  # the loop is closed, and its consumer is gone
                    self._loop.call_soon_threadsafe(self._is_ready.set)
            elif input_.is_finished:
                return NodeStatus.FINISHED
            else:
                input_.need()
        return NodeStatus.NEED_DATA

    def is_open(self) -> bool:
        """Return whether the consumer has a value to read, after which the graph goes on."""
        return bool(self._values)

    def forget(self) -> None:
        """Drop the value that was not read. Not done by `clear`: the run may end before that."""
        self._values.clear()

    async def values(self, run: asyncio.Task[Any]) -> AsyncIterator[T]:
        """Yield the values of `run` until it ends, then raise what ended it."""
        run.add_done_callback(lambda _task: self._is_ready.set())
        while True:
            await self._is_ready.wait()
            self._is_ready.clear()
            while self._values:
                yield self._values.popleft()
                self.wake()
            if run.done():
                await run
                return


@asynccontextmanager
async def stream_output(
    graph: Topology, output: OutputPort[T], settings: RunSettings = DEFAULTS
) -> AsyncIterator[AsyncIterator[T]]:
    """Run `graph` in the block, and give the values of its last open output.

    The iterator raises what ends the run. Leaving the block ends the run, and waits until none of
    its calls runs; what the iterator has not raised by then is thrown away with its values.

    Args:
        graph: complete but for `output`.
        output: whose values.
        settings: of the run.

    Raises:
        GraphError: the graph is incomplete, or has run.
    """
    sink = StreamSink[T]()
    graph.add([sink])
    graph.connect(output, sink.inputs[0])
    graph.begin_run()
    run = contained_task(run_with(graph, settings), name=f"rowlock: stream {graph.name}")
    values = sink.values(run)
    try:
        yield values
    finally:
        await _left(run)
        await values.aclose()  # type: ignore[attr-defined]  # it is a generator
        sink.forget()


async def _left(run: asyncio.Task[Any]) -> None:
    """End the run of a consumer that has left, and raise what ended it before that."""
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
