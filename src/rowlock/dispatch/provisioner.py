"""Asks for more workers, after an overflow only: once for each key in flight, within bounds, and never to the harm of the work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from rowlock.dispatch.engine import Engine
from rowlock.dispatch.settings import PROVISIONS_MAX

logger = logging.getLogger(__name__)

PROVISION_S_MAX = 300.0
"""Longest time for one call, in seconds."""

Provision: TypeAlias = Callable[[str], Awaitable[None]]
"""The host's: starts one more worker, for the work of a `dedup_key`. Whether one comes, and when, the engine will show."""


class Provisioner:
    """Calls the host's function.

    Args:
        provision: the host's.
        engine: whose workers are counted.
        fleet_cap: with so many workers nobody is asked; 0 is no cap.
    """

    def __init__(self, provision: Provision, *, engine: Engine, fleet_cap: int = 0) -> None:
        self._provision = provision
        self._engine = engine
        self._fleet_cap = fleet_cap
        self._in_flight: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._in_flight)

    def ask(self, key: str) -> bool:
        """Ask for a worker for `key`, in the background; returns whether that was done."""
        is_full = len(self._in_flight) >= PROVISIONS_MAX
        at_cap = 0 < self._fleet_cap <= len(self._engine.workers()) + len(self._in_flight)
        if key in self._in_flight or is_full or at_cap:
            return False
        task = asyncio.create_task(self._call(key), name="rowlock: provision a worker")
        self._in_flight[key] = task
        task.add_done_callback(lambda _: self._in_flight.pop(key, None))
        return True

    async def _call(self, key: str) -> None:
        try:
            async with asyncio.timeout(PROVISION_S_MAX):
                await self._provision(key)
        except Exception:
            logger.exception("A worker could not be provisioned")

    async def stop(self) -> None:
        """Cancel what is in flight."""
        tasks = list(self._in_flight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
