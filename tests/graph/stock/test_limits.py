"""A limit reads no more than it passes on; a buffer holds what it has room for."""

from __future__ import annotations

import itertools

import pytest

from rowlock.graph.stock.carriers import BufferProcessor, LimitProcessor
from rowlock.graph.stock.lanes import MapProcessor

from ..one_thread import Sequential, Wiring


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_limit_ends_an_endless_source(limit: int) -> None:
    """A run would never end, or read far more than it passes on."""
    wiring = Wiring()
    (output,) = wiring.through(MapProcessor(lambda one: one), wiring.source(itertools.count()))
    (output,) = wiring.through(LimitProcessor(limit), output)
    found = wiring.sink(output)
    run = Sequential(wiring.graph).run()
    assert run.is_finished
    assert found == list(range(limit))
    assert len(wiring.read) <= limit + len(wiring.graph.edges)


def test_limit_above_the_number_of_values() -> None:
    """A run would wait for values that do not come."""
    wiring = Wiring()
    found = wiring.sink(wiring.through(LimitProcessor(9), wiring.source("ab"))[0])
    assert Sequential(wiring.graph).run().is_finished
    assert found == ["a", "b"]


def test_limit_reads_nothing_that_is_not_wanted() -> None:
    """The last value would be read, and then wait behind the limit."""
    wiring = Wiring()
    wiring.sink(wiring.through(limit := LimitProcessor(9), wiring.source(range(9)))[0])
    run = Sequential(wiring.graph)
    while at := [at for at, node in enumerate(run.calls) if node.operator == "source"]:
        run.step(at[0])
    assert wiring.read == [0]
    assert limit.details() == "passes 8 more"


def test_buffer_lets_a_source_be_ahead() -> None:
    """A source would wait for each value to be worked on."""
    wiring = Wiring()
    buffer = BufferProcessor(4)
    found = wiring.sink(wiring.through(buffer, wiring.source(range(99)))[0])
    run = Sequential(wiring.graph)
    while at := [at for at, node in enumerate(run.calls) if node.operator == "source"]:
        run.step(at[0])
    # One is in the sink, four are held.
    assert wiring.read == [0, 1, 2, 3, 4]
    assert buffer.details() == "holds 4 of 4"
    run.run()
    assert found == list(range(99))


def test_buffer_drops_what_it_holds_when_nothing_is_wanted() -> None:
    """Values would live as long as the run."""
    wiring = Wiring()
    buffer = BufferProcessor(4)
    (output,) = wiring.through(buffer, wiring.source(range(99)))
    found = wiring.sink(wiring.through(LimitProcessor(2), output)[0])
    run = Sequential(wiring.graph)
    while not run.is_finished:
        sources = [at for at, node in enumerate(run.calls) if node.operator == "source"]
        run.step(sources[0] if sources else 0)
    assert found == [0, 1]
    assert not buffer._held
    assert buffer.dropped > 0
