"""One replica: works until no document is new, then prints what its graph did."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from httpx import AsyncClient
from loopback.database import opened

from rowlock import PipelineManager

from .pipeline import Ingest
from .tables import count

POLL_S = 0.05


async def work(name: str, url: str, folder: Path) -> None:
    """Begin when a line comes in."""
    journal = str(folder / f"{name}.journal")
    async with AsyncClient(trust_env=False) as http, opened(url) as sessions:
        pipeline = Ingest(name, http, sessions, journal=journal)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        async with PipelineManager(sessions, [pipeline]):
            while await count(sessions, "new"):  # noqa: ASYNC110  # others write it, too
                await asyncio.sleep(POLL_S)
        print(pipeline.graph.text())
        print(pipeline.graph_statistics().table())
        print(f"bottleneck: {pipeline.graph_statistics().bottleneck}")


def main() -> None:
    """Be the replica that the command line names."""
    # A page that is missing is an error: logged with its traceback, and tried again.
    logging.getLogger("rowlock").setLevel(logging.CRITICAL)
    name, url, folder = sys.argv[1:]
    asyncio.run(work(name, url, Path(folder)))
