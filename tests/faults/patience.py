"""Faults that pass: a pipeline that does not rest for long, work that is held meanwhile, and
waiting until all is well again.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from rowlock import Outcome, PipelineManager

from ..host import HANG_S_MAX

QUICK: Final[dict[str, Any]] = {
    "fetch_delays": (0.05, 0.1),
    "min_processing_interval": 0,
    "retry_delay": 0.1,
}
RENEWED_SOON: Final[dict[str, Any]] = {
    "lock_timeout": 30,
    "heartbeat_trigger": 29.9,
    "lease_margin": 1,
    "heartbeat_interval": 0.1,
}
"""Leases that are renewed from a tenth of a second on, and that no slow machine loses."""


class HeldWork:
    """What `process` does: begin, wait until the test lets it go on, and answer.

    Attributes:
        started: it has begun.
        go_on: lets it, and all that begin later, go on.
    """

    def __init__(self, outcome: Outcome | None = None) -> None:
        """Take the answer; without one, `process` returns None."""
        self.outcome = outcome
        self.started, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, item: Any) -> Outcome | None:
        self.started.set()
        await self.go_on.wait()
        return self.outcome


async def until_healthy(manager: PipelineManager) -> None:
    async with asyncio.timeout(HANG_S_MAX):
        while not manager.health().healthy:  # noqa: ASYNC110 - a snapshot sets no event
            await asyncio.sleep(0.01)
