"""No code of the host runs while the scheduler moves values: no function, no key, no comparison, no
generator, and no ``__del__`` of a value that is dropped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from rowlock.graph import Flow, Graph

from ..one_thread import Sequential


class Mutex:
    """Whether a node of the graph is being asked now; under threads that is under the mutex."""

    def __init__(self) -> None:
        self.graph = Graph("test")
        self.violations: list[str] = []
        self.checks = 0

    def check(self, what: str) -> None:
        self.checks += 1
        if self.graph.changes.asked is not None:
            self.violations.append(what)


class Value:
    """A value of the host, each of whose methods is code of the host."""

    def __init__(self, mutex: Mutex, number: int) -> None:
        self.mutex = mutex
        self.number = number

    def __del__(self) -> None:
        self.mutex.check("__del__")

    def __hash__(self) -> int:
        self.mutex.check("__hash__")
        return hash(self.number % 3)

    def __eq__(self, other: object) -> bool:
        self.mutex.check("__eq__")
        return isinstance(other, Value) and other.number % 3 == self.number % 3

    def __bool__(self) -> bool:
        self.mutex.check("__bool__")
        return self.number % 2 == 1

    def __len__(self) -> int:
        self.mutex.check("__len__")
        return 2


class Host:
    """Functions of a host that may be called in calls only."""

    def __init__(self, mutex: Mutex) -> None:
        self.mutex = mutex

    def values(self, count: int = 40) -> Iterator[Value]:
        try:
            for number in range(count):
                self.mutex.check("generator")
                yield Value(self.mutex, number)
        finally:
            self.mutex.check("end of generator")

    def same(self, value: Value) -> Value:
        """Give back the value, as a key or as a result."""
        self.mutex.check("function")
        return value

    def other(self, value: Value) -> Value:
        self.mutex.check("function")
        return Value(self.mutex, value.number)

    async def aother(self, value: Value) -> Value:
        return self.other(value)

    def failing(self, value: Value) -> Value:
        self.mutex.check("function")
        if value.number % 4 == 0:
            raise ValueError
        return value

    def on_error(self, _value: Value, _error: Exception) -> None:
        self.mutex.check("on_error")

    def parts(self, _value: Value) -> Iterator[Value]:
        return self.values(3)

    def all(self, values: Sequence[Value]) -> Sequence[Value]:
        return [self.other(value) for value in values]


OPERATORS: list[Callable[[Host, Flow[Any]], Flow[Any]]] = [
    lambda host, flow: flow.map(host.other, lanes=2),
    lambda host, flow: flow.amap(host.aother, lanes=2),
    lambda host, flow: flow.map(host.failing, on_error=host.on_error),
    lambda host, flow: flow.filter(host.same, lanes=2),
    lambda host, flow: flow.filter(host.same, lanes=3, keep_order=True),
    lambda host, flow: flow.map(host.other, lanes=3, keep_order=host.same),
    lambda host, flow: flow.tap(host.same),
    lambda host, flow: flow.flat_map(host.parts, lanes=2),
    lambda _host, flow: flow.batch(3).unbatch(),
    lambda host, flow: flow.map_batch(host.all, size=3, lanes=2),
    lambda host, flow: flow.fan_out(host.parts, lambda parts: parts.map(host.other, lanes=2)).map(
        lambda found: found[0]
    ),
    lambda _host, flow: merged(flow.duplicate(2)),
    lambda host, flow: flow.zip(flow.graph.source(host.values())).map(lambda pair: pair[1]),
    lambda _host, flow: flow.buffer(3),
]


def merged(flows: Sequence[Flow[Any]]) -> Flow[Any]:
    return flows[0].merge(*flows[1:])


@pytest.mark.parametrize("limit", [3, 1000])
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("seed", range(3))
def test_host_code_runs_in_calls_only(operator: Any, limit: int, seed: int) -> None:
    """Code of the host that waits for another thread would stop the run, or deadlock with it."""
    mutex = Mutex()
    host = Host(mutex)
    flow = operator(host, mutex.graph.source(host.values()))
    flow.limit(limit).sink(host.same)
    chance = random.Random(seed)
    run = Sequential(mutex.graph).run(lambda calls: chance.randrange(len(calls)))
    assert run.is_finished
    for node in mutex.graph.nodes:
        node.processor.clear()
    assert mutex.violations == []
    assert mutex.checks > 3
