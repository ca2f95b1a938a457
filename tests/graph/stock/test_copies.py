"""One flow becomes several, each of which gets all values."""

from __future__ import annotations

from typing import Any

from rowlock.graph.stock.carriers import DuplicateProcessor, LimitProcessor, ZipProcessor

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
