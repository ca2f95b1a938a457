"""Errors, reports, keys and processors of hosts that do what they should not: no run hangs, and no
thread or loop ends with them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from rowlock.errors import GraphError, HostCodeError
from rowlock.graph import (
    Flow,
    Graph,
    GraphRuntime,
    NodeStatus,
    Port,
    Processor,
    StandingGraph,
    run_graph,
)
from rowlock.graph.operators import behind_one

# What hangs here hangs for good: a run waits for its calls even if it is cancelled.
pytestmark = pytest.mark.timeout(60, method="thread")


class Frozen(ValueError):
    """An error that lets no attribute be set, as a frozen data class does."""

    def __setattr__(self, name: str, value: object) -> None:
        raise RuntimeError


class Closed(ValueError):
    """An error that does not show its traceback."""

    @property
    def __traceback__(self) -> Any:
        raise RuntimeError


def failing(kind: type[Exception], place: str) -> Any:
    def fail(_value: Any) -> Any:
        raise kind

    async def fail_later(_value: Any) -> Any:
        raise kind

    return lambda flow: flow.amap(fail_later) if place == "task" else flow.map(fail, on=place)


@pytest.mark.parametrize("place", ["loop", "thread", "task"])
@pytest.mark.parametrize("kind", [Frozen, Closed])
async def test_errors_that_keep_their_traceback(kind: type[Exception], place: str) -> None:
    """A thread would end with the error of a call, and the run wait for it for ever."""
    build = failing(kind, place)
    with pytest.raises(kind):
        await run_graph(build(Graph().source([1])).sink(id))
    async with StandingGraph(build) as graph:
        for _ in range(2):
            with pytest.raises(kind):
                await graph.submit(1)


class Strange(Processor):
    """Passes values on, and raises where a test says."""

    def __init__(self, where: str, error: BaseException) -> None:
        super().__init__(inputs=1, outputs=1)
        self.where = where
        self.error = error

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        self._maybe("event")
        source, output = self.inputs[0], self.outputs[0]
        if source.has_data and output.can_push:
            output.push(source.pull())
        if source.is_finished and self.where in {"closing", "clear", "attach"}:
            return NodeStatus.FINISHED
        source.need()
        return NodeStatus.NEED_DATA

    def is_open(self) -> bool:
        self._maybe("is_open")
        return False

    def closing(self) -> None:
        self._maybe("closing")

    def clear(self) -> None:
        self._maybe("clear")

    def details(self) -> str:
        self._maybe("details")
        return ""

    def attach(self, waker: Any) -> None:
        super().attach(waker)
        if waker is None:
            self._maybe("attach")

    def _maybe(self, where: str) -> None:
        if where == self.where:
            raise self.error


KINDS = [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()]


@pytest.mark.parametrize("error", KINDS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["event", "is_open", "details", "closing"])
async def test_processors_that_raise_what_is_no_exception(where: str, error: Any) -> None:
    """The loop would end, or the caller of a run seem to be cancelled."""
    ends: list[Any] = []
    graph = Graph()
    end = behind_one(graph.source([1])._end, Strange(where, error), name="strange")
    Flow(end).sink(id)
    graph.on_end(ends.append)
    with pytest.raises(HostCodeError, match=type(error).__name__):
        await run_graph(graph)
    assert [type(one) for one in ends] == [HostCodeError]


@pytest.mark.parametrize("where", ["clear", "attach"])
async def test_processors_that_cannot_forget(where: str) -> None:
    """The hooks of the end would not be called, and values of other nodes be kept."""
    ends: list[Any] = []
    graph = Graph()
    end = behind_one(graph.source([1])._end, Strange(where, LookupError()), name="strange")
    Flow(end).sink(id)
    graph.on_end(ends.append)
    await run_graph(graph)
    assert ends == [None]


class Key:
    def __init__(self, times: int) -> None:
        self.times = times

    def __hash__(self) -> int:
        self.times -= 1
        if self.times < 0:
            raise LookupError
        return 1


async def test_keys_that_cannot_be_hashed_any_more() -> None:
    """One key would end the work on all values, when its last value has left."""

    async def passed(value: int) -> int:
        return value

    def build(flow: Flow[int]) -> Flow[int]:
        return flow.amap(passed, lanes=2, keep_order=lambda value: Key(2 if value == 1 else 9))

    async with StandingGraph(build) as graph:
        nodes = graph.graph
        assert [await graph.submit(number) for number in range(4)] == [0, 1, 2, 3]
        assert graph.graph is nodes


class Nameless:
    """A value that does not tell its class."""

    @property
    def __class__(self) -> Any:
        raise LookupError


class Leaving(StandingGraph[Any, Any]):
    """A graph that a number leaves at once."""

    _leaves = (int,)


async def nameless(values: Sequence[Any]) -> list[Any]:
    return [Nameless() if value == "odd" else value for value in values]


@pytest.mark.parametrize(
    "build",
    [
        lambda flow: flow.amap_batch(nameless, size=2, within=60),
        lambda flow: flow.map(lambda one: Nameless() if one == "odd" else one, on="loop"),
    ],
)
async def test_results_that_do_not_tell_their_class(build: Any) -> None:
    """Callers that share a call would wait for ever for its end."""
    async with Leaving(build) as graph:
        found = await asyncio.gather(
            graph.submit("odd"), graph.submit("even"), return_exceptions=True
        )
    assert type(found[0]) is LookupError
    assert found[1] == "even"


async def test_closed_in_another_loop() -> None:
    """A shutdown in a second thread would wait for ever."""
    has_begun, go_on = threading.Event(), threading.Event()
    graph = StandingGraph[Any, Any](lambda flow: flow.map(str, on="loop"), name="pages")

    async def elsewhere() -> None:
        await graph.submit(1)
        has_begun.set()
        await asyncio.to_thread(go_on.wait)
        await graph.aclose()

    other = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
    await asyncio.to_thread(has_begun.wait)
    try:
        with pytest.raises(GraphError, match="'pages' runs in another event loop"):
            await graph.aclose()
    finally:
        go_on.set()
    await other


async def test_runs_of_several_loops_share_threads() -> None:
    """Calls of one loop would end up in another."""
    runtime = GraphRuntime(threads_max=3)

    async def passed(value: int) -> int:
        await asyncio.sleep(0)
        return value

    async def one() -> int:
        got: list[str] = []
        flow = Graph().source(range(50)).map(str, lanes=3).amap(passed, lanes=3)  # type: ignore[arg-type]
        await run_graph(flow.sink(got.append), runtime=runtime)
        return len(got)

    runs = [asyncio.to_thread(asyncio.run, one()) for _ in range(8)]
    assert await asyncio.gather(*runs) == [50] * 8
