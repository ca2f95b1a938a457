"""How a run ends before its time: a limit, a cancellation, `keep_going`, calls that do not end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rowlock.errors import GraphInterrupted, GraphTimeLimit, HostCodeError
from rowlock.graph import Graph, run_graph
from rowlock.graph import threads as runtime_module
from rowlock.graph.host_code import check_interrupt
from rowlock.graph.threads import GraphRuntime
from rowlock.testing import run_virtual, virtual_time

from ..host import HANG_S_MAX
from .nodes import Apply, Collect, Feed
from .runs import applied, got, line_of


async def for_ever(_value: object) -> None:
    await asyncio.Event().wait()


class Stuck:
    """A call in a thread that ends when the test says so."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.began, self.may_end = asyncio.Event(), threading.Event()
        self.ended = threading.Event()

    def __call__(self, value: object) -> object:
        self.loop.call_soon_threadsafe(self.began.set)
        self.may_end.wait()
        self.ended.set()
        return value


@virtual_time
async def test_time_limit_is_exact() -> None:
    """A run would take longer than its caller has."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(GraphTimeLimit) as caught:
        await run_graph(line_of(Apply(for_ever, is_async=True), values=[1]), time_limit=2.5)
    assert loop.time() - began == 2.5
    assert (caught.value.time_limit_s, caught.value.abandoned) == (2.5, ())


async def test_cancelled_caller_waits_for_threads() -> None:
    """A lease would be released while a call still works on its row."""
    stuck = Stuck()
    graph = line_of(Apply(stuck, place="thread"), values=[1])
    task = asyncio.create_task(run_graph(graph))
    await stuck.began.wait()
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=0.05)
    assert not done
    stuck.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stuck.ended.is_set()
    assert got(graph) == []


@virtual_time
async def test_coroutines_are_cancelled_at_once() -> None:
    """A caller would wait for calls whose results are thrown away."""
    cancelled: list[str] = []

    async def wait(_value: object) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.append("cancelled")

    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await run_graph(line_of(Apply(wait, is_async=True), values=[1]))
    assert (loop.time() - began, cancelled) == (1, ["cancelled"])


@pytest.mark.parametrize("place", ["loop", "thread", "task"])
async def test_keep_going_is_asked_before_each_call(place: str) -> None:
    """A call would begin for a row whose lease is lost."""
    calls: list[int] = []
    graph = line_of(applied(calls.append, place), values=range(100))
    with pytest.raises(GraphInterrupted):
        await run_graph(graph, keep_going=lambda: len(calls) < 5)
    assert len(calls) == 5


async def test_keep_going_that_raises_ends_the_run() -> None:
    """An error of the caller's own function would end a thread."""

    def broken() -> bool:
        raise LookupError

    with pytest.raises(LookupError):
        await run_graph(line_of(applied(str, "thread"), values=[1]), keep_going=broken)


@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_long_call_may_ask_whether_it_is_obsolete(place: str) -> None:
    """A call in a thread could not be ended before it has computed everything."""
    keeps = [True]
    looked: list[str] = []

    def work(_value: object) -> None:
        check_interrupt()
        keeps[0] = False
        looked.append("before")
        check_interrupt()
        looked.append("after")

    with pytest.raises(GraphInterrupted):
        await run_graph(line_of(applied(work, place), values=[1]), keep_going=lambda: keeps[0])
    assert looked == ["before"]


def test_check_outside_of_a_graph_does_nothing() -> None:
    """A function could not be used without a graph."""
    check_interrupt()


async def test_interrupted_thread_sees_the_time_limit() -> None:
    """A computation would go on after the run was to end."""
    never, computed = threading.Event(), []

    def work(_value: object) -> None:
        for _ in range(5000):
            check_interrupt()
            never.wait(0.001)
        computed.append("everything")

    with pytest.raises(GraphTimeLimit):
        await run_graph(line_of(Apply(work, place="thread"), values=[1]), time_limit=0.01)
    assert not computed


