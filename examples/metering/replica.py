"""The process that does the steps, until the example ends."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from loopback.child import next_line

from rowlock import PipelineManager

from .place import opened
from .streams import streams


async def main(folder: Path) -> None:
    """Work on all flows."""
    async with (
        opened(folder) as database,
        PipelineManager(database.session_factory, streams.pipelines()),
    ):
        print("ready", flush=True)
        await next_line()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
