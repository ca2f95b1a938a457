"""Runs in hosts that behave badly: tasks cancelled from outside, threads and tasks refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rowlock.errors import HostCodeError
from rowlock.graph import run_graph
from rowlock.graph import threads as runtime_module
from rowlock.graph.threads import GraphRuntime
from rowlock.testing import virtual_time

from .nodes import Apply
from .runs import applied, line_of


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
