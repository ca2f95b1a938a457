"""A flow is read by a loop of the host."""

from __future__ import annotations

import itertools

import pytest

from rowlock.errors import GraphError
from rowlock.graph import Graph, stream_graph


async def test_values_come_as_they_are_read() -> None:
    """A host would have to collect all values before it reads the first."""
    read: list[int] = []

    def numbers() -> itertools.chain[int]:
        return itertools.chain.from_iterable([read.append(one) or one] for one in itertools.count())

    flow = Graph().source(numbers()).map(lambda one: one * one, lanes=3, keep_order=True)
    found = []
    async with stream_graph(flow) as values:
        async for value in values:
            found.append(value)
            if len(found) == 20:
                break
    assert found == [one * one for one in range(20)]
    assert len(read) <= 20 + flow.graph.items_max


async def test_a_flow_is_streamed_once() -> None:
    """Two readers would share the values by chance."""
    flow = Graph().source([1, 2])
    async with stream_graph(flow) as values:
        assert [value async for value in values] == [1, 2]
    with pytest.raises(GraphError, match="has a reader"):
        stream_graph(flow)
