"""Looks at a dashboard: ``python viewer.py PORT VIEWERS``. Holds a stream for each viewer open and
asks for one page after the other, until its input ends; then prints how long each page took, in
milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress

STREAMS = ("pipelines", "replicas")
"""What is looked at, in turns."""
PAGES = ("/", "/pipelines/Counting/rows?state=due", "/pipelines/Counting", "/replicas")
REST_S = 0.05
"""Between two pages."""


async def asked(port: int, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for a page, and return what reads it behind its first line."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode())
    status = await reader.readline()
    assert b" 200 " in status, (path, status)
    return reader, writer


async def look(number: int, port: int, is_open: asyncio.Event) -> None:
    while True:
        reader, writer = await asked(port, f"/live/{STREAMS[number % len(STREAMS)]}")
        is_open.set()
        while await reader.read(65_536):
            pass
        writer.close()


async def turn_pages(port: int, times: list[float]) -> None:
    while True:
        for path in PAGES:
            began = time.perf_counter()
            reader, writer = await asked(port, path)
            await reader.read()
            times.append((time.perf_counter() - began) * 1000)
            writer.close()
            await asyncio.sleep(REST_S)


async def main(port: int, viewers: int) -> None:
    opened = [asyncio.Event() for _ in range(viewers)]
    tasks = [
        asyncio.create_task(look(number, port, is_open)) for number, is_open in enumerate(opened)
    ]
    for is_open in opened:
        await is_open.wait()
    print("open", flush=True)
    times: list[float] = []
    tasks.append(asyncio.create_task(turn_pages(port, times)))
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    for task in tasks:
        # The server may have ended first.
        with suppress(asyncio.CancelledError, OSError):
            await task
    print(json.dumps(times))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
