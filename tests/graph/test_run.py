"""`run_graph`: values arrive, errors leave and say where they were raised, hooks are called, and
nothing stays behind.

Source of the tests of hooks: Databend's ``pipeline_executor.rs`` and its finished chain.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from rowlock.errors import (
    GraphDeadlockError,
    GraphError,
    GraphTimeLimit,
    HostCodeError,
    InternalError,
)
from rowlock.graph import Flow, Graph, StandingGraph, run_graph, stream_graph
from rowlock.graph.processor import NodeStatus, Port
from rowlock.graph.statistics import statistics_of
from rowlock.testing import virtual_time

from .nodes import Apply, Collect, Copy, Feed, Pair, Spread
from .runs import applied, got, line_of

PLACES = ("loop", "thread", "task")


@pytest.mark.parametrize("place", PLACES)
async def test_values_arrive_in_order(place: str) -> None:
    """A line of operators with one lane each would lose, repeat or reorder values."""
    graph = line_of(*[applied(lambda x: x + 1, place) for _ in range(3)], values=range(100))
    statistics = await run_graph(graph)
    assert got(graph) == list(range(3, 103))
    assert [one.calls for one in statistics.operators] == [101, 100, 100, 100, 0]


@virtual_time
async def test_simulated_time_needs_no_threads() -> None:
    """A simulation with a graph in it would depend on the operating system's threads."""
    graph = line_of(applied(lambda x: x, "thread"), values=range(10), place="thread")
    await run_graph(graph)
    assert got(graph) == list(range(10))


@pytest.mark.parametrize("place", ["thread", "task"])
async def test_lanes_work_at_the_same_time(place: str) -> None:
    """More lanes would not make a graph faster."""
    inside: set[int] = set()
    together, loop = asyncio.Event(), asyncio.get_running_loop()

    async def wait(value: int) -> int:
        inside.add(value)
        if len(inside) == 4:
            loop.call_soon_threadsafe(together.set)
        await together.wait()
        return value

    def block(value: int) -> int:
        return asyncio.run_coroutine_threadsafe(wait(value), loop).result()

    graph = Graph()
    graph.add_pipe([Feed(range(4))])
    graph.add_pipe([Spread(1, 4)])
    lanes = [
        Apply(wait, is_async=True) if place == "task" else Apply(block, place="thread")
        for _ in range(4)
    ]
    graph.add_pipe(lanes)
    graph.add_pipe([sink := Collect(inputs=4)])
    await run_graph(graph)
    assert sorted(sink.got) == [0, 1, 2, 3]


@pytest.mark.parametrize("place", PLACES)
async def test_first_error_is_raised_as_it_is(place: str) -> None:
    """A caller could not catch its own errors, or would not learn which value was wrong."""
    error = LookupError("no such page")

    def fail(value: int) -> int:
        if value == 3:
            raise error
        return value

    graph = line_of(applied(fail, place, name="parse"), values=range(10))
    with pytest.raises(LookupError) as caught:
        await run_graph(graph)
    assert caught.value is error
    assert error.__notes__ == ["in parse, lane 0"]
    assert len(got(graph)) <= 3


class BaseGroup(BaseExceptionGroup[BaseException]):
    """A group that is no ``Exception``."""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "kind",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        StopIteration(1),
        StopAsyncIteration(),
        asyncio.CancelledError(),
        BaseGroup("several", [SystemExit()]),
    ],
    ids=lambda kind: type(kind).__name__,
)
async def test_errors_that_end_more_than_a_call(kind: BaseException, place: str) -> None:
    """A thread or the event loop would die, a source would seem to be empty, or the caller
    cancelled.
    """

    def fail(_value: int) -> None:
        raise kind

    graph = line_of(applied(fail, place), values=[1])
    with pytest.raises((HostCodeError, RuntimeError)) as caught:
        await run_graph(graph)
    assert caught.value.__cause__ is kind


async def test_error_of_a_source_is_no_end() -> None:
    """A file that cannot be read would look like the end of the values."""

    def values() -> Iterator[int]:
        yield 1
        raise OSError(5, "broken")

    with pytest.raises(OSError, match="broken"):
        await run_graph(line_of(values=values(), place="thread"))


