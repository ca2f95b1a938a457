"""When a run has ended, its graph keeps no value alive, however it ended."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rowlock.graph import Flow, Graph, run_graph

from ..runs import count_references
from .test_host_code import OPERATORS, Host, Mutex, Value


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    """What the collector would find is found by the test."""
    gc.disable()
    yield
    gc.enable()


class Counted(Value):
    """A value that is counted while it lives."""

    alive = 0
    lock = threading.Lock()
    """Without a global lock of the interpreter two threads would count as one."""

    def __init__(self, mutex: Mutex, number: int) -> None:
        super().__init__(mutex, number)
        with Counted.lock:
            Counted.alive += 1

    def __del__(self) -> None:
        with Counted.lock:
            Counted.alive -= 1


class CountingHost(Host):
    def values(self, count: int = 40) -> Iterator[Value]:
        for number in range(count):
            yield Counted(self.mutex, number)

    def other(self, value: Value) -> Value:
        return Counted(self.mutex, value.number)


class Ends(Exception):
    """Ends a run."""


def ending(value: Value) -> Value:
    if value.number > 5:
        raise Ends
    return value


@pytest.mark.parametrize("end", ["all", "limit", "error"])
@pytest.mark.parametrize("operator", OPERATORS)
async def test_no_value_outlives_the_run(operator: Any, end: str) -> None:
    """A graph that a host keeps for its statistics would keep bodies in memory as well."""
    mutex = Mutex()
    graph: Graph = mutex.graph
    host = CountingHost(mutex)
    flow: Flow[Any] = operator(host, graph.source(host.values()))
    flow = flow.map(ending, on="loop") if end == "error" else flow
    flow = flow.limit(3) if end == "limit" else flow
    flow.sink(host.same, lanes=2)
    before = Counted.alive
    try:
        await run_graph(graph)
    except Ends:
        assert end == "error"
    count_references()
    assert (before, Counted.alive) == (0, 0)
