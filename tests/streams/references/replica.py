"""One of the processes of a reference in its large form, until its input ends."""

from __future__ import annotations

import asyncio
import logging
import sys

from rowlock import PipelineManager

from .large import Layout, opened


async def main(url: str, name: str, *settings: str) -> None:
    # That a lease was lost is a warning.
    logging.getLogger("rowlock").setLevel(logging.CRITICAL)
    given = dict(one.split("=") for one in settings)
    layout = Layout(**{name: int(value) for name, value in given.items()})
    streams, _ = layout.declared(name)
    async with opened(url) as sessions, PipelineManager(sessions, streams.pipelines()):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