async def test_error_of_closing_is_raised() -> None:
    """A file that could not be closed would be lost without a word."""

    class Bad:
        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            raise StopIteration

        def close(self) -> None:
            raise OSError(5, "broken")

    with pytest.raises(OSError, match="broken"):
        await run_graph(line_of(values=Bad()))


class Hoard(Apply):
    """Keeps values for a batch that never gets full."""

    def __init__(self, *, name: str) -> None:
        super().__init__(str, name=name)
        self.kept: list[object] = []

    def details(self) -> str:
        return "needs 100"

    def answer(self, changed: Sequence[Port]) -> NodeStatus:
        if self.inputs[0].has_data:
            self.kept.append(self.inputs[0].pull())
        self.inputs[0].need()
        return NodeStatus.NEED_DATA


async def test_deadlock_is_found_at_once() -> None:
    """A diamond that needs more buffer would hang for ever, in production, without a word."""
    graph = Graph("diamond")
    graph.add_pipe([Feed(range(10))])
    graph.add([copy := Copy(2, name="duplicate")])
    graph.connect(graph.nodes[0].processor.outputs[0], copy.inputs[0])
    batch = Hoard(name="batch")
    graph.add([batch])
    graph.add([pair := Pair(name="zip")])
    graph.add([sink := Collect()])
    for output, input_ in [
        (copy.outputs[0], batch.inputs[0]),
        (batch.outputs[0], pair.inputs[0]),
        (copy.outputs[1], pair.inputs[1]),
        (pair.outputs[0], sink.inputs[0]),
    ]:
        graph.connect(output, input_)
    with pytest.raises(GraphDeadlockError) as caught:
        await run_graph(graph)
    assert sorted(caught.value.cycle) == ["batch", "duplicate", "zip"]
    assert "(needs 100)" in str(caught.value)
    assert "1 duplicate: NEED_CONSUME -> 2 [NEED] -> 3 [HAS NEED]" in caught.value.text


async def test_second_run_is_refused() -> None:
    """The hooks of the first run would be called again."""
    graph = line_of(values=[1])
    ends: list[object] = []
    graph.on_end(ends.append)
    await run_graph(graph)
    with pytest.raises(GraphError, match="has run"):
        await run_graph(graph)
    assert ends == [None]


variable: ContextVar[str] = ContextVar("variable", default="none")


@pytest.mark.parametrize("place", PLACES)
async def test_calls_have_the_context_of_the_runner(place: str) -> None:
    """A call would not know the request or the trace it belongs to, or change it for its caller."""
    variable.set("caller")
    seen: list[str] = []

    def look(value: int) -> int:
        seen.append(variable.get())
        variable.set("call")
        return value

    await run_graph(line_of(applied(look, place), values=[1]))
    assert (seen, variable.get()) == (["caller"], "caller")


@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_calls_do_not_share_their_context(place: str) -> None:
    """A call would see what the call for another value has set."""
    seen: list[str] = []

    def look(value: int) -> int:
        seen.append(variable.get())
        variable.set("call")
        return value

    await run_graph(line_of(applied(look, place), values=[1, 2]))
    assert seen == ["none", "none"]


class Value:
    """A value that can be watched."""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("end", ["all", "error", "early"])
async def test_no_value_outlives_the_run(place: str, end: str) -> None:
    """Large values would stay in memory for as long as the graph does."""
    seen: list[weakref.ref[Value]] = []

    def made() -> Iterator[Value]:
        for _ in range(8):
            value = Value()
            seen.append(weakref.ref(value))
            yield value
            del value

    def fail(value: Value) -> Value:
        try:
            if end == "error" and len(seen) > 4:
                raise LookupError
            return value
        finally:
            del value

    graph = Graph()
    graph.add_pipe([Feed(made())])
    graph.add_pipe([applied(fail, place)])
    graph.add_pipe([Apply(lambda _value: None)])
    graph.add_pipe([Collect(most=2 if end == "early" else None)])
    gc.disable()
    try:
        error = None
        try:
            await run_graph(graph)
        except LookupError as raised:
            error = raised
        assert (error is not None) == (end == "error")
        assert [ref for ref in seen if ref() is not None] == []
    finally:
        gc.enable()


class Never(Collect):
    """A sink that asks for a value and does not read it."""

    def is_open(self) -> bool:
        return True

    def answer(self, changed: Sequence[Port]) -> NodeStatus:
        self.inputs[0].need()
        return NodeStatus.NEED_DATA


