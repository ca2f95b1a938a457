"""How fast a backlog is worked off."""

from __future__ import annotations

import asyncio
import time

from host import Host, Job, NoOp, Watch

from rowlock import PipelineManager, subscribe


async def drain(host: Host, *, rows: int, workers: int) -> dict[str, float]:
    """Return rows per second from the start of the manager until the last outcome is committed."""
    await host.add([Job() for _ in range(rows)])
    watch = Watch(time.perf_counter)
    done = asyncio.Event()

    def note(event: object) -> None:
        watch(event)
        if watch.applied == rows:
            done.set()

    unsubscribe = subscribe(note)
    began = time.perf_counter()
    try:
        async with PipelineManager(host.session_factory, [NoOp(workers_num=workers)]):
            await done.wait()
            seconds = time.perf_counter() - began
    finally:
        unsubscribe()
    return {"rows/s": rows / seconds}
