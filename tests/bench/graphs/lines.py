"""Five plain functions one after the other: a graph, and what a host would write instead.

A graph and the queues pass value by value; an executor is given one function after the other with
all values. Each way returns how many values came out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import anyio
from aiostream import pipe, stream
from anyio.abc import ObjectReceiveStream, ObjectSendStream

from rowlock.graph import Graph, run_graph
from rowlock.graph.processor import Place

Function = Callable[[Any], Any]

FUNCTIONS = 5
THREADS = 2
_END = object()


async def through_graph(values: Sequence[Any], function: Function, *, on: Place) -> int:
    graph, got = Graph(), list[Any]()
    flow = graph.source(values)
    for _ in range(FUNCTIONS):
        flow = flow.map(function, on=on)
    flow.sink(got.append, on=on)
    await run_graph(graph, threads=THREADS)
    return len(got)


async def through_one_operator(values: Sequence[Any], function: Function) -> int:
    """Pass values through one operator of a graph, which calls all five functions."""

    def all_five(value: Any) -> Any:
        for _ in range(FUNCTIONS):
            value = function(value)
        return value

    graph, got = Graph(), list[Any]()
    graph.source(values).map(all_five, on="loop").sink(got.append, on="loop")
    await run_graph(graph)
    return len(got)


async def through_queues(values: Sequence[Any], function: Function, *, size: int) -> int:
    """Pass values through five workers, with a queue of `size` values before each."""
    queues = [asyncio.Queue[Any](size) for _ in range(FUNCTIONS + 1)]
    got: list[Any] = []

    async def feed() -> None:
        for value in values:
            await queues[0].put(value)
        await queues[0].put(_END)

    async def work(source: asyncio.Queue[Any], target: asyncio.Queue[Any]) -> None:
        while (value := await source.get()) is not _END:
            await target.put(function(value))
        await target.put(_END)

    async def collect() -> None:
        while (value := await queues[-1].get()) is not _END:
            got.append(value)

    async with asyncio.TaskGroup() as group:
        group.create_task(feed())
        for source, target in pairwise(queues):
            group.create_task(work(source, target))
        group.create_task(collect())
    return len(got)


async def through_anyio(values: Sequence[Any], function: Function, *, size: int) -> int:
    """Pass values through five workers, with a memory stream of `size` values before each."""
    streams = [anyio.create_memory_object_stream[Any](size) for _ in range(FUNCTIONS + 1)]
    got: list[Any] = []

    async def feed(target: ObjectSendStream[Any]) -> None:
        async with target:
            for value in values:
                await target.send(value)

    async def work(source: ObjectReceiveStream[Any], target: ObjectSendStream[Any]) -> None:
        async with source, target:
            async for value in source:
                await target.send(function(value))

    async with anyio.create_task_group() as group:
        group.start_soon(feed, streams[0][0])
        for (_, source), (target, _) in pairwise(streams):
            group.start_soon(work, source, target)
        async with streams[-1][1] as last:
            got += [value async for value in last]
    return len(got)


async def through_aiostream(values: Sequence[Any], function: Function) -> int:
    """Pass values through five operators of aiostream, which one task pulls them through."""
    line = stream.iterate(values)
    for _ in range(FUNCTIONS):
        line |= pipe.map(function)
    return len(await _all_of(line.stream()))


async def through_executor(values: Sequence[Any], function: Function) -> int:
    """Have an executor map one function after the other over all values."""

    def work() -> int:
        found: Sequence[Any] = values
        with ThreadPoolExecutor(THREADS) as pool:
            for _ in range(FUNCTIONS):
                found = list(pool.map(function, found))
        return len(found)

    return await asyncio.to_thread(work)


async def _all_of(streamer: Any) -> list[Any]:
    async with streamer as found:
        values: AsyncIterator[Any] = found
        return [value async for value in values]
