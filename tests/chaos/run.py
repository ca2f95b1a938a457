"""One run: replicas at work, the monkey among them, calm, the end, and the verdict."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rowlock.testing import PostgresqlServer

from .host import LOCK_TIMEOUT_S
from .monkey import FAULTS, Monkey
from .replicas import SPEEDS, Replicas
from .server import LOOKS_EVERY_S, Server
from .verdict import Verdict, judge, read_work

STANDSTILL_S_MAX = 60.0
"""How long nothing more may settle once the faults have stopped: some leases, a sweep and long
rounds.
"""
SETTLE_S_MAX = 240.0
"""In what time everything has settled, also on a machine that is so busy that leases run out on
it.
"""
IDLE_S_MAX = 2 * LOCK_TIMEOUT_S
"""How long a transaction may be open and idle: one of the library is over after
`database_timeout`, one of the dead by then.
"""
LOG_LINES = 300
"""Most lines of the monkey's log that are shown; the last ones."""
WRONGS = 10


@dataclass(frozen=True)
class Ran:
    seed: int
    seconds: float
    latency_s: float
    faults: dict[str, int]
    log: list[str]
    verdict: Verdict

    @property
    def missed(self) -> set[str]:
        """Faults that were not met, so that nothing is known of them."""
        return set(FAULTS - self.faults.keys())

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {fault}" for fault, count in sorted(self.faults.items()))
        figures = ", ".join(f"{count} {name}" for name, count in self.verdict.figures.items())
        far = f", each round trip takes {1000 * self.latency_s:g} ms" if self.latency_s else ""
        lines = [f"seed {self.seed}, {self.seconds:.0f} s of faults{far}: {faults}", figures]
        if self.missed:
            lines.append(f"not met: {', '.join(sorted(self.missed))}")
        if self.verdict.wrongs:
            lines += [
                f"{len(self.verdict.wrongs)} promises broken; run it again:"
                f" python tests/chaos --minutes {self.seconds / 60:g} --seed {self.seed}"
                + f" --latency-ms {1000 * self.latency_s:g}"
                * bool(self.latency_s),
                *self.verdict.wrongs[:WRONGS],
                "what the monkey did:",
                *self.log[-LOG_LINES:],
            ]
        return "\n".join(lines)


async def run(
    seed: int,
    *,
    seconds: float,
    server: PostgresqlServer,
    latency_s: float = 0.0,
    driver: str = "asyncpg",
) -> Ran:
    """Let the monkey play for so long on a server of its own, which the replicas reach by
    `driver` and where each round trip takes `latency_s`, and judge.
    """
    with tempfile.TemporaryDirectory(prefix="rowlock-chaos-") as name:
        folder = Path(name)
        asked = Server(server)
        replicas = Replicas(asked.url, folder, latency_s=latency_s, driver=driver)
        try:
            await asked.prepare()
            monkey = Monkey(seed, asked, replicas)
            for speed in SPEEDS:
                await replicas.start(speed)
            await monkey.play(seconds)
            verdict = await _end(monkey, asked, replicas, folder=folder, latency_s=latency_s)
            return Ran(seed, seconds, latency_s, dict(monkey.done), monkey.log, verdict)
        finally:
            await replicas.end()
            await asked.aclose()


async def _end(
    monkey: Monkey, server: Server, replicas: Replicas, *, folder: Path, latency_s: float
) -> Verdict:
    wrongs = [f"B5 broken: {name} did not end when it was told to" for name in monkey.unclean]
    monkey.note("calm")
    loop = asyncio.get_running_loop()
    began = loop.time()
    if not await _until(server.unsettled):
        wrongs.append(
            f"B1 broken: not settled after {loop.time() - began:.0f} s:"
            f" {(await server.unsettled())[:20]}"
        )
    settled_s = loop.time() - began
    if left := await server.left_open(older_than_s=IDLE_S_MAX):
        wrongs.append(f"B5 broken: transactions are open and idle: {left}")
    ended = await asyncio.gather(*(replica.shut_down() for replica in replicas.alive))
    if not all(ended):
        wrongs.append("B5 broken: a replica did not end when it was told to")
    if not await _until(server.connections):
        wrongs.append(f"B5 broken: connections are left: {await server.connections()}")
    verdict = judge(await server.history(), read_work(folder, replicas.past), latency_s=latency_s)
    verdict.figures["seconds until all had settled"] = round(settled_s)
    verdict.wrongs[:0] = wrongs
    del monkey.done["calm"]
    return verdict


async def _until(look: Callable[[], Awaitable[list[Any]]]) -> bool:
    """Wait until nothing is found any more; false if what is found does not become less, or not
    fast enough.
    """
    ends_at = asyncio.get_running_loop().time() + SETTLE_S_MAX
    least, stands_since = None, ends_at - SETTLE_S_MAX
    while found := await look():
        now = asyncio.get_running_loop().time()
        if least is None or len(found) < least:
            least, stands_since = len(found), now
        if now > min(ends_at, stands_since + STANDSTILL_S_MAX):
            return False
        await asyncio.sleep(LOOKS_EVERY_S * 4)
    return True
