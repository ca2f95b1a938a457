"""Random flows of all stock operators, compared with a sequential interpreter.

Everything is built by operators, as hosts do; places, lanes, copies, joins and zips are drawn from
a seed. One that fails is named, and can be run again by itself: ``ROWLOCK_GRAPHS=171-171``. The
same variable says how many seeds there are. A stream whose order is kept has to come out in it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from random import Random
from typing import Any

import pytest

from rowlock.graph import Flow, Graph, run_graph
from rowlock.graph.statistics import statistics_of
from rowlock.graph.threads import GraphRuntime

from .runs import asked_seeds

SEEDS = asked_seeds()
BATCH = 50
"""How many flows one test runs: they are short, and share a runtime."""


class Wrong(Exception):
    """Raised by an operator of a random flow."""


@dataclass
class Stream:
    """A flow, and what a sequential interpreter says will come out of it.

    Attributes:
        is_ordered: it comes in this order.
    """

    flow: Flow[Any]
    values: list[Any]
    is_ordered: bool = True


@dataclass
class Drawn:
    """A random graph of operators.

    Attributes:
        sinks: what each got, and what it was to get.
        fails: an operator raises for one of the values.
        used: names of the operators that were drawn.
    """

    random: Random
    graph: Graph = field(default_factory=Graph)
    sinks: list[tuple[list[Any], Stream]] = field(default_factory=list)
    fails: bool = False
    used: set[str] = field(default_factory=set)

    def draw(self) -> None:
        random = self.random
        streams = [self.source(number) for number in range(random.randint(1, 2))]
        for number in range(random.randint(1, 7)):
            stream = streams.pop(random.randrange(len(streams)))
            name = random.choice(OPERATORS)
            streams += getattr(self, name)(stream, number, streams)
            self.used.add(name)
        for stream in streams:
            got: list[Any] = []
            stream.flow.sink(got.append, on=random.choice(("loop", "thread")))
            self.sinks.append((got, stream))

    def source(self, number: int) -> Stream:
        values = [(number, index) for index in range(self.random.randint(0, 20))]
        made: Any = values if self.random.random() < 0.5 else iter(values)
        return Stream(self.graph.source(made), list(values))

    def function(self, number: int) -> Callable[[Any], Any]:
        is_failing = self.random.random() < 0.02
        self.fails |= is_failing

        def apply(value: Any) -> Any:
            if is_failing and hash(value) % 5 == 0:
                raise Wrong
            return (number, value)

        return apply

    def order(self) -> tuple[int, Any]:
        """Draw lanes, and whether they keep the order: not at all, in total, by key."""
        lanes = self.random.choice((1, 1, 2, 4))
        return lanes, self.random.choice((False, True, hash))

    def map(self, stream: Stream, number: int, _others: list[Stream]) -> list[Stream]:
        lanes, keep_order = self.order()
        call, on = self.function(number), self.random.choice(("loop", "thread"))
        flow = stream.flow.map(call, lanes=lanes, on=on, keep_order=keep_order)
        values = [(number, value) for value in stream.values]
        return [Stream(flow, values, stream.is_ordered and (lanes == 1 or keep_order is True))]

    def amap(self, stream: Stream, number: int, _others: list[Stream]) -> list[Stream]:
        lanes, keep_order = self.order()
        call, turns = self.function(number), self.random.randint(0, 2)

        async def later(value: Any) -> Any:
            for _ in range(turns):
                await asyncio.sleep(0)
            return call(value)

        flow = stream.flow.amap(later, lanes=lanes, keep_order=keep_order)
        values = [(number, value) for value in stream.values]
        return [Stream(flow, values, stream.is_ordered and (lanes == 1 or keep_order is True))]

    def filter(self, stream: Stream, number: int, _others: list[Stream]) -> list[Stream]:
        lanes, keep_order = self.order()
        wanted = partial(_is_wanted, number + 2)
        flow = stream.flow.filter(wanted, lanes=lanes, keep_order=keep_order)
        is_ordered = stream.is_ordered and (lanes == 1 or keep_order is True)
        return [Stream(flow, list(filter(wanted, stream.values)), is_ordered)]

    def flat_map(self, stream: Stream, number: int, _others: list[Stream]) -> list[Stream]:
        flow = stream.flow.flat_map(partial(_parts, number % 4))
        return [Stream(flow, _flat(stream.values, number % 4), stream.is_ordered)]

    def batch(self, stream: Stream, _number: int, _others: list[Stream]) -> list[Stream]:
        within = self.random.choice((None, 0.0001))
        flow = stream.flow.batch(self.random.randint(1, 5), within=within).unbatch()
        return [Stream(flow, stream.values, stream.is_ordered)]

    def map_batch(self, stream: Stream, number: int, _others: list[Stream]) -> list[Stream]:
        call, size, lanes = self.function(number), self.random.randint(1, 5), self.order()[0]

        def together(values: Sequence[Any]) -> list[Any]:
            return [call(value) for value in values]

        async def later(values: Sequence[Any]) -> list[Any]:
            await asyncio.sleep(0)
            return together(values)

        flow = stream.flow
        if self.random.random() < 0.5:
            flow = flow.map_batch(together, size=size, lanes=lanes)
        else:
            flow = flow.amap_batch(later, size=size, lanes=lanes)
        values = [(number, value) for value in stream.values]
        return [Stream(flow, values, stream.is_ordered and lanes == 1)]

    def fan_out(self, stream: Stream, number: int, _others: list[Stream]) -> list[Stream]:
        parts, lanes = number % 4, self.order()[0]
        flow = stream.flow.fan_out(
            partial(_parts, parts),
            lambda inside: inside.map(_marked, lanes=lanes),
            groups=self.random.randint(1, 3),
        )
        # Parts of a value come in any order.
        values = [(value, sorted(map(_marked, _parts(parts, value)))) for value in stream.values]
        return [Stream(flow.map(_sorted_parts), [_sorted_parts(one) for one in values], False)]

    def buffer(self, stream: Stream, _number: int, _others: list[Stream]) -> list[Stream]:
        flow = stream.flow.buffer(self.random.randint(1, 5))
        return [Stream(flow, stream.values, stream.is_ordered)]

    def limit(self, stream: Stream, number: int, _others: list[Stream]) -> list[Stream]:
        if not stream.is_ordered:
            return self.buffer(stream, number, _others)
        most = self.random.randint(0, 10)
        return [Stream(stream.flow.limit(most), list(islice(stream.values, most)))]

    def merge(self, stream: Stream, number: int, others: list[Stream]) -> list[Stream]:
        if not others:
            return self.duplicate(stream, number, others)
        other = others.pop()
        flow = stream.flow.merge(other.flow)
        return [Stream(flow, stream.values + other.values, is_ordered=False)]

    def duplicate(self, stream: Stream, _number: int, _others: list[Stream]) -> list[Stream]:
        flows = stream.flow.duplicate(2)
        return [Stream(flow, list(stream.values), stream.is_ordered) for flow in flows]

    def zip(self, stream: Stream, number: int, _others: list[Stream]) -> list[Stream]:
        one, other = stream.flow.duplicate(2)
        left = one.map(partial(_numbered, number), lanes=2, keep_order=True)
        right = other.map(partial(_numbered, -number))
        values = [((number, value), (-number, value)) for value in stream.values]
        return [Stream(left.zip(right), values, stream.is_ordered)]


OPERATORS = [name for name in vars(Drawn) if name in vars(Flow) and name[0] != "_"]


def _numbered(number: int, value: Any) -> Any:
    return (number, value)


def _is_wanted(number: int, value: Any) -> bool:
    return len(repr(value)) % number != 0


def _marked(value: Any) -> Any:
    return ("part", value)


def _sorted_parts(pair: tuple[Any, list[Any]]) -> Any:
    return (pair[0], tuple(sorted(pair[1], key=repr)))


def _parts(number: int, value: Any) -> Iterator[Any]:
    for index in range(number):
        yield (index, value)


def _flat(values: list[Any], number: int) -> list[Any]:
    return [part for value in values for part in _parts(number, value)]


def drawn(seed: int) -> Drawn:
    found = Drawn(Random(seed))
    found.draw()
    return found


async def run_one(seed: int, runtime: GraphRuntime) -> None:
    found = drawn(seed)
    random = Random(-seed)
    threads = random.choice((None, 1, 2))
    task = asyncio.create_task(run_graph(found.graph, runtime=runtime, threads=threads))
    is_cancelled = random.random() < 0.1
    if is_cancelled:
        for _ in range(random.randint(0, 60)):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait([task])
    error = None if task.cancelled() else task.exception()
    is_whole = not task.cancelled() and error is None
    assert error is None or (isinstance(error, Wrong) and found.fails), (seed, error)
    assert is_cancelled or not task.cancelled(), seed
    for got, stream in found.sinks:
        surplus = Counter(got) - Counter(stream.values)
        missing = Counter(stream.values) - Counter(got)
        assert not surplus, (seed, surplus)
        assert not (is_whole and missing), (seed, missing)
        if stream.is_ordered:
            assert got == stream.values[: len(got)], seed
    for one in statistics_of(found.graph).operators:
        assert not (is_whole and one.held), (seed, one)


@pytest.mark.parametrize("first", SEEDS[::BATCH])
async def test_operators_do_what_a_loop_would_do(first: int) -> None:
    """An operator would lose, repeat or reorder values beside others, or a flow would hang."""
    runtime = GraphRuntime(threads_max=3)
    for seed in range(first, min(first + BATCH, SEEDS.stop)):
        await run_one(seed, runtime)
    runtime.close()


def test_every_operator_is_drawn() -> None:
    """An operator would be left out without anybody noticing."""
    used = set().union(*(drawn(seed).used for seed in range(200)))
    assert used == set(OPERATORS)
    assert len(used) >= 11
