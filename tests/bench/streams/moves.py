"""How long shards stand still when they move: to a new replica, back from one that ends, and away
from one that was killed.

Each shard has one account, which gets an event every few milliseconds; the time between two calls
of its handler is what its consumers would see.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count, pairwise
from typing import Any

from measure import Figures, Place, Scale
from sqlalchemy import func, select
from streams.elsewhere import flow_elsewhere
from streams.event_host import EventHost, Payment

from rowlock import PipelineManager
from rowlock.streams.computing.hashing import BUCKETS, bucket_of

SHARDS = 16
FEED_EVERY_S = 0.02
LOCK_TIMEOUT_S = 6.0
FETCH_DELAY_S = 0.5
FLOW: dict[str, Any] = {
    "shards": SHARDS,
    "lock_timeout": LOCK_TIMEOUT_S,
    "fetch_delays": (FETCH_DELAY_S,),
}


class Calls:
    """When the handler was called for each account, whichever replica called it."""

    def __init__(self) -> None:
        self._times: defaultdict[str, list[float]] = defaultdict(list)

    def note(self, account: str) -> None:
        self._times[account].append(time.monotonic())

    def gaps_ms(self, since: float, until: float) -> list[float]:
        """Return the longest time without a call, of each account, in milliseconds."""
        found = []
        for times in self._times.values():
            own = [at for at in times if since <= at <= until]
            gaps = (later - earlier for earlier, later in pairwise([since, *own, until]))
            found.append(max(gaps) * 1e3)
        return found

    def last_of_first(self, since: float) -> float | None:
        """Return when the last account was called for the first time behind `since`; None if one
        has not been.
        """
        firsts = [
            min((at for at in times if at > since), default=None) for times in self._times.values()
        ]
        return None if None in firsts else max(at for at in firsts if at is not None)


async def handover(place: Place, scale: Scale) -> Figures:
    """Return for how long a shard stands still that a new replica takes, and that comes back,
    beside steps without a move.
    """
    steady_s = scale.pick(3, 1)
    calls = Calls()
    async with _watched(place, calls) as first, _running(first), _feeding(first):
        await asyncio.sleep(1)
        began = time.monotonic()
        await asyncio.sleep(steady_s)
        moving = time.monotonic()
        async with _watched(place, calls, empty=False) as second:
            async with _running(second):
                await _until_shared(first, replicas=2)
                await asyncio.sleep(0.5)
                ending = time.monotonic()
            await _until_shared(first, replicas=1)
            await asyncio.sleep(0.5)
            ended = time.monotonic()
    steady = calls.gaps_ms(began, moving)
    return {
        "steady: longest gap, median ms": statistics.median(steady),
        **_gaps("to a new replica", calls.gaps_ms(moving, ending)),
        **_gaps("back from one that ends", calls.gaps_ms(ending, ended)),
        "s until shared": ending - moving,
    }


async def recovery(place: Place, scale: Scale) -> Figures:
    """Return how long the shards of a process stand still that is killed."""
    del scale
    calls = Calls()
    async with (
        _watched(place, calls) as host,
        _running(host),
        _feeding(host),
        flow_elsewhere(place, **FLOW) as other,
    ):
        await _until_shared(host, replicas=2)
        await asyncio.sleep(1)
        killed = time.monotonic()
        other.kill()
        while (last := calls.last_of_first(killed)) is None:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    return {
        "s": last - killed,
        "lock_timeout + fetch delay, s": LOCK_TIMEOUT_S + FETCH_DELAY_S,
        "of these": (last - killed) / (LOCK_TIMEOUT_S + FETCH_DELAY_S),
    }


@asynccontextmanager
async def _watched(place: Place, calls: Calls, *, empty: bool = True) -> AsyncIterator[EventHost]:
    async with EventHost.opened(place, empty=empty, **FLOW) as host:
        host.on_call = calls.note
        yield host


@asynccontextmanager
async def _running(host: EventHost) -> AsyncIterator[None]:
    async with PipelineManager(host.sessions, host.streams.pipelines(), notify=host.is_postgresql):
        yield


@asynccontextmanager
async def _feeding(host: EventHost) -> AsyncIterator[None]:
    accounts = list(_account_of_each_shard())

    async def feed() -> None:
        while True:
            await host.append([Payment(account, 1, "s") for account in accounts])
            await asyncio.sleep(FEED_EVERY_S)

    feeding = asyncio.create_task(feed())
    try:
        yield
    finally:
        feeding.cancel()
        await asyncio.wait({feeding})


def _account_of_each_shard() -> Iterator[str]:
    width, found = BUCKETS // SHARDS, set[int]()
    for number in count():
        account = f"account-{number}"
        shard = bucket_of(account) // width
        if shard not in found:
            found.add(shard)
            yield account
        if len(found) == SHARDS:
            return


async def _until_shared(host: EventHost, *, replicas: int) -> None:
    shards = host.streams.tables.shards
    found = select(func.count(shards.c.replica.distinct()), func.count(shards.c.lock_token))
    while True:
        async with host.sessions() as session:
            holders, held = (await session.execute(found)).one()
        if holders == replicas and held == SHARDS:
            return
        await asyncio.sleep(0.02)


def _gaps(name: str, gaps_ms: list[float]) -> Figures:
    return {f"{name}: median ms": statistics.median(gaps_ms), f"{name}: most ms": max(gaps_ms)}