@virtual_time
async def test_no_value_stays_in_an_edge() -> None:
    """A graph that was ended would keep a value for each of its edges."""
    values = [Value()]
    seen = weakref.ref(values[0])
    graph = Graph()
    graph.add_pipe([Feed(iter(values.pop, None))])
    graph.add_pipe([Never()])
    with pytest.raises(GraphTimeLimit):
        await run_graph(graph, time_limit=1)
    assert seen() is None


@pytest.mark.parametrize("place", PLACES)
async def test_counts_and_shares_add_up(place: str) -> None:
    """Statistics would name the wrong bottleneck."""
    graph = line_of(applied(lambda x: x, place), applied(lambda x: x, "loop"), values=range(50))
    statistics = await run_graph(graph)
    for one in statistics.operators:
        assert one.held == 0
        assert one.busy + one.waiting + one.starved + one.blocked == pytest.approx(1)
    assert [one.came for one in statistics.operators] == [0, 50, 50, 50]
    assert statistics == statistics_of(graph)
    assert "operator" in statistics.table()


class Row:
    """A value whose text is not for logs."""

    def __repr__(self) -> str:
        return "a secret"


class Unshown:
    """A value whose text cannot be had."""

    def __repr__(self) -> str:
        raise RuntimeError


def fail(_value: Any) -> Any:
    raise LookupError


async def fail_later(_value: Any) -> Any:
    raise LookupError


async def fail_each(values: Sequence[Any]) -> list[Any]:
    return [LookupError() for _ in values]


FAILING: dict[str, Callable[[Flow[Any]], Flow[Any]]] = {
    "map": lambda flow: flow.map(fail, name="it"),
    "amap": lambda flow: flow.amap(fail_later, name="it"),
    "order": lambda flow: flow.map(fail, lanes=2, keep_order=True, name="it"),
    "key": lambda flow: flow.map(str, lanes=2, keep_order=fail, name="it"),
    "batch": lambda flow: flow.map_batch(fail, size=1, within=1, name="it"),
    "abatch": lambda flow: flow.amap_batch(fail_later, size=1, within=1, name="it"),
    "batch of errors": lambda flow: flow.amap_batch(fail_each, size=1, within=1, name="it"),
    "scatter": lambda flow: flow.fan_out(fail, lambda parts: parts, name="it"),
    "parts": lambda flow: flow.fan_out(
        lambda value: [value], lambda parts: parts.map(fail, name="it")
    ),
}


async def run(build: Any, shows: dict[str, bool]) -> None:
    await run_graph(build(Graph().source([Row()])).sink(id), **shows)


async def stream(build: Any, shows: dict[str, bool]) -> None:
    async with stream_graph(build(Graph().source([Row()])), **shows) as values:
        async for _ in values:
            pass


async def submit(build: Any, shows: dict[str, bool]) -> None:
    async with StandingGraph(build, **shows) as graph:
        await graph.submit(Row())


@pytest.mark.parametrize("way", [run, stream, submit])
@pytest.mark.parametrize("build", FAILING.values(), ids=FAILING)
async def test_values_are_shown_where_they_are_asked_for(build: Any, way: Any) -> None:
    """Contents of rows would stand in each log; or a host that wants them there not get them."""
    with pytest.raises(LookupError) as caught:
        await way(build, {})
    (note,) = caught.value.__notes__
    assert ", lane " in note
    assert "a secret" not in note
    with pytest.raises(LookupError) as caught:
        await way(build, {"shows_values": True})
    (note,) = caught.value.__notes__
    assert re.search(r", lane [01], with \[?a secret\]?$", note)


async def test_values_of_later_errors(caplog: pytest.LogCaptureFixture) -> None:
    """Contents of rows would stand in the log of a run whose caller saw another error."""
    graph = Graph("two")
    graph.source([Row()]).map(fail, on="loop").sink(id)
    graph.source([Row()]).map(fail, on="loop").sink(id)
    with caplog.at_level(logging.WARNING), pytest.raises(LookupError):
        await run_graph(graph)
    assert "a secret" not in caplog.text


