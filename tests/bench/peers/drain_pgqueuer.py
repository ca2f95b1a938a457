"""pgqueuer drains jobs that do nothing: ``drain_pgqueuer.py DSN ROWS BATCH`` prints rows per
second, in its own environment.
"""

from __future__ import annotations

import asyncio
import sys
import time

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

AT_ONCE = 1_000


async def drain(dsn: str, rows: int, batch: int) -> float:
    """Return rows per second from the start of the worker until the queue is empty."""
    connection = await asyncpg.connect(dsn)
    driver = AsyncpgDriver(connection)
    queries = Queries(driver)
    await queries.install()
    try:
        for begin in range(0, rows, AT_ONCE):
            count = min(AT_ONCE, rows - begin)
            await queries.enqueue(["noop"] * count, [None] * count, [0] * count)
        await connection.execute("ANALYZE")
        worker, last = PgQueuer(driver), [0.0]

        @worker.entrypoint("noop")
        async def noop(job: Job) -> None:
            last[0] = time.perf_counter()

        began = time.perf_counter()
        await worker.run(batch_size=batch, mode=QueueExecutionMode.drain)
        return rows / (last[0] - began)
    finally:
        await queries.uninstall()
        await connection.close()


if __name__ == "__main__":
    print(asyncio.run(drain(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
