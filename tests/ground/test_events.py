"""Tests of events: who listens hears all of it, and harms nobody."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from rowlock import events
from rowlock.errors import ConfigurationError
from rowlock.events import Event, Listener, RowEvent, RowsClaimed, emit, has_listeners, subscribe

FACT = RowsClaimed("VolumePipeline", count=3, seconds=0.5)
KINDS = [
    kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)
]


@pytest.fixture(autouse=True)
def listen() -> Iterator[Callable[[Listener], Callable[[], None]]]:
    """Subscribe as a host does; all listeners of the test end with it."""
    ends: list[Callable[[], None]] = []

    def listen(listener: Listener) -> Callable[[], None]:
        ends.append(subscribe(listener))
        return ends[-1]

    yield listen
    for end in ends:
        end()


def test_every_listener_hears_in_order(listen: Callable[[Listener], Callable[[], None]]) -> None:
    """A meter would miss what the log has seen."""
    first: list[Event] = []
    second: list[Event] = []
    listen(first.append)
    listen(second.append)
    facts = [dataclasses.replace(FACT, count=count) for count in range(3)]
    for fact in facts:
        emit(fact)
    assert first == second == facts


def test_whoever_ended_hears_nothing(listen: Callable[[Listener], Callable[[], None]]) -> None:
    """A test would hear the events of the next one."""
    heard: list[Event] = []
    end = listen(heard.append)
    end()
    emit(FACT)
    assert heard == []


def test_ending_twice_ends_only_ones_own(listen: Callable[[Listener], Callable[[], None]]) -> None:
    """A second clean-up would raise, in a place that only wants to be over."""
    heard: list[Event] = []
    end = listen(heard.append)
    end()
    end()
    listen(heard.append)
    emit(FACT)
    assert heard == [FACT]


def test_one_ends_while_another_thread_ends_its_own(
    listen: Callable[[Listener], Callable[[], None]],
) -> None:
    """A listener that has ended would be told of events for ever."""
    heard: list[Event] = []
    others = [listen(lambda _: None) for _ in range(9)]
    end = listen(heard.append)

    def between_lines(_frame: FrameType, _event: str, _arg: Any) -> Any:
        # Another thread's turn, wherever one may come.
        if others:
            others.pop(0)()
        return between_lines

    before = sys.gettrace()
    sys.settrace(between_lines)
    try:
        end()
    finally:
        sys.settrace(before)
    emit(FACT)
    assert heard == []


def test_a_listener_that_raises_harms_nobody(
    listen: Callable[[Listener], Callable[[], None]], caplog: pytest.LogCaptureFixture
) -> None:
    """A broken meter would stop the worker that emitted, and silence all later listeners."""
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError("no meter")

    listen(broken)
    listen(heard.append)
    with caplog.at_level(logging.ERROR, logger="rowlock.events"):
        emit(FACT)
    assert heard == [FACT]
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "no meter" in str(record.exc_info[1])
    assert record.__dict__["rowlock_event"] == "RowsClaimed"


def test_a_listener_may_end_itself_while_it_hears(
    listen: Callable[[Listener], Callable[[], None]],
) -> None:
    """Whoever waits for one event would make its neighbour miss it."""
    heard: list[Event] = []
    ends: list[Callable[[], None]] = []
    ends.append(listen(lambda _event: ends[0]()))
    listen(heard.append)
    emit(FACT)
    emit(FACT)
    assert heard == [FACT, FACT]


def test_only_the_kinds_that_were_named_are_heard() -> None:
    """Whoever wants one event in a thousand would pay for each, or miss those of a subclass."""
    heard: list[Event] = []
    released = events.ItemReleased("P", 1, "token")
    end_of_rows = subscribe(heard.append, RowEvent)
    assert has_listeners(events.ItemReleased)
    assert not has_listeners(RowsClaimed)
    for fact in (FACT, released):
        emit(fact)
    end = subscribe(heard.append, RowsClaimed, events.FetchFailed)
    emit(FACT)
    end_of_rows()
    for fact in (FACT, released):
        emit(fact)
    end()
    emit(FACT)
    assert heard == [released, FACT, FACT]
    assert not has_listeners(RowsClaimed)


async def _wait_for(_event: Event) -> None:
    """Nobody waits for it."""


@pytest.mark.parametrize("listener", [None, "print", RowsClaimed, _wait_for])
def test_what_cannot_listen_is_refused(listener: Any) -> None:
    """Nobody finds out from the log of each event that the listener was forgotten."""
    with pytest.raises(ConfigurationError, match="a function"):
        subscribe(listener)
    assert not has_listeners(Event)


def test_what_is_no_kind_is_refused() -> None:
    """A listener with a name for a class would hear nothing for ever."""
    for wrong in ("RowsClaimed", FACT, int):
        with pytest.raises(ConfigurationError, match="subscribe"):
            subscribe(print, wrong)  # type: ignore[arg-type]
    assert not has_listeners(Event)


@pytest.mark.parametrize("kind", KINDS)
def test_facts_cannot_be_changed(kind: type[Event]) -> None:
    """One listener could rewrite what the next one hears."""
    values = {field.name: "x" for field in dataclasses.fields(kind)}
    fact = kind(**values)
    with pytest.raises(dataclasses.FrozenInstanceError):
        fact.pipeline = "other"  # type: ignore[misc]
    assert not hasattr(fact, "__dict__")
    assert fact == kind(**values)
