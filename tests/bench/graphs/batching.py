"""Calls of 20 ms that are shared by up to 32 values, two calls at once: 80 callers of a standing
graph, of plain code that shares nothing, and of a batcher as a host would write it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from graphs.costs import Way, costs_of, per_value, rate_ratios, rates
from measure import Figures, Place, Scale

from rowlock.graph import Flow, StandingGraph

CALL_S, SIZE, AT_ONCE = 0.02, 32, 2
WITHIN_S = 0.02
CALLERS = 80
PLAIN_SHARE = 10
"""The plain way takes so many fewer values, since each costs a call."""


async def shared_call(values: Sequence[int]) -> list[int]:
    await asyncio.sleep(CALL_S)
    return [2 * value for value in values]


async def batching(place: Place, scale: Scale) -> Figures:
    """Return values per second through shared calls, and processor time per value."""
    del place
    each = scale.pick(50, 10)
    ways: dict[str, Way] = {
        "graph": partial(_through_graph, each),
        "batcher by hand": partial(_through_batcher, each),
        "plain": partial(_plain, each // PLAIN_SHARE),
    }
    costs = await costs_of(ways, scale)
    count, few = each * CALLERS, each // PLAIN_SHARE * CALLERS
    many = {name: cost for name, cost in costs.items() if name != "plain"}
    plain = {"plain": costs["plain"]}
    figures = rates(many, count) | rates(plain, few)
    figures |= per_value(many, count) | per_value(plain, few)
    of_plain = figures["graph, values/s"] / figures["plain, values/s"]
    return (
        figures | rate_ratios(costs, [("graph", "batcher by hand")]) | {"graph / plain": of_plain}
    )


async def _all_callers(each: int, submit: Callable[[int], Awaitable[int]]) -> None:
    async def call(first: int) -> None:
        for value in range(first, first + each):
            assert await submit(value) == 2 * value

    async with asyncio.TaskGroup() as group:
        for number in range(CALLERS):
            group.create_task(call(number * each))


async def _through_graph(each: int) -> None:
    def build(flow: Flow[int]) -> Flow[int]:
        return flow.amap_batch(shared_call, size=SIZE, within=WITHIN_S, lanes=AT_ONCE)

    async with StandingGraph(build) as standing:
        await _all_callers(each, standing.submit)


async def _plain(each: int) -> None:
    places = asyncio.Semaphore(AT_ONCE)

    async def submit(value: int) -> int:
        async with places:
            return (await shared_call([value]))[0]

    await _all_callers(each, submit)


async def _through_batcher(each: int) -> None:
    """Collect in one task, and call in others; an error or a cancelled caller would spoil it."""
    queue: asyncio.Queue[tuple[int, asyncio.Future[int]]] = asyncio.Queue()
    places, calls = asyncio.Semaphore(AT_ONCE), set[Any]()

    async def submit(value: int) -> int:
        answer = asyncio.get_running_loop().create_future()
        queue.put_nowait((value, answer))
        return int(await answer)

    async def call(batch: list[tuple[int, asyncio.Future[int]]]) -> None:
        try:
            results = await shared_call([value for value, _ in batch])
        finally:
            places.release()
        for (_, answer), result in zip(batch, results, strict=True):
            answer.set_result(result)

    async def collect() -> None:
        while True:
            await places.acquire()
            batch = [await queue.get()]
            try:
                async with asyncio.timeout(WITHIN_S):
                    while len(batch) < SIZE:
                        batch.append(await queue.get())
            except TimeoutError:
                pass
            task = asyncio.create_task(call(batch))
            calls.add(task)
            task.add_done_callback(calls.discard)

    collecting = asyncio.create_task(collect())
    try:
        await _all_callers(each, submit)
    finally:
        collecting.cancel()
