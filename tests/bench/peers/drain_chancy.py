"""chancy drains jobs that do nothing: ``drain_chancy.py DSN ROWS CONCURRENCY`` prints jobs per
second, in its own environment.

Its settings, as its documentation names them: the executor for asyncio; `eager_polling`, without
which it fetches `concurrency` jobs per polling interval and not more (some 500 jobs/s); outcomes
written ten times a second (`send_outgoing_interval`; with its default of one second, most of a
short drain is waiting for the last of them). It is at its fastest with 1,000 jobs at once.
`no_default_plugins` takes half of the work away, and with it metrics, workflows and the recovery of
jobs whose worker died.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time

from chancy import Chancy, Queue, QueuedJob, Worker, job
from chancy.plugin import Plugin
from own_schema import analyze, own_schema

SEND_EVERY_S = 0.1


@job()
async def noop() -> None:
    """Do nothing."""


class Committed(Plugin):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.left, self.done = rows, asyncio.Event()

    @staticmethod
    def get_identifier() -> str:
        return "bench.committed"

    async def on_job_updated(self, *, worker: Worker, job: QueuedJob) -> None:
        self.left -= 1
        if not self.left:
            self.done.set()


async def drain(dsn: str, rows: int, concurrency: int) -> float:
    """Return jobs per second from the start of the worker until the last outcome is committed."""
    committed, log = Committed(rows), logging.getLogger("bench")
    log.setLevel(logging.WARNING)  # by default each job is logged
    queue = Queue(
        "default", concurrency=concurrency, executor=Chancy.Executor.Async, eager_polling=True
    )
    async with Chancy(dsn, plugins=[committed], log=log, no_default_plugins=True) as chancy:
        await chancy.migrate()
        await chancy.declare(queue)
        async for _ in chancy.push_many([noop] * rows):
            pass
        await asyncio.to_thread(analyze, dsn)
        worker = Worker(chancy, register_signal_handlers=False)
        worker.send_outgoing_interval = SEND_EVERY_S
        began = time.perf_counter()
        async with worker:
            await committed.done.wait()
            return rows / (time.perf_counter() - began)


if __name__ == "__main__":
    with own_schema(sys.argv[1]) as dsn:
        print(asyncio.run(drain(dsn, int(sys.argv[2]), int(sys.argv[3]))))
