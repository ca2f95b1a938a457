"""`StandingGraph.submit`: each caller gets its own result or its own error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from rowlock.errors import GraphClosed, GraphError, GraphInterrupted, HostCodeError
from rowlock.graph import Flow, StandingGraph, check_interrupt
from rowlock.testing import virtual_time

from .scenes import Gate, doubled, evens_fail, outcomes, settled

PLACES = ["loop", "thread"]
name_of_caller: ContextVar[str] = ContextVar("name_of_caller", default="none")


async def adoubled(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


async def all_doubled(values: Sequence[int]) -> list[int]:
    await asyncio.sleep(0)
    return [2 * value for value in values]


def shared(flow: Flow[int]) -> Flow[int]:
    return flow.amap_batch(all_doubled, size=8, within=0.01)


BUILDS: dict[str, Callable[[Flow[int]], Flow[int]]] = {
    "nothing": lambda flow: flow.map(doubled, on="loop"),
    "thread": lambda flow: flow.map(doubled, lanes=3),
    "coroutine": lambda flow: flow.amap(adoubled, lanes=3),
    "in order": lambda flow: flow.map(doubled, lanes=3, keep_order=True),
    "by key": lambda flow: flow.map(doubled, lanes=3, keep_order=lambda value: value % 3),
    "shared": shared,
    "parts": lambda flow: flow.fan_out(range, shared, groups=3).map(lambda found: 2 * found[0]),
    "buffer": lambda flow: flow.buffer(3).tap(doubled, on="loop").map(doubled),
}


class Leaving(StandingGraph[Any, Any]):
    """A graph that a text leaves at once."""

    _leaves = (str,)


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
async def test_each_caller_gets_its_own_result(build: Any) -> None:
    """A caller would get the result of another."""
    async with StandingGraph(build) as graph:
        for _ in range(3):
            found = await asyncio.gather(*(graph.submit(value) for value in range(20)))
            assert found == [2 * value for value in range(20)]


@pytest.mark.parametrize("on", PLACES)
async def test_thousands_of_submits_of_which_some_fail(on: Any) -> None:
    """An error would reach another caller, or the graph stop after some of them."""
    failed = 0
    async with StandingGraph(lambda flow: flow.map(evens_fail, lanes=4, on=on)) as graph:

        async def submit_all(first: int) -> None:
            nonlocal failed
            for value in range(first, 2000, 20):
                try:
                    assert await graph.submit(value) == value
                except ValueError as error:
                    assert error.args == (value,)  # noqa: PT017
                    failed += 1

        await asyncio.gather(*map(submit_all, range(20)))
        assert failed == 200
        (operator,) = [one for one in graph.statistics().operators if one.name == "evens_fail"]
        assert (operator.came, operator.went, operator.failed) == (2000, 1800, 200)


@pytest.mark.parametrize("on", PLACES)
async def test_an_error_is_raised_as_it_is(on: Any) -> None:
    """A caller could not see where its value failed, or would get the error in a group."""
    raised = KeyError("gone")

    def fail(value: int) -> int:
        raise raised

    async with StandingGraph(lambda flow: flow.map(fail, on=on)) as graph:
        with pytest.raises(KeyError) as caught:
            await graph.submit(7)
    assert caught.value is raised
    assert raised.__notes__ == ["in fail, lane 0"]


async def test_a_shared_call_answers_each_value() -> None:
    """One value that fails would fail its neighbours, or none would fail."""

    async def embed(values: Sequence[int]) -> list[int | Exception]:
        return [ValueError(value) if value == 3 else value for value in values]

    async with StandingGraph(lambda flow: flow.amap_batch(embed, size=5, within=60)) as graph:
        found = await asyncio.gather(*map(graph.submit, range(5)), return_exceptions=True)
    assert [repr(one) for one in found] == ["0", "1", "2", "ValueError(3)", "4"]


@pytest.mark.parametrize("returned", [[1], [1] * 6, ValueError("all")])
async def test_a_shared_call_that_fails_fails_its_batch(returned: Any) -> None:
    """Callers would get the result of another value, or wait for ever."""
    calls = 0

    async def embed(values: Sequence[int]) -> list[int]:
        nonlocal calls
        calls += 1
        if calls > 1:
            return list(values)
        if isinstance(returned, Exception):
            raise returned
        return list(returned)

    async with StandingGraph(lambda flow: flow.amap_batch(embed, size=5, within=60)) as graph:
        found = await outcomes([asyncio.create_task(graph.submit(one)) for one in range(5)])
        assert [type(one) for one in found] == [ValueError] * 5
        assert len({id(one) for one in found}) == 1
        assert len(found[0].__notes__) == 1
        assert await asyncio.gather(*map(graph.submit, range(5))) == [0, 1, 2, 3, 4]


async def test_what_leaves_is_the_result_at_once() -> None:
    """An outcome would go on to the next operator, or its parts be worked on."""
    worked: list[int] = []

    def page(part: int) -> int | str:
        worked.append(part)
        return "parked" if part == 7 else part

    def build(flow: Flow[int]) -> Flow[Any]:
        return flow.fan_out(range, lambda parts: parts.map(page, on="loop"))

    async with Leaving(build) as graph:
        assert await graph.submit(50) == "parked"
        assert len(worked) < 15
        assert await graph.submit(3) == (3, [0, 1, 2])
        assert await graph.submit(50) == "parked"


async def test_the_first_end_of_a_value_counts() -> None:
    """An outcome would be replaced by what its other parts raise while they are cancelled."""
    has_begun = asyncio.Event()

    async def page(part: int) -> int | str:
        if part == 0:
            await has_begun.wait()
            return "parked"
        has_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError(part) from None
        return part

    def build(flow: Flow[int]) -> Flow[Any]:
        return flow.fan_out(range, lambda parts: parts.amap(page, lanes=3))

    async with Leaving(build) as graph:
        assert await graph.submit(3) == "parked"


@pytest.mark.parametrize("on", PLACES)
async def test_keep_going_is_asked_before_each_call(on: Any) -> None:
    """Work would go on for a row whose lease is lost."""
    asked: list[bool] = []
    done: list[int] = []

    def step(value: int) -> int:
        done.append(value)
        return value + 1

    def keep_going() -> bool:
        asked.append(graph.graph.changes.asked is None)
        return len(asked) < 3

    def build(flow: Flow[int]) -> Flow[int]:
        return flow.map(step, on=on).map(step, on=on).map(step, on=on)

    async with StandingGraph(build) as graph:
        with pytest.raises(GraphInterrupted):
            await graph.submit(0, keep_going=keep_going)
        assert await graph.submit(10) == 13
    assert (asked, done) == ([True] * 3, [0, 1, 10, 11, 12])


async def test_a_shared_call_is_made_without_a_value_that_is_not_kept() -> None:
    """A call would be made for a row whose lease is lost."""
    batches: list[list[int]] = []

    async def embed(values: Sequence[int]) -> Sequence[int]:
        batches.append(list(values))
        return values

    async with StandingGraph(lambda flow: flow.amap_batch(embed, size=3, within=60)) as graph:
        submits = [graph.submit(one, keep_going=lambda one=one: one != 1) for one in range(3)]
        found = await asyncio.gather(*submits, return_exceptions=True)
        assert isinstance(found[1], GraphInterrupted)
        assert batches == [[0, 2]]
        none = [graph.submit(one, keep_going=lambda: False) for one in range(3)]
        found = await asyncio.gather(*none, return_exceptions=True)
        assert {type(one) for one in found} == {GraphInterrupted}
        assert batches == [[0, 2]]


@virtual_time
async def test_a_keep_going_that_fails_fails_its_value() -> None:
    """A mistake of one caller would end the work of all, or let its own go on."""

    def keep_going() -> bool:
        raise SystemExit

    async with StandingGraph(lambda flow: flow.map(doubled)) as graph:
        with pytest.raises(HostCodeError, match="SystemExit"):
            await graph.submit(1, keep_going=keep_going)
        assert await graph.submit(1) == 2


async def test_calls_run_in_the_context_of_their_caller() -> None:
    """A log line would name another caller; a shared call belongs to none of them."""
    seen: dict[Any, str] = {}

    def note(value: Any) -> Any:
        seen[value] = name_of_caller.get()
        return value

    async def anote(value: Any) -> Any:
        return note(f"async {value}")

    async def note_all(values: Sequence[Any]) -> Sequence[Any]:
        note("shared")
        return values

    name_of_caller.set("build")
    graph: StandingGraph[Any, Any] = StandingGraph(
        lambda flow: flow.map(note).amap(anote).amap_batch(note_all, size=2, within=60)
    )

    async def submit(value: Any) -> None:
        name_of_caller.set(f"caller {value}")
        await graph.submit(value)

    async with graph:
        await asyncio.gather(submit(1), submit(2))
    assert seen == {
        1: "caller 1",
        2: "caller 2",
        "async 1": "caller 1",
        "async 2": "caller 2",
        "shared": "build",
    }


@pytest.mark.parametrize("on", PLACES)
async def test_check_interrupt_knows_the_caller(on: Any) -> None:
    """A call in a thread would go on to its end for a caller that has gone."""
    begun, is_kept = threading.Event(), True
    ends: list[str] = []

    def long(value: int) -> int:
        nonlocal is_kept
        check_interrupt()
        is_kept = False
        begun.set()
        try:
            check_interrupt()
        except asyncio.CancelledError:
            ends.append("interrupted")
            raise
        return value

    async with StandingGraph(lambda flow: flow.map(long, on=on)) as graph:
        with pytest.raises((GraphInterrupted, HostCodeError)):
            await graph.submit(1, keep_going=lambda: is_kept)
        is_kept = True
    assert ends == ["interrupted"]


async def test_an_idle_graph_is_no_deadlock() -> None:
    """Fresh nodes would be built for each row of a quiet night, and each be logged as an error."""
    built: list[Any] = []
    graph = StandingGraph(lambda flow: built.append(flow) or flow.map(doubled))
    async with graph:
        for number in range(3):
            assert await graph.submit(number) == 2 * number
            await settled()
    assert len(built) == 1


async def test_closed() -> None:
    """A value would wait for ever in a graph that is closed."""
    gate = Gate()
    async with StandingGraph(lambda flow: flow.amap(gate.passed), name="pages") as graph:
        inside = [asyncio.create_task(graph.submit(one)) for one in range(3)]
        await settled()
    found = await outcomes(inside)
    assert [type(one) for one in found] == [GraphClosed] * 3
    assert gate.cancelled == gate.begun == [0]
    with pytest.raises(GraphClosed, match="'pages' is closed"):
        await graph.submit(1)
    await graph.aclose()
    await StandingGraph(lambda flow: flow).aclose()


@virtual_time
async def test_an_empty_graph_costs_nothing() -> None:
    """A test on virtual time would never come to rest, and an idle replica never sleep."""
    loop: Any = asyncio.get_running_loop()

    async def wait(values: Sequence[int]) -> Sequence[int]:
        await asyncio.sleep(1)
        return values

    def build(flow: Flow[int]) -> Flow[int]:
        return flow.map(doubled).amap_batch(wait, size=2, within=3600)

    async with StandingGraph(build) as graph:
        for _ in range(2):
            before = loop.time()
            assert await asyncio.gather(graph.submit(1), graph.submit(2)) == [2, 4]
            assert loop.time() - before == 1
            await settled()
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert [timer for timer in loop._scheduled if not timer.cancelled()] == []


async def test_a_graph_belongs_to_one_loop() -> None:
    """Values would be lost between two event loops."""
    graph = StandingGraph(lambda flow: flow.map(doubled))
    assert await asyncio.to_thread(asyncio.run, graph.submit(1)) == 2
    assert await graph.submit(2) == 4
    with pytest.raises(GraphError, match="another event loop"):
        await asyncio.to_thread(asyncio.run, graph.submit(3))
    await graph.aclose()


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
