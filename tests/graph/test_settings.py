"""What a host says of a run or of a standing graph is checked before anything begins."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from rowlock.errors import GraphError
from rowlock.graph import Flow, Graph, GraphRuntime, StandingGraph, run_graph, stream_graph

from .runs import PLACES, got, line_of


async def awaited() -> bool:
    return True


def hidden(function: Any) -> Any:
    """Return a plain function around a coroutine function, as a host's lambda is."""

    def call(*values: Any) -> Any:
        return function(*values)

    return call


class Unshown:
    def __repr__(self) -> str:
        raise AssertionError


RUN: list[tuple[dict[str, Any], str]] = [
    ({"runtime": 3}, "runtime is 3; it must be a GraphRuntime"),
    ({"runtime": GraphRuntime}, "runtime is a value of type type; it must be a GraphRuntime"),
    ({"runtime": Unshown()}, "runtime is a value of type Unshown"),
    ({"threads": 0}, "threads is 0; it must be a whole number"),
    ({"threads": True}, "threads is True"),
    ({"threads": "2"}, "threads is '2'"),
    ({"threads": 1.0}, "threads is 1.0"),
    ({"time_limit": -1}, "time_limit is -1; it must be at least 0"),
    ({"time_limit": "5"}, "time_limit is '5'"),
    ({"time_limit": float("nan")}, "time_limit is nan"),
    ({"time_limit": float("inf")}, "time_limit is inf"),
    ({"time_limit": True}, "time_limit is True"),
    ({"time_limit": timedelta(seconds=-1)}, "time_limit is datetime.timedelta"),
    ({"grace": -0.1}, "grace is -0.1"),
    ({"grace": "soon"}, "grace is 'soon'"),
    ({"keep_going": True}, "keep_going is True, which cannot be called"),
    ({"keep_going": awaited}, "keep_going is a coroutine function, which is not awaited"),
    ({"shows_values": 1}, "shows_values is 1; it must be a bool"),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("settings", "text"), RUN)
async def test_settings_of_a_run(place: Any, settings: dict[str, Any], text: str) -> None:
    """A run would hang, or end with an error that names no argument; or its end be skipped."""
    ends: list[BaseException | None] = []
    graph = line_of(values=[1], place=place)
    graph.on_end(ends.append)
    with pytest.raises(GraphError, match=text) as caught:
        await run_graph(graph, **settings)
    assert (ends, got(graph)) == ([caught.value], [])


@pytest.mark.parametrize(("settings", "text"), RUN)
async def test_settings_of_a_stream(settings: dict[str, Any], text: str) -> None:
    """A mistake would be raised by the first value, and the flow be used up by it."""
    flow = Graph().source([1, 2])
    with pytest.raises(GraphError, match=text):
        stream_graph(flow, **settings)
    async with stream_graph(flow, time_limit=timedelta(minutes=1), threads=1) as values:
        assert [value async for value in values] == [1, 2]


async def test_what_is_streamed_is_a_flow() -> None:
    """A host that gave the graph would read an error about an attribute."""
    graph: Any = Graph()
    with pytest.raises(GraphError, match="flow is a value of type Graph; it must be a Flow"):
        stream_graph(graph)


def passed(flow: Flow[Any]) -> Flow[Any]:
    return flow


async def never(flow: Flow[Any]) -> Flow[Any]:
    return flow


STANDING: list[tuple[dict[str, Any], str]] = [
    ({"build": None}, "build is None, which cannot be called"),
    ({"build": never}, "build is a coroutine function"),
    ({"name": None}, "name is None; it must be a text"),
    ({"runtime": 3}, "runtime is 3; it must be a GraphRuntime"),
    ({"leaves": str}, "leaves is a value of type type; it must be a tuple of types"),
    ({"leaves": ("str",)}, "leaves is a value of type tuple; it must be a tuple of types"),
    ({"shows_values": None}, "shows_values is None; it must be a bool"),
    ({"reports": print}, "reports is .*; it must be a StandingReports"),
]


@pytest.mark.parametrize(("settings", "text"), STANDING)
def test_settings_of_a_standing_graph(settings: dict[str, Any], text: str) -> None:
    """The first value would learn of the mistake, and wait for ever."""
    with pytest.raises(GraphError, match=text):
        StandingGraph(**{"build": passed, **settings})


@pytest.mark.parametrize(("keep_going", "text"), [(3, "keep_going is 3"), (awaited, "coroutine")])
async def test_settings_of_a_submit(keep_going: Any, text: str) -> None:
    """Calls would go on for a caller that has said no, or its value be inside for ever."""
    async with StandingGraph(passed) as graph:
        with pytest.raises(GraphError, match=text):
            await graph.submit(1, keep_going=keep_going)
        assert await graph.submit(1) == 1


@pytest.mark.parametrize("threads_max", [0, 1001, "4", None, True])
def test_settings_of_a_runtime(threads_max: Any) -> None:
    """A runtime without a thread would make no call."""
    with pytest.raises(GraphError, match="threads_max is"):
        GraphRuntime(threads_max=threads_max)


@pytest.mark.parametrize("on", PLACES)
async def test_keep_going_that_is_not_awaited(on: Any) -> None:
    """A coroutine is true: a run would go on for a row whose lease is lost."""
    asked: Any = hidden(awaited)
    graph = Graph()
    with pytest.raises(TypeError, match="awaited is a coroutine, which is not awaited here"):
        await run_graph(graph.source([1]).map(str, on=on).sink(id, on=on), keep_going=asked)
    async with StandingGraph[Any, Any](lambda flow: flow.map(str, on=on)) as standing:
        with pytest.raises(TypeError, match="awaited is a coroutine"):
            await standing.submit(1, keep_going=asked)


def parts(_value: Any) -> Iterator[int]:
    yield from (1, 2)


async def answered(value: Any) -> Any:
    return value


UNAWAITED: dict[str, Any] = {
    "split": lambda flow, plain: flow.split(plain)[0].merge(flow.graph.source([])),
    "partition": lambda flow, plain: flow.partition(1, plain)[0],
    "order": lambda flow, plain: flow.map(str, lanes=2, keep_order=plain),
    "merge": lambda flow, plain: flow.merge_ordered(flow.graph.source([1]), key=plain),
    "parts": lambda flow, plain: flow.fan_out(plain, lambda inside: inside),
    "flat": lambda flow, plain: flow.flat_map(plain),
    "aflat": lambda flow, plain: flow.aflat_map(plain),
    "batch": lambda flow, plain: flow.map_batch(plain, size=2),
    "filter": lambda flow, plain: flow.filter(plain),
    "error": lambda flow, plain: flow.map(len, on_error=lambda value, _error: plain(value)),
}


@pytest.mark.parametrize("build", UNAWAITED.values(), ids=UNAWAITED)
async def test_coroutine_that_nothing_awaits(build: Any) -> None:
    """A predicate would be true for each value, since its coroutine is."""
    graph = Graph()
    flow = build(graph.source([1]), hidden(answered))
    for output in graph.open_outputs():
        if output is not flow._end.outputs[0]:
            Flow(type(flow._end)(graph, [output])).sink(id)
    with pytest.raises(TypeError, match="answered is a coroutine, which is not awaited here"):
        await run_graph(flow.sink(id))


def test_coroutine_of_a_builder() -> None:
    """A host would read that its function returned no flow, and Python warn of a coroutine."""
    with pytest.raises(TypeError, match="never is a coroutine"):
        StandingGraph(hidden(never))
    with pytest.raises(TypeError, match="never is a coroutine"):
        Graph().source([1]).fan_out(parts, hidden(never))
