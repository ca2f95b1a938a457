"""Lanes call a function once for each value, and use its result in one of four ways."""

from __future__ import annotations

from typing import Any

import pytest

from rowlock.graph.processor import EMPTY
from rowlock.graph.stock.carriers import GONE, Carrier, LimitProcessor
from rowlock.graph.stock.lanes import FlatMapProcessor, Lane, MapProcessor, consume, pass_on, select

from ..one_thread import Sequential, Wiring


def ran(processor: Lane, items: Any, *, limit: int | None = None) -> list[Any]:
    """Run values through a processor, and return what comes out."""
    wiring = Wiring()
    (output,) = wiring.through(processor, wiring.source(items))
    if limit is not None:
        (output,) = wiring.through(LimitProcessor(limit), output)
    found = wiring.sink(output)
    assert Sequential(wiring.graph).run().is_finished
    return found


async def doubled(value: int) -> int:
    return 2 * value


async def is_odd(value: int) -> bool:
    return value % 2 == 1


def test_map() -> None:
    """A result would be lost, or a value worked on twice."""
    assert ran(MapProcessor(lambda value: 2 * value), range(4)) == [0, 2, 4, 6]
    assert ran(MapProcessor(doubled, place=None), range(4)) == [0, 2, 4, 6]


def test_coroutine_of_a_plain_function_is_an_error() -> None:
    """A lambda around a coroutine function would hand on coroutines that nothing awaits."""
    with pytest.raises(TypeError, match="doubled is a coroutine, which"):
        ran(MapProcessor(doubled), range(2))
    with pytest.raises(TypeError, match="is_odd is a coroutine"):
        ran(MapProcessor(is_odd, use=select), range(2))


def test_results_may_be_none() -> None:
    """A function that returns None would seem to return nothing."""
    assert ran(MapProcessor(lambda _value: None), range(2)) == [None, None]


def test_filter() -> None:
    """What was filtered out would come through, or be missing in the counts."""
    for lane in (
        MapProcessor(lambda value: value % 2, use=select),
        MapProcessor(is_odd, place=None, use=select),
    ):
        assert ran(lane, range(5)) == [1, 3]
        assert lane.dropped == 3


def test_tap() -> None:
    """What a tap returns would take the place of the value."""
    seen: list[int] = []
    assert ran(MapProcessor(seen.append, use=pass_on), range(3)) == [0, 1, 2] == seen


def test_values_of_a_sink_are_counted() -> None:
    """What goes into a sink would seem to stay there."""
    wiring = Wiring()
    sink = MapProcessor(lambda _value: None, use=consume)
    wiring.through(sink, wiring.source(range(4)))
    assert Sequential(wiring.graph).run().is_finished
    assert sink.merged == 4


def failing(value: int) -> int:
    if value % 2:
        raise ValueError(value)
    return value


async def async_failing(value: int) -> int:
    return failing(value)


def test_an_error_ends_the_run() -> None:
    """A failed value would be lost without a word."""
    for lane in (MapProcessor(failing), MapProcessor(async_failing, place=None)):
        with pytest.raises(ValueError, match="1"):
            ran(lane, range(3))
        assert lane.subject() == 1


def test_on_error_drops_the_value() -> None:
    """One broken file would end the work on all."""
    heard: list[Any] = []
    for lane in (
        MapProcessor(failing, on_error=lambda value, error: heard.append((value, str(error)))),
        MapProcessor(async_failing, place=None, on_error=lambda value, _error: heard.append(value)),
    ):
        assert ran(lane, range(4)) == [0, 2]
        assert lane.failed == 2
    assert heard == [(1, "1"), (3, "3"), 1, 3]


def test_on_error_that_raises_ends_the_run() -> None:
    """A host could not say which errors it outlives."""

    def choosy(_value: int, error: Exception) -> None:
        raise KeyError("not this one") from error

    with pytest.raises(KeyError):
        ran(MapProcessor(failing, on_error=choosy), range(2))


class Wanted(Carrier):
    def __init__(self, below: int) -> None:
        self.below = below
        self.failed: list[int] = []

    def is_wanted(self, item: int) -> bool:
        return item < self.below

    def fail(self, item: int, error: BaseException) -> bool:
        del error
        self.failed.append(item)
        return True


def test_no_call_starts_for_an_obsolete_value() -> None:
    """A value whose caller has gone would still cost a call."""
    lane = MapProcessor(lambda value: value, carrier=Wanted(2))
    assert ran(lane, range(4)) == [0, 1]
    assert lane.dropped == 2


def test_an_error_goes_where_the_carrier_says() -> None:
    """One caller's error would end the run of all."""
    carrier = Wanted(9)
    assert ran(MapProcessor(failing, carrier=carrier), range(4)) == [0, 2]
    assert carrier.failed == [1, 3]


def test_dropped_items_are_marked_where_results_are_counted() -> None:
    """A node that keeps the order would wait for a result that never comes."""
    lane = MapProcessor(lambda value: value % 2, use=select, carrier=Wanted(4))
    lane.marks_gone = True
    assert ran(lane, range(6)) == [GONE, 1, GONE, 3, GONE, GONE]


def test_a_lane_that_is_not_read_any_more_drops_what_it_has() -> None:
    """The last value would live as long as the run."""
    lane = MapProcessor(lambda value: value)
    assert ran(lane, range(9), limit=2) == [0, 1]
    assert (lane.item, lane.result) == (EMPTY, EMPTY)


class Letters:
    """Generators of letters, and how often they were closed."""

    def __init__(self) -> None:
        self.closed = 0

    def of(self, word: str) -> Any:
        try:
            for letter in word:
                if letter == "!":
                    raise ValueError(word)
                yield letter
        finally:
            self.closed += 1


def test_flat_map() -> None:
    """Values would be lost between two iterables, or an empty one end the flow."""
    letters = Letters()
    lane = FlatMapProcessor(letters.of)
    assert ran(lane, ["ab", "", "c"]) == ["a", "b", "c"]
    assert (lane.made, lane.merged) == (1, 1)
    assert letters.closed == 3


def test_flat_map_reads_what_is_wanted() -> None:
    """An endless iterable would fill the memory."""
    letters = Letters()
    lane = FlatMapProcessor(letters.of)
    assert ran(lane, ["ab" * 1000], limit=3) == ["a", "b", "a"]
    assert letters.closed == 1
    assert lane.made <= 4


def test_flat_map_that_fails_half_way() -> None:
    """What was read before the error would be lost, or the rest of the run."""
    heard: list[str] = []
    letters = Letters()
    lane = FlatMapProcessor(letters.of, on_error=lambda word, _error: heard.append(word))
    assert ran(lane, ["ab!c", "!", "d"]) == ["a", "b", "d"]
    assert (lane.failed, lane.made) == (2, 2)
    assert heard == ["ab!c", "!"]
    with pytest.raises(ValueError, match="ab!"):
        ran(FlatMapProcessor(letters.of), ["ab!c"])
