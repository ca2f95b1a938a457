"""The replica that a hint reaches from another process: ``elsewhere.py URL library|bare``, until
its standard input is closed.

Prints ``ready`` as soon as it listens, then a line for each fresh row that is started: its key, the
time, and how many rows were applied until then. The time is that of the machine's monotonic clock,
which all processes share. `bare` is the shortest way from a notification to a started task: a claim
of one row by the driver alone.
"""

from __future__ import annotations

import asyncio
import sys
import time

import asyncpg
from host import Host, Job, NoOp
from limits import SETTLE_ON_POSTGRESQL, claim_statement, dsn
from measure import until

from rowlock import Apply, PipelineItem, PipelineManager, subscribe
from rowlock.events import Event, ItemApplied

CHANNEL = "bench_pickup"
WORKERS = 20


class Telling(NoOp):
    """Tells of each fresh row that it is started; what was processed before is backlog."""

    applied = 0

    def note(self, event: Event) -> None:
        if isinstance(event, ItemApplied):
            self.applied += 1

    async def process(self, item: PipelineItem[Job]) -> Apply:
        if item.row.last_processed_at is None:
            tell(item.id, self.applied)
        return await super().process(item)


def tell(key: object, applied: int) -> None:
    print(key, time.monotonic(), applied, flush=True)


async def library(host: Host) -> None:
    pipeline = Telling(workers_num=WORKERS)
    subscribe(pipeline.note)
    manager = PipelineManager(host.session_factory, [pipeline], notify=True)
    async with manager:
        await until(lambda: (line := manager.health().notifications) is not None and line.listening)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def bare(host: Host) -> None:
    listening, working = [await asyncpg.connect(dsn(host.engine.url)) for _ in range(2)]
    notified: asyncio.Queue[None] = asyncio.Queue()
    await listening.add_listener(CHANNEL, lambda *_: notified.put_nowait(None))
    claim = claim_statement(is_postgresql=True)

    async def start(key: int) -> None:
        tell(key, 0)

    async def work() -> None:
        while True:
            await notified.get()
            for key, token in await working.fetch(claim, 1):
                await asyncio.create_task(start(key))
                await working.fetch(SETTLE_ON_POSTGRESQL, [key], [token], "settled")

    worker = asyncio.create_task(work())
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    worker.cancel()
    for connection in (listening, working):
        await connection.close()


async def main(url: str, way: str) -> None:
    async with Host.opened(url, empty=False) as host:
        await (library if way == "library" else bare)(host)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
