"""procrastinate drains jobs that do nothing: ``drain_procrastinate.py DSN ROWS CONCURRENCY`` prints
jobs per second.

Its settings, as its documentation names them: `concurrency` (jobs at once; the default of 1 suits
blocking tasks alone) as large as our number of workers, and `wait=False`, which ends the worker
when the queue is empty. Jobs are deferred in batches. Each is fetched and finished by statements of
its own whatever is set: a larger pool of connections and the deletion of finished jobs
(``delete_jobs``) changed nothing that could be told from noise, so both are left at their defaults.
"""

from __future__ import annotations

import asyncio
import sys
import time

from own_schema import analyze, own_schema
from procrastinate import App, PsycopgConnector

AT_ONCE = 1_000


async def drain(dsn: str, rows: int, concurrency: int) -> float:
    """Return jobs per second from the start of the worker until it has ended, for the queue is
    empty.
    """
    app = App(connector=PsycopgConnector(conninfo=dsn))

    @app.task(name="noop")
    async def noop() -> None:
        pass

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for begin in range(0, rows, AT_ONCE):
            await noop.batch_defer_async(*[{}] * min(AT_ONCE, rows - begin))
        await asyncio.to_thread(analyze, dsn)
        began = time.perf_counter()
        await app.run_worker_async(
            concurrency=concurrency, wait=False, install_signal_handlers=False
        )
        return rows / (time.perf_counter() - began)


if __name__ == "__main__":
    with own_schema(sys.argv[1]) as dsn:
        print(asyncio.run(drain(dsn, int(sys.argv[2]), int(sys.argv[3]))))
