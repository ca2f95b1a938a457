"""A replica of the flow in another process: ``python elsewhere.py URL OPTIONS``, until its standard
input is closed.

It prints ``ready`` when its shards are open, then the time of each step that it has written, by the
machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from measure import POSTGRESQL, Place, until
from streams.event_host import EventHost

from rowlock import PipelineManager, pipeline_hinter

ANSWER_S_MAX = 60.0


class FlowElsewhere:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def step_after(self, at: float) -> float:
        """Return when the first step was written behind the time `at`."""
        assert self._process.stdout is not None
        while True:
            async with asyncio.timeout(ANSWER_S_MAX):
                told = await self._process.stdout.readline()
            if float(told) > at:
                return float(told)

    def kill(self) -> None:
        self._process.kill()


@asynccontextmanager
async def flow_elsewhere(place: Place, **options: Any) -> AsyncIterator[FlowElsewhere]:
    """Run the flow in another process, whose shards are open when this is entered."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        place.url,
        json.dumps(options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield FlowElsewhere(process)
        process.stdin.close()
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def work(url: str, options: dict[str, Any]) -> None:
    async with EventHost.opened(Place(POSTGRESQL, url), empty=False, **options) as host:
        manager = PipelineManager(host.sessions, host.streams.pipelines(), notify=True)
        async with manager:
            await until(lambda: (at := manager.health().notifications) is not None and at.listening)
            await host.wait_until_done()
            if host.balances is not None:
                # Those who wait for results know no manager.
                pipeline_hinter.attach(host.balances.topic, _tell)
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.read)


def _tell() -> None:
    print(time.monotonic(), flush=True)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], json.loads(sys.argv[2])))
