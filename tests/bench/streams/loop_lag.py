"""For how long the event loop is kept from its other tasks.

By the clock, which other processes move, too; and by processor time, of the loop's own thread and
of the whole process between two turns: a thread that keeps the interpreter for itself blocks the
loop as well.

So does Python's garbage collector, which goes through all that the process has made since its
start: it took 60 to 90 ms of one turn. Here it leaves out what was there before, as a host has it
with ``gc.freeze()`` behind its start.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from measure import Figures

TICK_S = 0.001


class LoopLag:
    """The turns of the loop, as a task sees them that asks for one every millisecond."""

    def __init__(self) -> None:
        self._lags_ms: list[float] = []
        self._own_ms: list[float] = []
        self._all_ms: list[float] = []

    async def watch(self) -> None:
        while True:
            began, own, of_all = time.perf_counter(), time.thread_time(), time.process_time()
            await asyncio.sleep(TICK_S)
            self._lags_ms.append((time.perf_counter() - began - TICK_S) * 1e3)
            self._own_ms.append((time.thread_time() - own) * 1e3)
            self._all_ms.append((time.process_time() - of_all) * 1e3)

    @property
    def figures(self) -> Figures:
        by_clock = sorted(self._lags_ms)
        return {
            "loop: p99, ms": by_clock[len(by_clock) * 99 // 100],
            "loop: most, ms": by_clock[-1],
            "loop: most, CPU ms of its thread": max(self._own_ms),
            "loop: most, CPU ms of all": max(self._all_ms),
        }


@asynccontextmanager
async def loop_watched() -> AsyncIterator[LoopLag]:
    gc.collect()
    gc.freeze()
    lag = LoopLag()
    watching = asyncio.create_task(lag.watch())
    try:
        await asyncio.sleep(0.01)
        yield lag
        await asyncio.sleep(2 * TICK_S)
    finally:
        watching.cancel()
        gc.unfreeze()
