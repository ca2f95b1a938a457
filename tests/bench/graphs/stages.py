"""Coroutines one after the other, each with so many places, as a host would write them without a
graph: workers between queues, workers between streams of anyio, and operators of aiostream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import anyio
from aiostream import pipe, stream
from anyio.abc import ObjectReceiveStream, ObjectSendStream


class Stage(NamedTuple):
    """What is awaited for each value, and for how many at once."""

    step: Callable[[Any], Awaitable[Any]]
    places: int


_END = object()


class _Queues:
    """Workers with a queue of `size` values before each stage, and one behind the last."""

    def __init__(self, stages: Sequence[Stage], size: int) -> None:
        self._stages = stages
        self._queues = [asyncio.Queue[Any](size) for _ in range(len(stages) + 1)]

    async def run(self, values: Iterable[Any]) -> list[Any]:
        got: list[Any] = []
        async with asyncio.TaskGroup() as group:
            group.create_task(self._feed(values))
            for number in range(len(self._stages)):
                group.create_task(self._stage(number))
            while (value := await self._queues[-1].get()) is not _END:
                got.append(value)
        return got

    async def _feed(self, values: Iterable[Any]) -> None:
        for value in values:
            await self._queues[0].put(value)
        await self._end(0)

    async def _end(self, number: int) -> None:
        readers = self._stages[number].places if number < len(self._stages) else 1
        for _ in range(readers):
            await self._queues[number].put(_END)

    async def _stage(self, number: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._stages[number].places):
                group.create_task(self._work(number))
        await self._end(number + 1)

    async def _work(self, number: int) -> None:
        step, source, target = self._stages[number].step, *self._queues[number : number + 2]
        while (value := await source.get()) is not _END:
            value = await step(value)
            await target.put(value)
            del value


async def through_queues(values: Iterable[Any], stages: Sequence[Stage], *, size: int) -> list[Any]:
    return await _Queues(stages, size).run(values)


async def through_anyio(values: Iterable[Any], stages: Sequence[Stage], *, size: int) -> list[Any]:
    """Return what comes out of workers between memory streams."""
    streams = [anyio.create_memory_object_stream[Any](size) for _ in range(len(stages) + 1)]

    async def feed(target: ObjectSendStream[Any]) -> None:
        async with target:
            for value in values:
                await target.send(value)

    async def work(
        step: Any, source: ObjectReceiveStream[Any], target: ObjectSendStream[Any]
    ) -> None:
        async with source, target:
            async for value in source:
                value = await step(value)  # noqa: PLW2901 - the argument is not kept
                await target.send(value)
                del value

    async with anyio.create_task_group() as group:
        group.start_soon(feed, streams[0][0])
        for stage, ((_, source), (target, _)) in zip(stages, pairwise(streams), strict=True):
            async with source, target:
                for _ in range(stage.places):
                    group.start_soon(work, stage.step, source.clone(), target.clone())
        async with streams[-1][1] as last:
            return [value async for value in last]


async def through_aiostream(values: Iterable[Any], stages: Sequence[Stage]) -> list[Any]:
    line = stream.iterate(values)
    for stage in stages:
        line |= pipe.map(stage.step, ordered=False, task_limit=stage.places)
    async with line.stream() as found:
        return [value async for value in found]
