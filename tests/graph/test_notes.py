"""What an error of a graph says of where it was raised; values are left out unless asked for."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rowlock.errors import InternalError
from rowlock.graph import Flow, Graph, StandingGraph, run_graph, stream_graph

from .nodes import Apply
from .runs import applied, line_of


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
