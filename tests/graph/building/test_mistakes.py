"""A mistake in a graph is an error in the line that makes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from rowlock.errors import GraphError
from rowlock.graph import Flow, Graph, run_graph
from rowlock.graph.processor import Processor


async def awaited(value: Any) -> Any:
    return value


async def yielded(value: Any) -> Any:
    yield value


class Called:
    """A callable object whose call is a coroutine."""

    async def __call__(self, value: Any) -> Any:
        return value


class Unshown:
    """What no error is to show: its text is the host's, and may be secret."""

    def __repr__(self) -> str:
        raise AssertionError


unshown = Unshown()


def used_twice(flow: Flow[Any]) -> None:
    flow.map(str)
    flow.map(str)


def foreign(flow: Flow[Any]) -> None:
    flow.merge(Graph("other").source([1]))


def of_the_outside(flow: Flow[Any]) -> None:
    """Return another flow from a fan-out than the one of its parts."""
    other = flow.graph.source([1])
    flow.fan_out(range, lambda _parts: other)


def joins_the_outside(flow: Flow[Any]) -> None:
    other = flow.graph.source([1])
    flow.fan_out(range, lambda parts: parts.merge(other))


def within_parts(operator: Callable[[Flow[Any]], Any]) -> Callable[[Flow[Any]], Any]:
    return lambda flow: flow.fan_out(range, operator)


MISTAKES: list[tuple[Callable[[Flow[Any]], Any], str]] = [
    (used_twice, "has a reader"),
    (foreign, "a flow of 'other' cannot join one of 'test'"),
    (of_the_outside, "returns the flow that it was given"),
    (joins_the_outside, "same fan_out"),
    (lambda flow: flow.fan_out(range, lambda _parts: None), "returns the flow"),
    (lambda flow: flow.map(str, lanes=0), "lanes is 0"),
    (lambda flow: flow.map(str, lanes=10_001), "lanes is 10001"),
    (lambda flow: flow.map(str, lanes=True), "lanes is True"),
    (lambda flow: flow.map(str, lanes=2.5), "lanes is 2.5"),
    (lambda flow: flow.map([]), "the number of functions is 0"),
    (lambda flow: flow.map([str, str], lanes=3), "2 functions for 3 lanes"),
    (lambda flow: flow.map(None), "None cannot be called"),
    (lambda flow: flow.map(awaited), "coroutine function"),
    (lambda flow: flow.map([str, awaited]), "coroutine function"),
    (lambda flow: flow.map(partial(partial(awaited))), "coroutine function"),
    (lambda flow: flow.map(Called()), "coroutine function"),
    (lambda flow: flow.flat_map(yielded), "coroutine function"),
    (lambda flow: flow.filter(awaited), "coroutine function"),
    (lambda flow: flow.tap(awaited), "coroutine function"),
    (lambda flow: flow.sink(awaited), "coroutine function"),
    (lambda flow: flow.map_batch(awaited, size=2), "coroutine function"),
    (lambda flow: flow.fan_out(awaited, lambda parts: parts), "coroutine function"),
    (lambda flow: flow.map(str, keep_order=awaited), "coroutine function"),
    (lambda flow: flow.map(str, ahead=3), "without keep_order"),
    (lambda flow: flow.map(str, keep_order=True, ahead=0), "ahead is 0"),
    (lambda flow: flow.map(str, keep_order=True, ahead=100_001), "ahead is 100001"),
    (lambda flow: flow.amap(awaited, timeout=0), "timeout is 0"),
    (lambda flow: flow.amap(awaited, timeout=timedelta(0)), "timeout is"),
    (lambda flow: flow.limit(-1), "count is -1"),
    (lambda flow: flow.buffer(0), "size is 0"),
    (lambda flow: flow.buffer(1_000_001), "size is 1000001"),
    (lambda flow: flow.batch(0), "size is 0"),
    (lambda flow: flow.batch(100_001), "size is 100001"),
    (lambda flow: flow.batch(2, within=0), "within is 0"),
    (lambda flow: flow.batch(2, within=3601), "within is 3601"),
    (lambda flow: flow.batch(2, within="1"), "within is '1'"),
    (lambda flow: flow.map_batch(list, size=0), "size is 0"),
    (lambda flow: flow.zip(flow.graph.source([1]), ahead=0), "ahead is 0"),
    (lambda flow: flow.duplicate(0), "count is 0"),
    (lambda flow: flow.fan_out(range, lambda parts: parts, groups=0), "groups is 0"),
    (lambda flow: flow.fan_out(range, lambda parts: parts, parts_max=0), "parts_max is 0"),
    (lambda flow: flow.flat_map(range, on="process"), "in the loop or in a thread"),
    (lambda flow: flow.graph.source([1], on="process"), "in the loop or in a thread"),
    (lambda flow: flow.graph.source(yielded(1), on="thread"), "in the loop, not"),
    (lambda flow: flow.graph.source([1], on="threads"), "on is 'threads'"),
    (lambda flow: flow.graph.source(yielded), "call it first"),
    (lambda flow: flow.graph.source(3), "not iterable"),
    (lambda flow: flow.map(str, on_error=3), "on_error is 3, which cannot be called"),
    (lambda flow: flow.amap(awaited, on_error=awaited), "on_error is a coroutine function"),
    (lambda flow: flow.flat_map(range, on_error=awaited), "on_error is a coroutine function"),
    (lambda flow: flow.fan_out(range, None), "through is None, which cannot be called"),
    (lambda flow: flow.map(str, name=3), "name is 3; it must be a text"),
    (lambda flow: flow.merge(3), "joined with flows, not with 3"),
    (lambda flow: flow.zip(None), "joined with flows, not with None"),
    (lambda flow: flow.graph.on_start(3), "a hook is called: 3 cannot be"),
    (lambda flow: flow.graph.on_end("x"), "a hook is called: 'x' cannot be"),
    (lambda flow: Graph(None), "name is None; it must be a text"),
    (lambda flow: flow.map(lambda one: one, on="process", name="own"), "own of .*lambda"),
    (lambda flow: flow.map_batch(partial(lambda one: one), size=2, on="process"), "lambda"),
    (lambda flow: flow.map(unshown), "a value of type Unshown cannot be called"),
    (lambda flow: flow.graph.source(unshown), "a value of type Unshown cannot be read"),
    (lambda flow: flow.map(str, lanes=unshown), "lanes is a value of type Unshown"),
    (lambda flow: flow.map(str, on=unshown), "on is a value of type Unshown"),
    (lambda flow: flow.batch(2, within=unshown), "within is a value of type Unshown"),
    (lambda flow: flow.map(partial(awaited, unshown)), "awaited is a coroutine function"),
    (lambda flow: flow.map(str, on="threads"), "one of 'loop', 'thread', 'process'"),
    (lambda flow: flow.map_batch(list, size=2, on="threads"), "on is 'threads'"),
    (lambda flow: flow.flat_map(range, on="threads"), "one of 'loop', 'thread'"),
    (lambda flow: flow.through(str), "processor is a value of type type; it must be a Processor"),
    (lambda flow: flow.through(Processor(inputs=2)), "Processor has 2 inputs and 0 outputs"),
    (within_parts(lambda parts: parts.through(Processor())), r"through\(\) cannot"),
    (within_parts(lambda parts: parts.limit(1)), r"limit\(\) cannot"),
    (within_parts(lambda parts: parts.batch(2)), r"batch\(\) cannot"),
    (within_parts(lambda parts: parts.map_batch(list, size=2)), "needs within="),
    (within_parts(lambda parts: parts.amap_batch(awaited, size=2)), "needs within="),
    (within_parts(within_parts(lambda parts: parts.map_batch(list, size=2))), "needs within="),
    (within_parts(lambda parts: parts.unbatch()), r"unbatch\(\) cannot"),
    (within_parts(lambda parts: parts.flat_map(range)), r"flat_map\(\) cannot"),
    (within_parts(lambda parts: parts.duplicate(2)[0]), r"duplicate\(\) cannot"),
    (within_parts(lambda parts: parts.zip(parts)), r"zip\(\) cannot"),
    (within_parts(lambda parts: parts.sink(str)), r"sink\(\) cannot"),
    (within_parts(lambda parts: parts.asink(awaited)), r"asink\(\) cannot"),
]