async def test_call_that_ignores_the_end_is_abandoned(caplog: pytest.LogCaptureFixture) -> None:
    """A caller with a grace would wait for ever for a call that is stuck in C."""
    stuck, runtime = Stuck(), GraphRuntime(threads_max=1)
    graph = line_of(Apply(stuck, place="thread", name="ocr"), values=[1])
    with caplog.at_level(logging.WARNING), pytest.raises(GraphTimeLimit) as caught:
        await run_graph(graph, time_limit=0.01, grace=0.01, runtime=runtime)
    assert caught.value.abandoned == ("ocr",)
    assert "abandoned: ocr" in caplog.text
    assert (runtime.abandoned, runtime.threads) == (1, 0)
    other = line_of(applied(str, "thread"), values=[1])
    await run_graph(other, runtime=runtime)
    assert got(other) == ["1"]
    stuck.may_end.set()
    runtime.close()
    assert stuck.ended.wait(5)


def test_a_call_that_hangs_keeps_no_event_loop_from_ending() -> None:
    """A call that hangs in a thread is abandoned when its event loop ends, also without a grace."""
    made: list[Stuck] = []

    async def main() -> None:
        made.append(Stuck())
        graph = line_of(Apply(made[0], place="thread"), values=[1])
        running = asyncio.create_task(run_graph(graph, runtime=GraphRuntime(threads_max=1)))
        await made[0].began.wait()
        assert not running.done()

    host = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    host.start()
    host.join(HANG_S_MAX / 2)
    made[0].may_end.set()
    assert not host.is_alive()


async def test_abandoned_threads_are_bounded() -> None:
    """Calls that are stuck would fill the process with threads."""
    runtime, all_stuck = GraphRuntime(threads_max=1), [Stuck() for _ in range(2)]
    for stuck in all_stuck:
        with pytest.raises(GraphTimeLimit):
            await run_graph(
                line_of(Apply(stuck, place="thread"), values=[1]),
                time_limit=0.01,
                grace=0.01,
                runtime=runtime,
            )
    assert (runtime.abandoned, runtime.threads) == (1, 1)
    for stuck in all_stuck:
        stuck.may_end.set()
    runtime.close()


@virtual_time
async def test_coroutine_that_ignores_the_end_is_awaited() -> None:
    """A run would return while one of its calls still works."""
    log: list[str] = []

    async def stubborn(_value: object) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
            log.append("done")

    with pytest.raises(GraphTimeLimit):
        await run_graph(line_of(Apply(stubborn, is_async=True), values=[1]), time_limit=1)
    assert log == ["done"]


async def test_error_after_the_first_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    """A second failure would be lost, or hide the first."""
    began = threading.Barrier(2)

    def fail(value: int) -> None:
        began.wait(10)
        raise LookupError(value)

    graph = Graph()
    graph.add_pipe([Feed([1]), Feed([2])])
    graph.add_pipe([Apply(fail, place="thread", name="parse") for _ in range(2)])
    graph.add_pipe([Collect(inputs=2)])
    with caplog.at_level(logging.WARNING), pytest.raises(LookupError) as caught:
        await run_graph(graph)
    (later,) = graph.later_errors
    assert (later.operator, type(later.error)) == ("parse", LookupError)
    assert later.error.__traceback__ is None
    assert {later.error.args, caught.value.args} == {(1,), (2,)}
    assert "parse failed after the run was to end" in caplog.text


async def test_call_that_waits_for_a_thread_is_withdrawn() -> None:
    """A run could not end while the threads are busy with other runs, and its call would begin
    although the result is not wanted.
    """
    stuck, runtime = Stuck(), GraphRuntime(threads_max=1)
    other = asyncio.create_task(
        run_graph(line_of(Apply(stuck, place="thread"), values=[1]), runtime=runtime)
    )
    await stuck.began.wait()
    calls: list[int] = []
    graph = line_of(applied(calls.append, "thread"), values=[1])
    run = asyncio.create_task(run_graph(graph, runtime=runtime))
    for is_cancelled in (True, False):
        for _ in range(100):
            await asyncio.sleep(0)
        if is_cancelled:
            run.cancel()
    has_ended = run.done()
    stuck.may_end.set()
    await asyncio.wait([run, other])
    runtime.close()
    assert has_ended
    assert (run.cancelled(), calls) == (True, [])


