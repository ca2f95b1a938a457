"""The replicas: processes, each behind a proxy of its own, killed, frozen, thawed and shut down.

Not here: when (``monkey.py``).
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import URL

from .proxy import Proxy

SPEEDS = (1.0, 1.0, 0.25)
"""Of the replicas' clocks: one of them never doubts its leases in time."""
START_S_MAX = 240.0
DOWN_S_MAX = 240.0
"""How long a replica may take to start, and to end once told to: its grace, and a few waits on a
database that is away.
"""


@dataclass(eq=False)
class Replica:
    """One process.

    Attributes:
        name: of the process, its log and its traces.
        speed: of its clock.
        proxy: through which it reaches the server.
        process: the process itself.
        frozen: from when to when it was frozen, by the machine's monotonic clock.
    """

    name: str
    speed: float
    proxy: Proxy
    process: asyncio.subprocess.Process
    frozen: list[tuple[float, float]] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self.proxy.stop()
        # The pipes' transports close a step after the end of the process.
        self.process._transport.close()  # type: ignore[attr-defined]

    async def freeze(self, seconds: float) -> None:
        """Stop it in the middle of whatever it does, and let it go on after a while."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGSTOP)
        began = time.clock_gettime(time.CLOCK_MONOTONIC)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.frozen.append((began, time.clock_gettime(time.CLOCK_MONOTONIC)))
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)

    async def shut_down(self) -> bool:
        """Tell it to end, and return whether it did so, cleanly and in time; then it is gone in
        any case.
        """
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            async with asyncio.timeout(DOWN_S_MAX):
                return await self._says("down") and await self.process.wait() == 0
        except TimeoutError:
            return False
        finally:
            await self.kill()

    async def wait_until_ready(self) -> None:
        async with asyncio.timeout(START_S_MAX):
            assert await self._says("ready"), f"{self.name} did not start; see its log"

    async def _says(self, word: str) -> bool:
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode().strip() == word


class Replicas:
    """All of them, past and present.

    Attributes:
        past: those that are gone, too.
    """

    def __init__(
        self, server: URL, folder: Path, *, latency_s: float = 0.0, driver: str = "asyncpg"
    ) -> None:
        """Name the server that they are to reach, the folder for their logs and traces, what a
        round trip takes them, and by which driver they go there.
        """
        self._server, self._folder, self._latency_s = server, folder, latency_s
        self._driver = driver
        self.past: list[Replica] = []

    @property
    def alive(self) -> list[Replica]:
        return [replica for replica in self.past if replica.is_alive]

    async def start(self, speed: float) -> Replica:
        proxy = Proxy(self._server, latency_s=self._latency_s)
        await proxy.start()
        name = f"replica-{len(self.past) + 1}"
        url = self._server.set(
            drivername=f"postgresql+{self._driver}", host="127.0.0.1", port=proxy.port, query={}
        )
        with (self._folder / f"{name}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(Path(__file__).with_name("replica.py")),
                url.render_as_string(hide_password=False),
                str(self._folder),
                name,
                str(speed),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        replica = Replica(name, speed, proxy, process)
        self.past.append(replica)
        await replica.wait_until_ready()
        return replica

    async def end(self) -> None:
        for replica in self.alive:
            await replica.kill()