@pytest.mark.parametrize(("mistake", "message"), MISTAKES)
def test_mistake(mistake: Callable[[Flow[Any]], Any], message: str) -> None:
    """A host would learn of it when the graph runs, or never."""
    with pytest.raises(GraphError, match=message):
        mistake(Graph("test").source([1]))


def test_flow_is_no_graph() -> None:
    """A host that forgot the sink would read an error about an attribute."""
    flow: Any = Graph("test").source([1])
    with pytest.raises(GraphError, match="as sink"):
        asyncio.run(run_graph(flow))


OPEN: list[Callable[[Flow[Any]], Any]] = [
    lambda flow: flow.map(str),
    lambda flow: flow.map(str, lanes=3),
    lambda flow: flow.amap(awaited).amap(awaited, lanes=2),
    lambda flow: flow.map(str).batch(2),
    lambda flow: flow.map(str).duplicate(2)[0].sink(print),
    lambda flow: flow.map(str, lanes=2).duplicate(2)[1].sink(print),
]


@pytest.mark.parametrize("build", OPEN)
async def test_flow_without_a_reader_is_named(build: Callable[[Flow[Any]], Any]) -> None:
    """A host that forgot the sink of one branch would read an error about an attribute."""
    graph, ends = Graph("test"), list[Any]()
    graph.on_end(ends.append)
    build(graph.source([1]))
    with pytest.raises(GraphError, match=r"is not connected: end each flow with sink") as raised:
        await run_graph(graph)
    assert ends == [raised.value]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda flow: flow.amap(str), "type str was returned where a coroutine is awaited"),
        (lambda flow: flow.amap(yielded), "type async_generator was returned where a coroutine"),
        (lambda flow: flow.amap(str, timeout=1), "the operator whose name has no a"),
        (lambda flow: flow.amap_batch(list, size=2), "type list was returned where a coroutine"),
        (lambda flow: flow.map(lambda one: awaited(one)), "the operator whose name begins with a"),  # noqa: PLW0108
        (lambda flow: flow.flat_map(lambda one: yielded(one)), "cannot be read: return an"),  # noqa: PLW0108
        (lambda flow: flow.flat_map(int), "cannot be read: return an iterable"),
    ],
)
async def test_a_function_of_the_other_kind_is_told_in_our_words(
    build: Callable[[Flow[Any]], Flow[Any]], message: str
) -> None:
    """A host reads which operator to use, and nothing of what cannot be awaited."""
    graph = Graph("test")
    build(graph.source([1])).sink(list[Any]().append)
    with pytest.raises(TypeError, match=message):
        await run_graph(graph)