@pytest.mark.parametrize(
    ("value", "text"),
    [("x" * 1000, "'" + "x" * 198 + "…"), (Unshown(), "a Unshown"), (None, "None")],
)
async def test_note_names_the_value(value: object, text: str) -> None:
    """An error would be hidden by its own note, or drown in a document."""
    graph = line_of(applied(fail, "thread", name="parse"), values=[value])
    with pytest.raises(LookupError) as caught:
        await run_graph(graph, shows_values=True)
    assert caught.value.__notes__ == [f"in parse, lane 0, with {text}"]


async def test_notes_on_one_error_are_bounded() -> None:
    """An error that is one object for all values would grow with each of them."""
    error = LookupError()

    def refuse(_value: Any) -> None:
        raise error

    def build(flow: Flow[Any]) -> Flow[Any]:
        return flow.map(refuse, on="loop")

    for shows_values in (False, True):
        async with StandingGraph(build, shows_values=shows_values) as graph:
            for number in range(100):
                with pytest.raises(LookupError):
                    await graph.submit(number)
        assert len(error.__notes__) == (16 if shows_values else 1)


async def test_answer_that_is_no_status_is_not_shown() -> None:
    """Code of the host would run under the mutex, or its value stand in the log."""

    class Wrong(Apply):
        def event(self, changed: Any) -> Any:
            return Unshown()

    with pytest.raises(InternalError, match=r"event\(\) of it returned a Unshown"):
        await run_graph(line_of(Wrong(id, name="it"), values=[1]))


async def test_always_call_on_finished_after_failing_start() -> None:
    """What the first hooks of a start acquired would not be released."""
    ends: list[BaseException | None] = []
    graph = line_of(values=[1])

    def fail() -> None:
        raise LookupError("test failure")

    graph.on_start(fail)
    graph.on_end(ends.append)
    with pytest.raises(LookupError, match="test failure"):
        await run_graph(graph)
    assert [type(error) for error in ends] == [LookupError]
    assert got(graph) == []


async def test_cancellation_that_escapes_from_a_start_is_an_error_of_the_host() -> None:
    """A stray cancellation out of `on_start` is a `HostCodeError`: the caller was not cancelled."""

    async def stray() -> None:
        raise asyncio.CancelledError

    graph = line_of(values=[1])
    graph.on_start(stray)
    with pytest.raises(HostCodeError, match="a CancelledError escaped"):
        await run_graph(graph)


async def test_end_of_an_empty_graph() -> None:
    """A graph with a mistake would skip its hooks."""
    ends: list[BaseException | None] = []
    graph = Graph()
    graph.on_end(ends.append)
    with pytest.raises(GraphError, match="no nodes"):
        await run_graph(graph)
    assert len(ends) == 1


async def test_finished_chain() -> None:
    """Hooks that build on each other would run in another order."""
    order: list[str] = []
    graph = line_of(values=[1])

    async def later(error: BaseException | None) -> None:
        assert error is None
        await asyncio.sleep(0)
        order.append("second")

    async def before() -> None:
        await asyncio.sleep(0)
        order.append("start")

    graph.on_end(lambda _error: order.append("always"), always=True)
    graph.on_end(lambda _error: order.append("first"))
    graph.on_end(later)
    graph.on_start(before)
    await run_graph(graph)
    assert order == ["start", "first", "second", "always"]


async def test_failing_hook_skips_the_rest_but_always() -> None:
    """A commit would follow a flush that failed, or a lock would be kept."""
    order: list[str] = []
    graph = line_of(values=[1])

    def fail(_error: BaseException | None) -> None:
        order.append("fails")
        raise LookupError

    graph.on_end(fail)
    graph.on_end(lambda _error: order.append("skipped"))
    graph.on_end(lambda _error: order.append("always"), always=True)
    with pytest.raises(LookupError):
        await run_graph(graph)
    assert order == ["fails", "always"]


async def test_error_of_the_run_comes_before_that_of_a_hook(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The cause would be hidden by its consequence."""

    def fail(error: BaseException | None) -> None:
        raise ValueError("hook") from error

    graph = line_of(values=iter(lambda: 1 // 0, None))
    graph.on_end(fail)
    with caplog.at_level(logging.WARNING), pytest.raises(ZeroDivisionError):
        await run_graph(graph)
    assert "A hook of the end of a graph failed" in caplog.text