@pytest.mark.parametrize("times", [1, 5])
def test_cancellation_at_each_suspension(times: int) -> None:
    """A run that is cancelled at the wrong moment, or while it ends, would leave a task, a timer or
    an open source, or would not come to its end.
    """
    steps = 1
    while cancel_at_step(steps, times=times):
        steps += 1
    # Each of three values is awaited twice, in between the run begins and ends.
    assert steps > 20


def cancel_at_step(steps: int, *, times: int) -> bool:
    """Cancel a run after so many steps of the loop; return whether it was still under way."""
    closed, ends = [0], [0]

    def end(_error: BaseException | None) -> None:
        ends[0] += 1

    async def scene() -> bool:
        async def pass_on(value: int) -> int:
            await asyncio.sleep(0.1)
            return value

        graph = line_of(
            Apply(pass_on, is_async=True), Apply(pass_on, is_async=True), values=counted(closed)
        )
        graph.on_end(end)
        task = asyncio.create_task(run_graph(graph))
        for step in range(1, steps + 1):
            # On this loop no time passes while something is ready.
            await asyncio.sleep(0 if step % 5 else 0.06)
        was_inside = not task.done()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([task])
        assert task.cancelled() or not was_inside
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return was_inside

    was_inside = run_virtual(scene)
    assert (closed, ends) == ([1], [1])
    return was_inside


async def test_a_generator_is_closed_when_it_is_no_longer_read() -> None:
    """A generator that a thread reads would be closed under it, which Python refuses; and a file
    stay open.
    """
    begun, go_on = threading.Event(), threading.Event()
    read: list[str] = []

    def values() -> Iterator[int]:
        try:
            begun.set()
            go_on.wait()
            read.append("read")
            yield 1
        finally:
            read.append("closed")

    graph = Graph()
    graph.source(values()).sink(read.append)
    task = asyncio.create_task(run_graph(graph))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    await asyncio.wait([task])
    assert (task.cancelled(), read, graph.later_errors) == (True, ["read", "closed"], [])


class counted:  # noqa: N801  # used as a function
    """Three values; counts how often it is closed."""

    def __init__(self, closed: list[int]) -> None:
        self.closed, self.left = closed, 3

    def __iter__(self) -> counted:
        return self

    def __next__(self) -> int:
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return self.left

    def close(self) -> None:
        self.closed[0] += 1


@pytest.mark.parametrize("steps", range(4))
@virtual_time
async def test_call_cancelled_by_another_is_an_error(steps: int) -> None:
    """A call that was cancelled before its first step would be waited for, for ever."""

    async def wait(_value: object) -> None:
        await asyncio.sleep(3600)

    run = asyncio.create_task(
        run_graph(line_of(Apply(wait, is_async=True, name="ocr"), values=[1]))
    )
    calls: list[asyncio.Task[Any]] = []
    while not calls:
        await asyncio.sleep(0)
        calls = [task for task in asyncio.all_tasks() if task.get_name() == "rowlock: ocr"]
    for _ in range(steps):
        await asyncio.sleep(0)
    calls[0].cancel()
    with pytest.raises(HostCodeError):
        await run


async def test_thread_that_is_refused_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may begin no thread would leave the run hanging."""

    def refuse(_thread: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(runtime_module.GraphThread, "start", refuse)
    runtime = GraphRuntime(threads_max=1)
    with pytest.raises(RuntimeError, match="new thread"):
        await run_graph(line_of(applied(str, "thread"), values=[1]), runtime=runtime)
    assert runtime.threads == 0
