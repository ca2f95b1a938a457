"""Skew and size: one key that has most events, a transaction of a million, long keys, large states,
very many shards and replicas. What the process takes in memory, and for how long its event loop is
blocked.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psutil
from measure import Figures, Place, Scale
from meter import Meter
from sqlalchemy import insert
from streams.drains import Drained, named
from streams.event_host import APPENDED_AT_ONCE, EventHost, Payment, payments_of
from streams.loop_lag import loop_watched

from rowlock import PipelineManager
from rowlock.streams.computing.hashing import KEY_CHARS_MAX

KEYS = 1_000_000
REPLICAS = 64
SHARDS = 1_024
STATE_CHARS = 1_000_000
PEAK_EVERY_S = 0.005


class Peak:
    """The most that the process has in memory, as a thread sees it that looks all the time."""

    def __init__(self) -> None:
        self._process, self._over = psutil.Process(), threading.Event()
        self._before = self._most = self._process.memory_info().rss

    def watch(self) -> None:
        while not self._over.wait(PEAK_EVERY_S):
            self._most = max(self._most, self._process.memory_info().rss)

    def end(self) -> Figures:
        """Look no more; return how much it grew at most, and how much that was in all."""
        self._over.set()
        grown, of_all = (self._most - self._before) / 1e6, self._most / 1e6
        return {"MB at the peak": grown, "MB at the peak, in all": of_all}


async def skewed(place: Place, scale: Scale) -> Figures:
    """Return what events of a million keys cost of which one has 60 %."""
    count = scale.pick(200_000, 10_000)
    payments = payments_of(count, keys=scale.pick(KEYS, 10_000), zipf=2.0)
    most = sum(one.account == "account-0" for one in payments) / count
    async with EventHost.opened(place) as host, host.running():
        await host.append_behind_pause(payments)
        figures = await _worked_off(host, count)
    return {"share of the first key": most} | figures


async def one_transaction(place: Place, scale: Scale) -> Figures:
    """Return what a transaction costs that adds a million events, and the steps that follow."""
    count = scale.pick(1_000_000, 20_000)
    payments = payments_of(count)
    async with EventHost.opened(place, database_timeout=120) as host, host.running():
        async with host.sessions.begin() as session:
            await host.flow.pause(session)
        async with _observed() as added:
            await _append_at_once(host, payments)
        added_s = added.pop("s")
        figures = await _worked_off(host, count)
    return {"appended, s": added_s, **named("append", added), **figures}


async def large(place: Place, scale: Scale) -> Figures:
    """Return what keys of 255 characters cost, and states of nearly 1 MiB that are written with
    every event of theirs.
    """
    figures: Figures = {}
    count = scale.pick(50_000, 2_000)
    long = [
        Payment(one.account.ljust(KEY_CHARS_MAX, "."), one.cents, one.shop)
        for one in payments_of(count)
    ]
    async with EventHost.opened(place) as host, host.running():
        await host.append_behind_pause(long)
        figures |= named("long keys", await _worked_off(host, count))
    count = scale.pick(200, 40)
    async with EventHost.opened(place, state_chars=STATE_CHARS) as host, host.running():
        await host.append_behind_pause(payments_of(count, keys=20, zipf=None))
        figures |= named("states of 1 MB", await _worked_off(host, count))
    return figures


async def many_shards(place: Place, scale: Scale) -> Figures:
    """Return what 1,024 shards cost in one replica: their start, a step of a few rows, and a look
    around beside 64 replicas.
    """
    async with EventHost.opened(place, shards=SHARDS) as host:
        async with _observed() as begun, host.running():
            pass
        async with host.running():
            await host.append_behind_pause(payments_of(scale.pick(20_000, 2_000)))
            figures = await _worked_off(host, scale.pick(20_000, 2_000))
        await _add_replicas(host)
        pipelines = host.streams.pipelines()
        async with _observed() as beside, PipelineManager(host.sessions, pipelines):
            await _until_some_are_held(host)
    return {
        **named("until all are open, and back", begun),
        **named("steps", figures),
        **named(f"start beside {REPLICAS} replicas", beside),
    }


async def _append_at_once(host: EventHost, payments: Sequence[Payment]) -> None:
    async with host.sessions.begin() as session:
        for begin in range(0, len(payments), APPENDED_AT_ONCE):
            await host.log.append(session, payments[begin : begin + APPENDED_AT_ONCE])


async def _worked_off(host: EventHost, count: int) -> Figures:
    meter = await Meter.on(host.engine)
    async with _observed() as figures:
        await host.work_off(meter)
    del figures["s"]
    return Drained.of(meter, count).figures | figures


async def _until_some_are_held(host: EventHost) -> None:
    shards = host.streams.tables.shards
    while True:
        async with host.sessions() as session:
            if (
                await session.execute(shards.select().where(shards.c.lock_token.is_not(None)))
            ).first():
                return
        await asyncio.sleep(0.01)


async def _add_replicas(host: EventHost) -> None:
    replicas, flows = host.streams.tables.replicas, host.streams.tables.flows
    later = datetime.now(UTC) + timedelta(days=1)
    async with host.engine.begin() as connection:
        flow_id = (await connection.execute(flows.select())).one().id
        rows = [
            {
                "flow_id": flow_id,
                "id": uuid4(),
                "name": f"other-{n}",
                "code_version": "",
                "shards": SHARDS // REPLICAS,
                "started_at": later,
                "seen_at": later,
            }
            for n in range(REPLICAS)
        ]
        await connection.execute(insert(replicas), rows)


@asynccontextmanager
async def _observed() -> AsyncIterator[Figures]:
    """Give figures of memory and of the loop, which are there behind the block."""
    figures: Figures = {}
    peak, began = Peak(), time.perf_counter()
    thread = threading.Thread(target=peak.watch)
    thread.start()
    try:
        async with loop_watched() as lag:
            yield figures
            figures["s"] = time.perf_counter() - began
    finally:
        grown = peak.end()
        thread.join()
    figures.update(grown)
    figures.update(lag.figures)
