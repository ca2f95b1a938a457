"""Databend's ``pipeline_executor.rs`` and its finished chain: hooks of the start and of the end.

Theirs are called when the executor is dropped; ours when the run ends, and `run_graph` awaits them.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from rowlock.errors import GraphError, HostCodeError
from rowlock.graph import Graph
from rowlock.graph.run import run_graph

from .runs import got, line_of


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
