"""Two replicas, each a process of its own, together against one."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from host import Host, Job
from measure import Figures, Place, Scale
from sqlalchemy import func, select

REPLICA = Path(__file__).with_name("replica.py")
LOOK_S = 0.1


async def replicas(place: Place, scale: Scale) -> Figures:
    """Return rows per second of one and of two processes with 100 workers each."""
    counts = (2, 1) if scale.limit_first else (1, 2)
    rates = {count: await _drained_by(place, count, rows=scale.rows) for count in counts}
    return {"one, rows/s": rates[1], "two, rows/s": rates[2], "two / one": rates[2] / rates[1]}


async def _drained_by(place: Place, count: int, *, rows: int) -> float:
    async with Host.opened(place.url) as host:
        await host.add(rows)
        processes = [await _start(place) for _ in range(count)]
        try:
            began = time.monotonic()
            for process in processes:
                assert process.stdin is not None
                process.stdin.write(b"go\n")
            while await _unsettled(host):  # noqa: ASYNC110 - other processes settle them
                await asyncio.sleep(LOOK_S)
            for process in processes:
                assert process.stdin is not None
                process.stdin.close()
            ends = [float((await process.communicate())[0]) for process in processes]
        finally:
            for process in processes:
                if process.returncode is None:
                    process.kill()
    return rows / (max(ends) - began)


async def _start(place: Place) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(REPLICA),
        place.url,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def _unsettled(host: Host) -> bool:
    async with host.session_factory() as session:
        return bool(await session.scalar(select(func.count()).where(Job.status == "submitted")))
