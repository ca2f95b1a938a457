"""One flow becomes several: each gets all values, or each value goes one way."""

from __future__ import annotations

from typing import Any

import pytest

from rowlock.graph.processor import EMPTY
from rowlock.graph.stock.branches import (
    DuplicateProcessor,
    LimitProcessor,
    RouteProcessor,
    ZipProcessor,
)

from ..one_thread import Sequential, Wiring


def split_by(processor: Any, items: Any, limits: dict[int, int]) -> tuple[list[Any], Wiring]:
    """Run values through a processor with two outputs, and return what comes out of each."""
    wiring = Wiring()
    found = []
    for at, output in enumerate(wiring.through(processor, wiring.source(items))):
        through = output
        if at in limits:
            (through,) = wiring.through(LimitProcessor(limits[at]), output)
        found.append(wiring.sink(through))
    assert Sequential(wiring.graph).run().is_finished
    return found, wiring


def test_duplicate() -> None:
    """A reader would miss values that another one has got."""
    duplicate = DuplicateProcessor(2)
    found, _ = split_by(duplicate, range(5), {})
    assert found == [list(range(5))] * 2
    assert duplicate.made == 5


def test_duplicate_goes_on_without_a_reader() -> None:
    """One reader that has seen enough would end all others."""
    found, _ = split_by(DuplicateProcessor(2), range(9), {0: 2})
    assert found == [[0, 1], list(range(9))]


def test_duplicate_may_end_together() -> None:
    """Values would be read that only one side of a pair gets."""
    found, wiring = split_by(DuplicateProcessor(2, finishes_together=True), range(1000), {0: 2})
    assert found[0] == [0, 1]
    assert len(found[1]) <= 3
    assert len(wiring.read) <= 2 + len(wiring.graph.edges)


def test_duplicate_ends_without_readers() -> None:
    """A source would be read to its end for no reader."""
    _, wiring = split_by(DuplicateProcessor(2), range(1000), {0: 2, 1: 3})
    assert len(wiring.read) <= 3 + len(wiring.graph.edges)


def test_the_end_is_passed_on_to_those_that_want_nothing_now() -> None:
    """A node that waits for its other input would never hear that this one has ended."""
    wiring = Wiring()
    outputs = wiring.through(DuplicateProcessor(2), wiring.source(range(3)))
    found = wiring.sink(wiring.through(ZipProcessor(2, ahead=1), *outputs)[0])
    assert Sequential(wiring.graph).run().is_finished
    assert found == [(0, 0), (1, 1), (2, 2)]


def test_route() -> None:
    """A value would go both ways, or the wrong one."""
    found, _ = split_by(RouteProcessor(2, lambda value: value % 2), range(6), {})
    assert found == [[0, 2, 4], [1, 3, 5]]


def test_route_drops_what_a_finished_reader_would_get() -> None:
    """A value without a reader would stop the other way, or not be counted."""
    route = RouteProcessor(2, lambda value: value % 2)
    found, _ = split_by(route, range(10), {0: 1})
    assert found == [[0], [1, 3, 5, 7, 9]]
    assert route.dropped == 4


def test_route_ends_without_readers() -> None:
    """A source would be read to its end for no reader."""
    route = RouteProcessor(2, lambda value: value % 2)
    _, wiring = split_by(route, range(1000), {0: 1, 1: 1})
    assert len(wiring.read) <= 2 + len(wiring.graph.edges)
    assert route._item is EMPTY


@pytest.mark.parametrize("choice", [2, "left", None])
def test_a_way_that_is_not_there_is_an_error(choice: Any) -> None:
    """A value would be lost."""
    with pytest.raises((IndexError, TypeError)):
        split_by(RouteProcessor(2, lambda _value: choice), [1], {})


def test_route_says_what_it_works_on_and_waits_for() -> None:
    """An error would not name the value, and a deadlock not the full edge."""
    route = RouteProcessor(2, lambda value: value % 2)
    wiring = Wiring()
    outputs = wiring.through(route, wiring.source([0, 2, 4]))
    for output in outputs:
        wiring.sink(output)
    run = Sequential(wiring.graph)
    run.step()
    assert run.calls[0].processor.subject() == 0
    while others := [at for at, node in enumerate(run.calls) if node.operator != "sink"]:
        run.step(others[0])
    assert route.details() == "waits for output 0"
