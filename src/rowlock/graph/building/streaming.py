"""`stream_graph`: the values of a flow, read by an asynchronous loop of the host."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import TypeVar

from rowlock.graph.building.arguments import check_type
from rowlock.graph.building.flow import Flow
from rowlock.graph.lanes.runtime import GraphRuntime
from rowlock.graph.scheduling.settings import run_settings
from rowlock.graph.scheduling.stream import stream_output

T = TypeVar("T")


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
