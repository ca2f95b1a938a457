"""Sources read while values are wanted, and close what they read from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from rowlock.graph.processor import NodeStatus
from rowlock.graph.stock.branches import LimitProcessor
from rowlock.graph.stock.sources import AsyncSource, IterableSource

from ..one_thread import Sequential, Wiring


class Generated:
    """Generators that note how often they were closed."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.closed = 0

    def values(self) -> Iterator[int]:
        try:
            yield from range(self.count)
        finally:
            self.closed += 1

    async def async_values(self) -> AsyncIterator[int]:
        try:
            for number in range(self.count):
                yield number
        finally:
            self.closed += 1


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


@pytest.mark.parametrize("limit", [0, 3, 10, 11])
def test_generator_is_closed_once(limit: int) -> None:
    """A file would stay open, or be closed while it is read."""
    generated = Generated(10)
    assert run_limited(IterableSource(generated.values()), limit) == list(range(min(limit, 10)))
    assert generated.closed == (limit > 0)


@pytest.mark.parametrize("limit", [0, 3, 10, 11])
def test_asynchronous_generator_is_closed_once(limit: int) -> None:
    """A connection would stay open, or be closed by the collector in another task."""
    generated = Generated(10)
    found = run_limited(AsyncSource(generated.async_values()), limit)
    assert found == list(range(min(limit, 10)))
    assert generated.closed == (limit > 0)


def test_the_run_closes_what_is_being_read() -> None:
    """A run that ends early would leave the generator to the collector."""
    generated = Generated(10)
    source = IterableSource(generated.values())
    assert source.closing() is None
    source.process()
    assert source.closing() is NodeStatus.SYNC
    source.close()
    assert (generated.closed, source.closing()) == (1, None)


async def test_the_run_closes_what_is_being_awaited() -> None:
    """A run that ends early would leave the generator to the collector."""
    generated = Generated(10)
    source = AsyncSource(generated.async_values())
    await source.async_process()
    assert source.closing() is NodeStatus.ASYNC
    await source.async_close()
    assert (generated.closed, source.closing()) == (1, None)


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


def test_nothing_is_kept_after_the_run() -> None:
    """The graph would keep what it has read from alive."""
    source = IterableSource(iter([1]))
    source.process()
    source.clear()
    assert source.closing() is None
