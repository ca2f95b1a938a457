"""A process of the host: ``python replica.py URL FOLDER NAME SPEED``; says ``ready``, and on
SIGTERM ``down`` in the end.

SPEED is that of its clock: with 1 it is right. With 0.25 it never doubts its leases in time, so
that only the guard in the database keeps it from writing what others have taken over.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rowlock import PipelineManager
from rowlock.testing.databases import connect_args
from tests.chaos.host import BatchPipeline, JobPipeline, Traces

GRACE_S = 8.0
CONNECT_S_MAX = 2.0


def slow_down(speed: float) -> None:
    """Let rowlock's clock run at `speed`: what a holder believes of the time, not how long it
    sleeps.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("rowlock.") and hasattr(module, "monotonic"):
            module.monotonic = lambda: time.monotonic() * speed


async def main(url: str, folder: Path, name: str) -> None:
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    driver = make_url(url).get_driver_name()
    options = connect_args(driver, {"application_name": name}, timeout_s=CONNECT_S_MAX)
    options |= {"sslmode": "disable"} if driver == "psycopg" else {"ssl": False}
    engine = create_async_engine(
        url, pool_size=10, pool_timeout=CONNECT_S_MAX, connect_args=options
    )
    traces = Traces(folder / f"{name}.traces")
    manager = PipelineManager(
        async_sessionmaker(engine), [JobPipeline(traces), BatchPipeline(traces)]
    )
    manager.start()
    print("ready", flush=True)
    await stopping.wait()
    await manager.drain(GRACE_S)
    await engine.dispose()
    print("down", flush=True)


if __name__ == "__main__":
    _url, _folder, _name, _speed = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    if float(_speed) != 1:
        slow_down(float(_speed))
    asyncio.run(main(_url, Path(_folder), _name))
