"""Threads of a runtime: who makes a call next, how many threads there are, and how they end."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from rowlock.graph import Graph, run_graph
from rowlock.graph import threads as runtime_module
from rowlock.graph.threads import GraphRuntime, GraphThread, ThreadCall, default_runtime

from .nodes import Apply, Collect, Feed, Spread
from .runs import applied, got, line_of


@pytest.fixture
def runtime() -> Iterator[GraphRuntime]:
    made = GraphRuntime(threads_max=3)
    yield made
    made.close()


def lanes_of(count: int, function: Callable[[int], object], values: int) -> Graph:
    """Return a graph with an operator of `count` lanes in threads."""
    graph = Graph()
    graph.add_pipe([Feed(range(values))])
    graph.add_pipe([Spread(1, count)])
    graph.add_pipe([Apply(function, place="thread") for _ in range(count)])
    graph.add_pipe([Collect(inputs=count)])
    return graph


async def test_call_stays_with_its_finisher(runtime: GraphRuntime) -> None:
    """A value would change its thread at each operator, at 20 to 60 microseconds each."""
    threads: list[int] = []

    def look(value: int) -> int:
        threads.append(threading.get_ident())
        return value

    graph = line_of(*(applied(look, "thread") for _ in range(5)), values=[1], place="thread")
    await run_graph(graph, runtime=runtime)
    assert len(set(threads)) == 1
    assert runtime.threads == 1


async def test_idle_threads_steal(runtime: GraphRuntime) -> None:
    """Calls found by one thread would wait for it while others sleep."""
    together = threading.Barrier(3)

    def meet(value: int) -> int:
        together.wait(20)
        return value

    graph = Graph()
    graph.add_pipe([Feed([1], place="thread")])
    graph.add_pipe([Spread(1, 1)])
    graph.add_pipe([applied(lambda x: x, "thread")])
    graph.add_pipe([Copier(3)])
    graph.add_pipe([Apply(meet, place="thread") for _ in range(3)])
    graph.add_pipe([sink := Collect(inputs=3)])
    await run_graph(graph, runtime=runtime)
    assert sink.got == [1, 1, 1]
    assert runtime.steals == 2


class Copier(Spread):
    holds_max = 100

    def __init__(self, outputs: int) -> None:
        super().__init__(1, outputs)

    def answer(self, changed):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        input_ = self.inputs[0]
        if input_.has_data and all(output.can_push for output in self.outputs):
            value = input_.pull()
            self.made += len(self.outputs) - 1
            for output in self.outputs:
                output.push(value)
        return super().answer(changed)


class FakeLanes:
    """A run whose calls are never made."""


def call(number: int) -> ThreadCall:
    return ThreadCall(FakeLanes(), number)  # type: ignore[arg-type]


def test_thieves_steal_the_oldest(runtime: GraphRuntime) -> None:
    """The call that waits longest would be made last, and cold values would push out warm ones."""
    owner, thief = (GraphThread(runtime, number=number) for number in range(2))
    runtime._workers = (owner, thief)
    owner.calls.extend(call(number) for number in range(3))
    found = runtime.find(thief)
    own = owner._next()
    runtime._workers = ()
    assert found is not None
    assert own is not None
    assert (found.node, own.node) == (0, 2)


class FakeNode:
    """A node whose calls take `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.started_at, self.ended_at = 0.0, seconds


class EndlessLanes:
    """A run in which each call is followed by another."""

    def __init__(self) -> None:
        self.made = 0

    def make(self, node: FakeNode, _thread: GraphThread) -> list[ThreadCall]:
        self.made += 1
        return [ThreadCall(self, node)]  # type: ignore[arg-type]


@pytest.mark.parametrize(("seconds", "calls"), [(0.0, 64), (0.01, 1), (0.009, 64)])
def test_run_is_left_after_its_share(runtime: GraphRuntime, seconds: float, calls: int) -> None:
    """An endless run would keep its threads from all others."""
    thread, lanes = GraphThread(runtime, number=1), EndlessLanes()
    thread._make(ThreadCall(lanes, FakeNode(seconds)))  # type: ignore[arg-type]
    while thread.calls and lanes.made < 100:
        thread._make(thread.calls.pop())
    assert lanes.made == calls
    assert len(runtime._shared) == 1
    runtime._shared.clear()


async def test_one_thread_is_begun_for_each_call(runtime: GraphRuntime) -> None:
    """A run with one lane would begin as many threads as there may be."""
    graph = line_of(applied(str, "thread"), values=range(20), place="thread")
    await run_graph(graph, runtime=runtime)
    assert runtime.threads == 1


async def test_threads_are_bounded(runtime: GraphRuntime) -> None:
    """A wide operator would begin a thread for each of its lanes."""
    inside, most, lock = [0], [0], threading.Lock()

    def count(value: int) -> int:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        with lock:
            inside[0] -= 1
        return value

    await run_graph(lanes_of(50, count, 500), runtime=runtime)
    assert most[0] <= 3
    assert runtime.threads <= 3


async def test_threads_of_one_run_are_bounded(runtime: GraphRuntime) -> None:
    """One run would use all threads, though its caller has asked for fewer."""
    inside, most, lock = [0], [0], threading.Lock()
    proceed = threading.Event()

    def count(value: int) -> int:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        proceed.wait(0.001)
        with lock:
            inside[0] -= 1
        return value

    graph = lanes_of(20, count, 60)
    await run_graph(graph, runtime=runtime, threads=2)
    assert most[0] == 2
    assert sum(node.calls for node in graph.nodes) == 121


async def test_other_runs_are_served(runtime: GraphRuntime) -> None:
    """A short run would wait until a long one has ended."""
    one = GraphRuntime(threads_max=1)
    stop = threading.Event()

    def endless() -> Iterator[int]:
        while not stop.is_set():
            yield 1

    long = line_of(applied(str, "thread"), values=endless(), place="thread")
    short = line_of(applied(str, "thread"), values=range(50), place="thread")
    running = asyncio.create_task(run_graph(long, runtime=one))
    await run_graph(short, runtime=one)
    assert not running.done()
    stop.set()
    await running
    one.close()


def test_thread_that_waits_is_replaced() -> None:
    """All threads would wait for calls that no thread is left to make."""
    one = GraphRuntime(threads_max=1)
    waiting = GraphThread(one, number=1)
    one._workers = (waiting,)
    one.wake(1)
    assert one.threads == 1
    with one.waits(waiting), one.waits(waiting):
        one.wake(1)
        assert one.threads == 2
    one._workers = one._workers[1:]
    one.close()


def test_surplus_thread_leaves_its_calls_to_one_that_sleeps() -> None:
    """A run would hang: its next call waits for any thread, and all of them sleep."""
    one = GraphRuntime(threads_max=1)
    surplus, sleeping = GraphThread(one, number=1), GraphThread(one, number=2)
    one._workers, one._sleepers = (surplus, sleeping), [sleeping]
    # As after 64 calls of one run: what is left waits for any thread.
    surplus.calls.append(call(1))
    one.leave_to_others(surplus)
    assert one.is_surplus(surplus)
    assert sleeping.awake.acquire(blocking=False)
    assert not one._sleepers
    one._workers = ()  # they were never started, so nothing can wait for their end
    one.close()


async def test_nested_runs_need_no_further_threads() -> None:
    """Runs within calls of runs would wait for each other's only thread."""
    one = GraphRuntime(threads_max=1)

    def nested(level: int) -> int:
        graph = line_of(applied(nested if level else str, "thread"), values=[level - 1])
        asyncio.run(run_graph(graph, runtime=one))
        return level

    graph = line_of(applied(nested, "thread"), values=[3])
    await run_graph(graph, runtime=one)
    assert got(graph) == [3]
    one.close()


async def test_source_that_blocks_has_its_own_thread() -> None:
    """A read that waits for a slow queue would keep all other calls from running."""
    one = GraphRuntime(threads_max=1)
    seen = threading.Event()

    def values() -> Iterator[int]:
        yield 1
        assert seen.wait(20)

    feed = Feed(values(), place="thread")
    feed.blocks = True
    graph = Graph()
    graph.add_pipe([feed])
    graph.add_pipe([Apply(lambda _value: seen.set(), place="thread")])
    graph.add_pipe([Collect()])
    await run_graph(graph, runtime=one)
    assert seen.is_set()
    assert one.threads <= 2
    one.close()


def test_idle_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst would leave its threads behind for as long as the program runs."""
    monkeypatch.setattr(runtime_module, "IDLE_S_MAX", 0.001)
    made = GraphRuntime(threads_max=1)
    asyncio.run(run_graph(line_of(applied(str, "thread"), values=[1]), runtime=made))
    for worker in made._workers:
        worker.join(20)
    assert made.threads == 0
    asyncio.run(run_graph(line_of(applied(str, "thread"), values=[1]), runtime=made))


def test_process_has_one_runtime() -> None:
    """Each run would have threads of its own."""
    assert default_runtime() is default_runtime()


async def test_loop_does_not_wait_for_the_mutex() -> None:
    """The host's other tasks would stop while a thread schedules."""
    graph = line_of(applied(str, "thread"), values=range(3))
    entered, leave, ran = threading.Event(), threading.Event(), asyncio.Event()
    sink = graph.nodes[-1].processor
    assert isinstance(sink, Collect)
    answer = sink.answer

    def slow(changed: list[object]) -> object:
        if threading.current_thread() is not threading.main_thread() and not entered.is_set():
            entered.set()
            assert leave.wait(20)
        return answer(changed)  # type: ignore[arg-type]

    sink.answer = slow  # type: ignore[assignment]

    async def other() -> None:
        while not entered.is_set():  # noqa: ASYNC110  # it is set in a thread
            await asyncio.sleep(0)
        sink.wake()
        for _ in range(5):
            await asyncio.sleep(0)
        ran.set()
        leave.set()

    task = asyncio.create_task(other())
    await run_graph(graph)
    await task
    assert ran.is_set()
    assert got(graph) == ["0", "1", "2"]


PROGRAM = """
import asyncio, os, threading
from rowlock.graph.threads import default_runtime
from tests.graph.runs import applied, got, line_of
from rowlock.graph import run_graph

def run():
    graph = line_of(applied(str, "thread"), values=[1])
    asyncio.run(run_graph(graph))
    assert got(graph) == ["1"]

run()
if not os.fork():
    assert default_runtime().threads == 0
    run()
    print("child", flush=True)
    os._exit(0)
assert os.wait()[1] == 0
began = threading.Event()

def stuck(_value):
    began.set()
    threading.Event().wait()

async def main():
    task = asyncio.create_task(run_graph(line_of(applied(stuck, "thread"), values=[1])))
    await asyncio.to_thread(began.wait)
    print("over", flush=True)

asyncio.new_event_loop().run_until_complete(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_child_and_end_of_the_program() -> None:
    """A child process would wait for threads that only its parent has; or a program hang at its end
    because of a call that does not return.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])},
    )
    assert (done.returncode, done.stdout.split()) == (0, ["child", "over"]), done.stderr


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


async def test_a_sleeping_thread_keeps_no_graph_alive() -> None:
    """What a host has put into a graph would stay in memory until the next one runs."""
    runtime = GraphRuntime(threads_max=2)

    async def run() -> weakref.ref[Graph]:
        graph = Graph()
        graph.source(range(3)).map(str).sink(str)
        await run_graph(graph, runtime=runtime)
        return weakref.ref(graph)

    graph = await run()
    while len(runtime._sleepers) < runtime.threads:  # noqa: ASYNC110 - it is about to
        await asyncio.sleep(0)
    gc.collect()
    assert graph() is None
    runtime.close()
