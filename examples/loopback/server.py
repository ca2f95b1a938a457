"""Services of the examples as processes of their own, as on other machines; for their clients, and
for tests that kill them.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1]
START_S_MAX = 30.0
LINES_MAX = 1_000
"""So many lines of its log are remembered."""
_RUNNING = re.compile(r"Uvicorn running on (http://\S+)")


@dataclass
class Server:
    """A server that answers.

    Attributes:
        process: uvicorn's.
        url: where it answers.
        log: what it said last.
    """

    process: asyncio.subprocess.Process
    url: str = ""
    log: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_MAX))

    async def wait_until_it_answers(self) -> None:
        """Wait until it has said where."""
        async with asyncio.timeout(START_S_MAX):
            while not (running := _RUNNING.search(await self._read_line())):
                pass
        self.url = running[1]

    async def kill(self) -> None:
        """End it as ``kill -9`` does: nothing is released, closed or answered."""
        self.process.kill()
        await self.process.wait()

    async def read_log(self) -> None:
        """Read what it says, to its end: a process whose pipe is full stands still."""
        with suppress(EOFError):
            while True:
                await self._read_line()

    async def _read_line(self) -> str:
        assert self.process.stderr is not None
        line = (await self.process.stderr.readline()).decode()
        if not line:
            raise EOFError("the server has ended; it said:\n" + "".join(self.log))
        self.log.append(line)
        return line


@asynccontextmanager
async def served(factory: str, settings: Mapping[str, str]) -> AsyncIterator[Server]:
    """Start a server on a free port, and kill it at the end if it still runs.

    Args:
        factory: what makes the application, as uvicorn names it.
        settings: what the service finds in its environment.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "uvicorn", "--factory", factory, "--app-dir", str(EXAMPLES)),
        *("--host", "127.0.0.1", "--port", "0", "--no-access-log"),
        env=os.environ | settings,
        stderr=asyncio.subprocess.PIPE,
    )
    server = Server(process)
    try:
        await server.wait_until_it_answers()
        reading = asyncio.create_task(server.read_log())
        yield server
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    await reading
