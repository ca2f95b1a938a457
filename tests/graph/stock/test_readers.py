"""Generators of the host are read as one loop of the host's would read them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from rowlock.errors import HostCodeError
from rowlock.graph import Flow, Graph, run_graph
from rowlock.testing import virtual_time

from ..nodes import Apply
from ..runs import line_of

span: ContextVar[str] = ContextVar("span", default="outside")
ENDS = ["all", "limit", "error", "time"]
Read = Callable[[Graph, Callable[[], Any]], Flow[Any]]


def read_as(operator: str) -> Read:
    """Return what reads a generator by an operator, in a place maybe."""
    name, _, place = operator.partition(" ")
    kw: Any = {"on": place} if place else {}
    match name:
        case "source":
            return lambda graph, values: graph.source(values(), **kw)
        case "flat_map":
            return lambda graph, values: graph.source([1]).flat_map(lambda _: values(), **kw)
        case _:
            return lambda graph, values: (
                graph.source([1])
                .fan_out(lambda _: values(), lambda parts: parts.map(str, on="loop"))
                .flat_map(lambda found: found[1], on="loop")
            )


READS = ["source thread", "source loop", "flat_map thread", "flat_map loop", "fan_out"]


async def run_to(end: str, flow: Flow[Any]) -> list[Any]:
    """Run a flow to one of several ends, with a consumer that takes a second for each value."""
    found: list[Any] = []

    async def consume(value: Any) -> None:
        await asyncio.sleep(1)
        found.append(value)
        if end == "error" and len(found) == 3:
            raise LookupError

    if end == "limit":
        flow = flow.limit(3)
    run = run_graph(flow.asink(consume), time_limit=3.5 if end == "time" else None)
    kind = {"error": LookupError, "time": TimeoutError}.get(end)
    if kind is None:
        await run
    else:
        with pytest.raises(kind):
            await run
    return found


class Spanned:
    """Generators that set a context variable, and what they have seen.

    Attributes:
        seen: the variable, and in the end whether it could be reset.
        tasks: in which an asynchronous one was read.
        cancellations: how many of that task were asked for when it was closed.
    """

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.tasks: set[Any] = set()
        self.cancellations = 0

    def values(self) -> Iterator[str]:
        token = span.set("inside")
        try:
            for number in range(6):
                self.seen.append(span.get())
                yield str(number)
        finally:
            span.reset(token)
            self.seen.append("reset")

    async def async_values(self) -> AsyncIterator[str]:
        token = span.set("inside")
        try:
            for number in range(6):
                await asyncio.sleep(0.1)
                self.tasks.add(asyncio.current_task())
                self.seen.append(span.get())
                yield str(number)
        finally:
            task: Any = asyncio.current_task()
            self.tasks.add(task)
            self.cancellations = task.cancelling()
            span.reset(token)
            self.seen.append("reset")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("read", READS)
@virtual_time
async def test_context_goes_on_across_a_yield(read: str, end: str) -> None:
    """A generator would compute with other settings after its first value, and fail to end."""
    spanned = Spanned()
    found = await run_to(end, read_as(read)(Graph(), spanned.values))
    assert found == ["0", "1", "2", "3", "4", "5"][: len(found)]
    assert set(spanned.seen[:-1]) == {"inside"}
    assert len(spanned.seen) >= 4
    assert spanned.seen[-1] == "reset"
    assert span.get() == "outside"


@pytest.mark.parametrize("end", ENDS)
@virtual_time
async def test_asynchronous_generator_has_one_task(end: str) -> None:
    """What a generator has opened for its task would be closed in another."""
    spanned = Spanned()
    found = await run_to(end, Graph().source(spanned.async_values()))
    assert found == ["0", "1", "2", "3", "4", "5"][: len(found)]
    assert set(spanned.seen[:-1]) == {"inside"}
    assert spanned.seen[-1] == "reset"
    assert (len(spanned.tasks), spanned.cancellations) == (1, 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("within_s", [0.05, 0.45, 2.5])
@virtual_time
async def test_timeout_goes_off_across_a_yield(within_s: float) -> None:
    """A generator that gives its whole work a time would never be out of time."""
    ended_at: list[float] = []
    loop = asyncio.get_running_loop()
    began_at = loop.time()

    async def values() -> AsyncIterator[int]:
        try:
            async with asyncio.timeout(within_s):
                for number in range(9):
                    await asyncio.sleep(0.2)
                    yield number
        except TimeoutError:
            ended_at.append(loop.time() - began_at)
            yield -1

    found: list[int] = []

    async def consume(value: int) -> None:
        await asyncio.sleep(0.7)
        found.append(value)

    await run_graph(Graph().source(values()).asink(consume))
    assert found[-1] == -1
    assert found[:-1] == list(range(len(found) - 1))
    # At once if it reads, and otherwise when it goes on.
    assert 0 <= round(ended_at[0] - within_s, 6) < 0.7


@virtual_time
async def test_timeout_of_a_generator_is_an_error_of_its_own() -> None:
    """A run would end as if it had been cancelled, or not at all."""

    async def values() -> AsyncIterator[int]:
        async with asyncio.timeout(1.5):
            for number in range(9):
                yield number

    async def consume(_value: int) -> None:
        await asyncio.sleep(1)

    with pytest.raises(TimeoutError) as raised:
        await run_graph(Graph().source(values(), name="pages").asink(consume))
    assert raised.value.__notes__ == ["in pages, lane 0"]


@virtual_time
async def test_task_of_a_generator_that_another_cancels() -> None:
    """A generator would not hear of it, and the run hang or go on as if nothing had been."""

    async def values() -> AsyncIterator[int]:
        for number in range(9):
            yield number

    async def consume(value: int) -> None:
        if value == 1:
            (task,) = (one for one in asyncio.all_tasks() if one.get_name() == "rowlock: pages")
            task.cancel()
        await asyncio.sleep(1)

    with pytest.raises(HostCodeError, match="CancelledError"):
        await run_graph(Graph().source(values(), name="pages").asink(consume))
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtual_time
async def test_iterator_that_is_no_generator_hears_of_no_cancellation() -> None:
    """A stream of a client library would fail with an attribute that it does not have."""

    class Numbers:
        def __init__(self) -> None:
            self.number = 0

        def __aiter__(self) -> Numbers:
            return self

        async def __anext__(self) -> int:
            self.number += 1
            if self.number == 1:
                task = asyncio.current_task()
                assert task is not None
                asyncio.get_running_loop().call_later(1.5, task.cancel)
            if self.number > 5:
                raise StopAsyncIteration
            return self.number

    found: list[int] = []

    async def consume(value: int) -> None:
        await asyncio.sleep(1)
        found.append(value)

    await run_graph(Graph().source(Numbers()).asink(consume))
    assert found == [1, 2, 3, 4, 5]


@virtual_time
async def test_task_that_is_kept_ends_with_the_run() -> None:
    """A processor that has nothing to close would leave its task behind."""

    async def wait(value: object) -> object:
        await asyncio.sleep(1)
        return value

    keeping = Apply(wait, is_async=True)
    keeping.keeps_task = True
    await run_graph(line_of(keeping, values=[1, 2, 3]))
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
