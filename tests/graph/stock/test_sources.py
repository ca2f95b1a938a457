"""Sources read while values are wanted, and close what they read from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rowlock.graph.stock.carriers import LimitProcessor
from rowlock.graph.stock.sources import IterableSource

from ..one_thread import Sequential, Wiring


def run_limited(source: Any, limit: int) -> list[Any]:
    """Run a source up to a limit, and return what came through."""
    wiring = Wiring()
    (output,) = wiring.through(source)
    (output,) = wiring.through(LimitProcessor(limit), output)
    found = wiring.sink(output)
    assert Sequential(wiring.graph).run().is_finished
    return found


@pytest.mark.parametrize("items", [[1, None, 2], (), iter("ab"), range(3)])
def test_all_values_are_read_in_order(items: Any) -> None:
    """A value would be lost, or None taken for the end."""
    items = list(items)
    assert run_limited(IterableSource(items), 100) == items


def test_nothing_is_read_before_it_is_wanted() -> None:
    """A source would run ahead of the graph, and `items_max` would bound nothing."""
    wiring = Wiring()
    wiring.sink(wiring.source(range(10)))
    run = Sequential(wiring.graph)
    run.step()
    assert wiring.read == [0]
    assert [node.operator for node in run.calls] == ["sink"]


def test_what_is_no_generator_is_not_closed() -> None:
    """A file that the host reads from would be closed under its hands."""

    class Lines:
        was_closed = False

        def __iter__(self) -> Lines:
            return self

        def __next__(self) -> str:
            return "line"

        def close(self) -> None:
            self.was_closed = True

    lines = Lines()
    assert run_limited(IterableSource(lines), 2) == ["line", "line"]
    assert not lines.was_closed


def test_an_iterable_that_cannot_be_opened_is_not_empty() -> None:
    """A source that fails would be taken for one without values."""

    class Broken:
        def __iter__(self) -> Iterator[int]:
            raise StopIteration("not a list")

    with pytest.raises(StopIteration, match="not a list"):
        IterableSource(Broken()).process()


def test_a_read_in_a_thread_may_wait() -> None:
    """A source that waits for a socket would keep a thread from all other calls."""
    assert IterableSource([]).blocks
    assert not IterableSource([], place="loop").blocks
