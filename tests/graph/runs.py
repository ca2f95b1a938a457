"""Graphs for tests of runs, and what such a test waits for."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from rowlock.graph import Graph
from rowlock.graph.processor import Place, Processor

from .nodes import Apply, Collect, Feed

PLACES: tuple[Place, ...] = ("loop", "thread")


def asked_seeds() -> range:
    """Return the seeds of random graphs that ``ROWLOCK_GRAPHS`` asks for: "10000" for so many from
    0 on, "171-300" for these, "171-171" for one that has failed.
    """
    first, _, last = os.environ.get("ROWLOCK_GRAPHS", "200").rpartition("-")
    return range(int(first), int(last) + 1) if first else range(int(last))


def count_references() -> None:
    """Have an interpreter without a global lock count what other threads have let go: it does that
    later, and so an object may outlive its last reference for a while.
    """
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)
    if not has_lock():
        gc.collect()


def line_of(*middle: Processor, values: Iterable[Any] = (), place: Place = "loop") -> Graph:
    """Return a source, some operators with one lane each, and a sink."""
    graph = Graph()
    graph.add_pipe([Feed(values, place=place)])
    for one in middle:
        graph.add_pipe([one])
    graph.add_pipe([Collect()])
    return graph


def got(graph: Graph) -> list[Any]:
    """Return what the sink of `line_of` has got."""
    sink = graph.nodes[-1].processor
    assert isinstance(sink, Collect)
    return sink.got


def applied(function: Callable[[Any], Any], place: Place | str, *, name: str = "operator") -> Apply:
    """Return a node that calls `function` in a place, or awaits it in "task"."""
    if place == "task":

        async def call(value: object) -> object:
            await asyncio.sleep(0)
            try:
                return function(value)
            finally:
                del value  # a traceback would keep it

        return Apply(call, name=name, is_async=True)
    return Apply(function, name=name, place="thread" if place == "thread" else "loop")
