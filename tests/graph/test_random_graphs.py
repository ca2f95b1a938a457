"""Random graphs, compared with a sequential interpreter: each value reaches each consumer once.

Places, lanes, copies, joins and zips are drawn from a seed. One that fails is named, and can be run
again by itself: ``ROWLOCK_GRAPHS=171-171``. The same variable says how many seeds there are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from rowlock.graph import Graph
from rowlock.graph.processor import OutputPort, Processor
from rowlock.graph.run import run_graph
from rowlock.graph.statistics import statistics_of
from rowlock.graph.threads import GraphRuntime

from .nodes import Apply, Collect, Copy, Feed, Pair, Spread
from .runs import applied, asked_seeds

SEEDS = asked_seeds()
BATCH = 50
"""How many graphs one test runs: they are short, and share a runtime."""


class Wrong(Exception):
    """Raised by an operator of a random graph."""


@dataclass
class Stream:
    """An open output, and what a sequential interpreter says will come out of it."""

    output: OutputPort[Any]
    values: list[Any]


@dataclass
class Drawn:
    """A random graph.

    Attributes:
        sinks: with the values that each is to get.
        fails: an operator raises for one of the values.
    """

    random: Random
    graph: Graph = field(default_factory=Graph)
    sinks: list[tuple[Collect, list[Any]]] = field(default_factory=list)
    fails: bool = False

    def draw(self) -> None:
        random = self.random
        streams = [self.source(number) for number in range(random.randint(1, 3))]
        for number in range(random.randint(0, 8)):
            stream = streams.pop(random.randrange(len(streams)))
            act = random.choice(("map", "map", "lanes", "lanes", "copy", "merge", "diamond"))
            if act == "merge" and streams:
                streams.append(self.merged(stream, streams.pop()))
            elif act == "copy":
                streams += self.copied(stream)
            elif act == "diamond":
                streams.append(self.diamond(stream, number))
            else:
                lanes = 1 if act == "map" else random.randint(2, 5)
                streams.append(self.mapped(stream, number, lanes))
        for stream in streams:
            sink = Collect()
            self.graph.add([sink])
            self.graph.connect(stream.output, sink.inputs[0])
            self.sinks.append((sink, stream.values))

    def source(self, number: int) -> Stream:
        values = [(number, index) for index in range(self.random.randint(0, 20))]
        feed = Feed(values, place=self.random.choice(("loop", "thread")))
        self.graph.add([feed])
        return Stream(feed.outputs[0], list(values))

    def function(self, number: int) -> Processor:
        place = self.random.choice(("loop", "thread", "thread", "task"))
        is_failing = self.random.random() < 0.02
        self.fails |= is_failing

        def apply(value: Any) -> Any:
            if is_failing and hash(value) % 5 == 0:
                raise Wrong
            return (number, value)

        return applied(apply, place)

    def mapped(self, stream: Stream, number: int, lanes: int) -> Stream:
        values = [(number, value) for value in stream.values]
        functions = [self.function(number) for _ in range(lanes)]
        outputs = [stream.output]
        if lanes > 1:
            outputs = self.through(Spread(1, lanes), outputs)
        outputs = self.through_all(functions, outputs)
        if lanes > 1:
            outputs = self.through(Spread(lanes, 1), outputs)
        return Stream(outputs[0], values)

    def copied(self, stream: Stream) -> list[Stream]:
        outputs = self.through(Copy(2), [stream.output])
        return [Stream(output, list(stream.values)) for output in outputs]

    def merged(self, one: Stream, other: Stream) -> Stream:
        outputs = self.through(Spread(2, 1), [one.output, other.output])
        return Stream(outputs[0], one.values + other.values)

    def diamond(self, stream: Stream, number: int) -> Stream:
        left, right = self.through(Copy(2), [stream.output])
        outputs = self.through_all([self.function(number), self.function(-number)], [left, right])
        values = [((number, value), (-number, value)) for value in stream.values]
        return Stream(self.through(Pair(), outputs)[0], values)

    def through(self, processor: Processor, outputs: list[OutputPort[Any]]) -> list[Any]:
        self.graph.add([processor])
        for output, input_ in zip(outputs, processor.inputs, strict=True):
            self.graph.connect(output, input_)
        return list(processor.outputs)

    def through_all(self, processors: list[Processor], outputs: list[Any]) -> list[Any]:
        return [
            made
            for processor, output in zip(processors, outputs, strict=True)
            for made in self.through(processor, [output])
        ]


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
        for _ in range(random.randint(0, 30)):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait([task])
    error = None if task.cancelled() else task.exception()
    is_whole = not task.cancelled() and error is None
    assert error is None or (isinstance(error, Wrong) and found.fails), (seed, error)
    assert is_cancelled or not task.cancelled(), seed
    for sink, expected in found.sinks:
        surplus = Counter(sink.got) - Counter(expected)
        missing = Counter(expected) - Counter(sink.got)
        assert not surplus, (seed, surplus)
        assert not (is_whole and missing), (seed, missing)
    for one in statistics_of(found.graph).operators:
        assert 0 <= one.held <= one.lanes, (seed, one)
        assert not (is_whole and one.held), (seed, one)
        shares = one.busy + one.waiting + one.starved + one.blocked
        assert not is_whole or shares == pytest.approx(1, abs=0.02), (seed, one)


@pytest.mark.parametrize("first", SEEDS[::BATCH])
async def test_each_value_reaches_each_consumer_once(first: int) -> None:
    """Values would be lost or repeated under concurrency, or a graph would hang."""
    runtime = GraphRuntime(threads_max=3)
    for seed in range(first, min(first + BATCH, SEEDS.stop)):
        await run_one(seed, runtime)
    assert runtime.threads <= 3
    runtime.close()


def test_seeds_differ() -> None:
    """A thousand graphs would be one."""
    shapes = {tuple(node.operator for node in drawn(seed).graph.nodes) for seed in range(100)}
    assert len(shapes) > 50
    assert any(isinstance(node.processor, Apply) for node in drawn(1).graph.nodes)
