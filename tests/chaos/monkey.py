"""The monkey: does one bad thing after the other, as drawn from a seed, and writes down what it
did.

The seed gives the order of the faults and their sizes. What they hit is up to the machine: the same
seed is the same monkey, not the same run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from random import Random
from typing import Any

from .host import BATCHES, JOBS, LOCK_TIMEOUT_S
from .proxy import Lost
from .replicas import Replica, Replicas
from .server import Server

PAUSES_S = (0.1, 0.5, 1.0, 2.0)
MOMENTS_S = (0.3, 0.8 * LOCK_TIMEOUT_S)
PAST_THE_LEASE_S = (1.5 * LOCK_TIMEOUT_S, 2 * LOCK_TIMEOUT_S)
COMMITS_S_MAX = 0.5
"""How long the monkey waits for a COMMIT to lose."""
COMMITS_MAX = 40
"""How many such waits there are before it gives up losing one."""
FAULTS = frozenset(
    {
        "clean shutdown",
        "connections cut",
        "connections stall for a moment",
        "connections stall past the lease",
        "connections terminated",
        "freeze for a moment",
        "freeze past the lease",
        "kill -9",
        "server crashes",
        "server restarts",
        *(f"{part.value} of a COMMIT lost" for part in Lost),
    }
)
"""What every run meets, however short: what a fault was not there for is not proved."""


class Monkey:
    """Breaks things.

    Attributes:
        done: how often which fault.
        log: what was done, one line each.
        unclean: replicas that did not end in time when they were told to.
    """

    def __init__(self, seed: int, server: Server, replicas: Replicas) -> None:
        self.done: Counter[str] = Counter()
        self.log: list[str] = []
        self.unclean: list[str] = []
        self._rng = Random(seed)
        self._server, self._replicas = server, replicas
        self._lasting: list[asyncio.Task[None]] = []
        self._began = asyncio.get_running_loop().time()
        self._faults: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (3, self._kill),
            (1, partial(self._freeze, "for a moment", MOMENTS_S)),
            (2, partial(self._freeze, "past the lease", PAST_THE_LEASE_S)),
            (0.5, self._restart),
            (0.5, self._crash),
            (2, self._terminate),
            (2, self._cut),
            (1, partial(self._stall, "for a moment", MOMENTS_S)),
            (1, partial(self._stall, "past the lease", PAST_THE_LEASE_S)),
            (3, partial(self._lose, Lost.ANSWER)),
            (2, partial(self._lose, Lost.QUESTION)),
            (1, self._shut_down),
        ]

    async def play(self, seconds: float) -> None:
        """Break things for so long, and until each kind had its turn, while services want more
        and more.
        """
        ends_at = asyncio.get_running_loop().time() + seconds
        weights = [weight for weight, _ in self._faults]
        asking = asyncio.create_task(self._ask())
        self._lasting = []
        try:
            first = [fault for _, fault in self._rng.sample(self._faults, len(self._faults))]
            while first or asyncio.get_running_loop().time() < ends_at:
                fault = first.pop() if first else self._rng.choices(self._faults, weights)[0][1]
                await fault()
                await asyncio.sleep(self._rng.choice(PAUSES_S))
        finally:
            asking.cancel()
            await asyncio.wait({asking})
            await asyncio.gather(*self._lasting)

    def note(self, fault: str, text: str = "") -> None:
        self.done[fault] += 1
        self.log.append(
            f"{asyncio.get_running_loop().time() - self._began:7.2f}  {fault} {text}".rstrip()
        )

    async def _ask(self) -> None:
        rng = Random(self._rng.random())
        while True:
            await self._server.ask_for("jobs", rng.sample(range(1, JOBS + 1), 5))
            await self._server.ask_for("batches", rng.sample(range(1, BATCHES + 1), 1))
            await asyncio.sleep(0.25)

    async def _kill(self) -> None:
        replica = self._any()
        self.note("kill -9", replica.name)
        await replica.kill()
        await self._replicas.start(replica.speed)

    async def _freeze(self, how_long: str, seconds_of: Sequence[float]) -> None:
        replica, seconds = self._any(), self._rng.choice(seconds_of)
        self.note(f"freeze {how_long}", f"{replica.name} for {seconds:.1f} s")
        self._meanwhile(replica.freeze(seconds))

    async def _restart(self) -> None:
        self.note("server restarts")
        await self._server.restart(at_once=False)

    async def _crash(self) -> None:
        self.note("server crashes")
        await self._server.restart(at_once=True)

    async def _terminate(self) -> None:
        share = self._rng.choice((0.2, 0.5, 1.0))

        def choose(pids: list[int]) -> list[int]:
            return self._rng.sample(pids, round(share * len(pids)))

        count = await self._server.terminate(choose)
        self.note("connections terminated", f"{count}")

    async def _cut(self) -> None:
        replica = self._any()
        self.note("connections cut", f"{replica.proxy.cut()} of {replica.name}")

    async def _stall(self, how_long: str, seconds_of: Sequence[float]) -> None:
        replica, seconds = self._any(), self._rng.choice(seconds_of)
        self.note(f"connections stall {how_long}", f"of {replica.name} for {seconds:.1f} s")
        self._meanwhile(replica.proxy.stall(seconds))

    async def _lose(self, part: Lost) -> None:
        wanted, fault = self._rng.randint(1, 5), f"{part.value} of a COMMIT lost"
        for tried in range(COMMITS_MAX):
            replica = self._any()
            before = replica.proxy.commits_lost
            replica.proxy.lose_next_commit(part)
            await asyncio.sleep(COMMITS_S_MAX)
            if replica.proxy.commits_lost > before:
                self.note(fault, f"of {replica.name}")
            # A replica that is frozen or cut off commits nothing; the first one must be met.
            if tried + 1 >= wanted and self.done[fault]:
                return

    async def _shut_down(self) -> None:
        replica = self._any()
        if not await replica.shut_down():
            self.unclean.append(replica.name)
        self.note("clean shutdown", replica.name)
        await self._replicas.start(replica.speed)

    def _meanwhile(self, lasting: Coroutine[Any, Any, None]) -> None:
        # What lasts is in the way of what comes next: a server may restart while a replica is
        # frozen.
        self._lasting.append(asyncio.create_task(lasting))

    def _any(self) -> Replica:
        return self._rng.choice(self._replicas.alive)
