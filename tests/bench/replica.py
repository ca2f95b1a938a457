"""One replica of the bench: works when told to on its standard input, until that is closed; prints
when it applied its last row.

The time is that of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import asyncio
import sys
import time

from host import Host, NoOp

from rowlock import PipelineManager, subscribe
from rowlock.events import Event, ItemApplied


async def work(url: str) -> None:
    last = 0.0

    def note(event: Event) -> None:
        nonlocal last
        if isinstance(event, ItemApplied):
            last = time.monotonic()

    async with Host.opened(url, empty=False) as host:
        subscribe(note)
        async with host.engine.connect():
            print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        async with PipelineManager(host.session_factory, [NoOp(workers_num=100)]):
            await asyncio.to_thread(sys.stdin.read)
    print(last)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
