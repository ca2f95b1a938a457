"""The replicas as the parent sees them: processes that are started, asked, killed and ended, each by its own handle.

They end when their standard input does, so none is left behind, however the parent ends.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rowlock.demo.database import Address
from rowlock.demo.journal import Journal, read_journal

ANSWER_S_MAX = 20.0
"""Longest wait for a replica's answer: its start, or one commit."""
END_S_MAX = 15.0
"""How long a replica may take to end by itself."""
LOG_CHARS_SHOWN = 4000


@dataclass(eq=False)
class ReplicaProcess:
    """One process. `killed`: it was ended by force, whoever did it."""

    number: int
    process: asyncio.subprocess.Process
    files: Path

    def __str__(self) -> str:
        return f"replica {self.number} (pid {self.process.pid})"

    @property
    def journal_path(self) -> Path:
        """Where it notes what it does."""
        return _journal_path(self.files, self.number)

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.process.returncode is None

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended it."""
        return self.process.returncode is not None and self.process.returncode < 0

    def journal(self) -> Journal:
        """Read what it noted so far."""
        return read_journal(self.journal_path)

    def log(self) -> str:
        """Return the end of what it logged."""
        path = _log_path(self.files, self.number)
        return path.read_text(encoding="utf-8", errors="replace")[-LOG_CHARS_SHOWN:].strip() if path.exists() else ""

    async def ask(self, message: object) -> bool:
        """Send one line and wait for its answer; False if the replica is gone, and then nobody knows whether it was done.

        Raises:
            ChildProcessError: there was no answer in time.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                self.process.stdin.write(f"{json.dumps(message)}\n".encode())
                await self.process.stdin.drain()
                return bool(await self.process.stdout.readline())
        except ConnectionError:
            return False
        except TimeoutError:
            raise ChildProcessError(f"{self} gave no answer within {ANSWER_S_MAX:g} s:\n{self.log()}") from None

    def freeze(self) -> None:
        """Stop it between two instructions, where the system can do that."""
        self._signal("SIGSTOP")

    def thaw(self) -> None:
        """Let it go on."""
        self._signal("SIGCONT")

    async def kill(self) -> None:
        """Kill it with -9 and wait until it is gone."""
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def end(self) -> None:
        """Let it finish what it works on and end; by force if it takes too long."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            async with asyncio.timeout(END_S_MAX):
                await self.process.wait()
        except TimeoutError:
            await self.kill()
            raise ChildProcessError(f"{self} did not end within {END_S_MAX:g} s:\n{self.log()}") from None

    def _signal(self, name: str) -> None:
        number = getattr(signal, name, None)
        if number is not None and self.is_alive:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


@asynccontextmanager
async def replicas_on(
    address: Address, folder: Path, *, count: int, files: Path
) -> AsyncIterator[list[ReplicaProcess]]:
    """Start `count` replicas that catalogue `folder`, wait until all are ready, and leave none of them behind.

    Raises:
        ChildProcessError: one did not start.
    """
    replicas: list[ReplicaProcess] = []
    try:
        for number in range(1, count + 1):
            process = await _start(_log_path(files, number))
            replicas.append(ReplicaProcess(number, process, files))
        setup = {"url": address.url, "schema": address.schema, "folder": str(folder)}
        messages = [setup | {"journal": str(_journal_path(files, replica.number))} for replica in replicas]
        answers = await asyncio.gather(*map(ReplicaProcess.ask, replicas, messages))
        for replica in (replica for replica, ready in zip(replicas, answers, strict=True) if not ready):
            await replica.end()
            if not replica.was_killed:
                raise ChildProcessError(f"{replica} did not start:\n{replica.log()}")
        yield replicas
    finally:
        for replica in replicas:
            if replica.is_alive:
                await replica.kill()


async def _start(log_path: Path) -> asyncio.subprocess.Process:
    with log_path.open("wb") as log:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rowlock.demo.replica"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the parent, who ends the others in order
        )


def _journal_path(files: Path, number: int) -> Path:
    return files / f"replica-{number}.journal"


def _log_path(files: Path, number: int) -> Path:
    return files / f"replica-{number}.log"
