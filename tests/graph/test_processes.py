"""Calls in child processes: where they run, how they end, and what becomes of a child that dies."""

from __future__ import annotations

import asyncio
import operator
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from anyio import BrokenWorkerProcess

from rowlock.errors import GraphError, GraphTimeLimit, HostCodeError
from rowlock.graph import Graph, run_graph
from rowlock.graph.processes import ADVICE, ProcessLane
from rowlock.testing import virtual_time

from ..host import HANG_S_MAX
from .nodes import Apply, Collect, Feed
from .runs import got

UNGUARDED = """
import asyncio, sys
from rowlock.graph import Graph, run_graph

if sys.argv[0] != __file__:
    raise IndexError("no arguments")
graph = Graph()
graph.source([1]).map(str, on="process").sink(print)
asyncio.run(run_graph(graph))
"""


OWN_ERROR = """
import asyncio
from rowlock.graph import Graph, run_graph

class Own(Exception):
    pass

def fail(value):
    raise Own("of this script")

if __name__ == "__main__":
    graph = Graph()
    graph.source([1]).map(fail, on="process").sink(print)
    try:
        asyncio.run(run_graph(graph))
    except Own as error:
        print(repr(error))
"""


def process_id(_value: object) -> int:
    return os.getpid()


def graph_of(function: object, values: list[object]) -> Graph:
    """Return a graph whose operator calls `function` in child processes."""
    lane = ProcessLane()

    async def call(value: object) -> object:
        return await lane.call(function, value)  # type: ignore[arg-type]

    graph = Graph()
    graph.add_pipe([Feed(values)])
    graph.add_pipe([Apply(call, is_async=True, name="parse")])
    graph.add_pipe([Collect()])
    return graph


def test_calls_run_in_one_child() -> None:
    """A lane would begin a process for each value, or compute in this one."""
    graph = graph_of(operator.call, [os.getpid, os.getpid])
    asyncio.run(run_graph(graph))
    first, second = got(graph)
    assert first == second != os.getpid()


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def method(self, value: object) -> object:
        return value


def locked(_value: object) -> Locked:
    return Locked()


def confused(_value: object) -> None:
    msg = "no such attribute"
    raise AttributeError(msg)


class Peculiar(Exception):
    def __init__(self, text: str, value: object) -> None:
        super().__init__(text)
        self.value = value


def fail_peculiarly(value: object) -> None:
    raise Peculiar("the disk is full", value)


async def test_what_cannot_travel_is_told() -> None:
    """A host would read of a local object, or of an argument of its error's class, and not learn
    what went wrong and what to change; or lose its child each time.
    """
    lane = ProcessLane()
    child = await lane.call(process_id, 1)
    cases: list[tuple[Any, object, str | None]] = [
        (locked, 1, "the result cannot be pickled: return plain data"),
        (id, Locked(), "the value cannot be pickled: hand on plain data"),
        (Locked().method, 1, "the function cannot be pickled: on='process' needs a function that"),
        (confused, 1, None),
    ]
    for function, value, note in cases:
        with pytest.raises((pickle.PicklingError, AttributeError, TypeError)) as caught:
            await lane.call(function, value)
        notes = getattr(caught.value, "__notes__", [])
        assert [one.startswith(note or "") for one in notes] == ([] if note is None else [True])
    with pytest.raises(HostCodeError, match="Peculiar: the disk is full"):
        await lane.call(fail_peculiarly, 1)
    assert await lane.call(process_id, 1) == child != os.getpid()


def test_error_of_the_main_module_travels(tmp_path: Path) -> None:
    """A script's own errors would come as a module that is not found."""
    script = tmp_path / "script.py"
    script.write_text(OWN_ERROR)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stdout == "Own('of this script')\n", done.stderr


def test_function_that_no_child_finds_is_a_mistake() -> None:
    """A host would learn from its first value that a child process cannot have its function."""

    def within(value: object) -> object:
        return value

    flow = Graph().source([1])
    with pytest.raises(GraphError, match=r"own of .*test_processes: .* no function within"):
        flow.map(within, on="process", name="own")
    assert flow.map(process_id, on="process", name="own") is not None


def test_main_module_that_cannot_be_imported_is_explained(tmp_path: Path) -> None:
    """A host would not learn why no child begins: its main module is run by each of them."""
    program = tmp_path / "program.py"
    program.write_text(UNGUARDED)
    ended = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, check=False, timeout=100
    )
    assert "BrokenWorkerProcess" in ended.stderr
    assert ADVICE in ended.stderr


def test_child_that_dies_gets_no_advice() -> None:
    """A crash in C would look like a call that never ends, or be blamed on the main module."""
    with pytest.raises(BrokenWorkerProcess) as caught:
        asyncio.run(ProcessLane().call(os._exit, 3))
    assert not hasattr(caught.value, "__notes__")


def test_child_is_killed_at_the_end() -> None:
    """A computation would go on after the run has ended."""
    with pytest.raises(GraphTimeLimit) as caught:
        asyncio.run(run_graph(graph_of(time.sleep, [1_000]), time_limit=0.2, grace=HANG_S_MAX))
    assert caught.value.abandoned == ()


async def test_starts_that_are_cancelled_leave_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child is started shielded, and called then: however many starts are cancelled, no child
    lives but that of the last call.
    """
    loop = asyncio.get_running_loop()
    begin, children = loop.subprocess_exec, list[asyncio.SubprocessTransport]()

    async def counted(*args: Any, **options: Any) -> Any:
        transport, protocol = await begin(*args, **options)
        children.append(transport)
        return transport, protocol

    monkeypatch.setattr(loop, "subprocess_exec", counted)
    lane = ProcessLane()
    for turns in range(20):
        call = asyncio.create_task(lane.call(process_id, 1))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    last = await lane.call(process_id, 1)
    assert [child.get_pid() for child in children if child.get_returncode() is None] == [last]


@virtual_time
async def test_simulation_needs_no_child() -> None:
    """A simulation with such an operator would wait for a process in no time at all."""
    graph = graph_of(process_id, [1])
    await run_graph(graph)
    assert got(graph) == [os.getpid()]
