"""One of the processes that count, until the example ends."""

from __future__ import annotations

import asyncio
import logging
import sys

from loopback.child import next_line
from loopback.database import opened

from rowlock import PipelineManager

from .streams import streams


async def main(url: str) -> None:
    """Work on all flows."""
    # That a lease was lost while the process was frozen is a warning.
    logging.getLogger("rowlock").setLevel(logging.CRITICAL)
    async with opened(url) as sessions, PipelineManager(sessions, streams.pipelines()):
        print("ready", flush=True)
        await next_line()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
