"""Processes that an example starts: it talks to them by lines, freezes them and kills them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1]


class Child:
    """A process of an example, as the one that started it sees it.

    Attributes:
        process: the process itself.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        """Return the next line that it prints.

        Raises:
            EOFError: it has ended.
        """
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise EOFError(f"a process has ended with {await self.process.wait()}")
        return line.decode().rstrip()

    def tell(self, line: str) -> None:
        """Let it read a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    def freeze(self) -> None:
        """Let it do nothing until `thaw`, as a machine does that is paused."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on where it stood."""
        self.process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        """End it as ``kill -9`` does: nothing is released, closed or written."""
        self.process.kill()
        await self.process.wait()

    async def end(self) -> list[str]:
        """Close its input, wait for its end, and return what it still printed."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        output, _ = await self.process.communicate()
        return output.decode().splitlines()


@asynccontextmanager
async def started(module: str, *arguments: str) -> AsyncIterator[Child]:
    """Run a module of the examples in a process of its own; it is killed at the end of the block if
    it still runs.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        cwd=EXAMPLES,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Child(process)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def next_line() -> str:
    """Return what the example tells this process; nothing at the end."""
    line: str = await asyncio.to_thread(sys.stdin.readline)
    return line.strip()
