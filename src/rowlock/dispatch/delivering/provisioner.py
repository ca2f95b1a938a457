"""Asks for more workers, after an overflow only: once for each key, within bounds, and never to the
harm of the work.

A machine takes minutes to come, and the host's call may return when it was asked for: so what was
asked for is expected, and counts as if it were there, until the engine shows a worker that was not
there before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import TypeAlias

from rowlock.clock import monotonic
from rowlock.containment import as_host_code, contained_task
from rowlock.dispatch.engine import Engine
from rowlock.dispatch.settings import PROVISIONS_MAX
from rowlock.logs import get_logger

logger = get_logger(__name__)

PROVISION_S_MAX = 300.0
"""Longest time for one call, in seconds."""
COMES_S_MAX = 300.0
"""How long a worker that was asked for is expected, in seconds; then it is asked for again."""
SEEN_MAX = 100_000
"""Most workers that are remembered, whether they are still there or not."""

Provision: TypeAlias = Callable[[str], Awaitable[None]]
"""The host's: starts one more worker, for the work of a `dedup_key`. Whether one comes, and
when, the engine will show.
"""


class Provisioner:
    """Calls the host's function.

    Args:
        provision: the host's.
        engine: whose workers are counted.
        fleet_cap: with so many workers, those that were asked for included, nobody is asked; 0 is
            no cap.
    """

    def __init__(self, provision: Provision, *, engine: Engine, fleet_cap: int = 0) -> None:
        self._provision = provision
        self._engine = engine
        self._fleet_cap = fleet_cap
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        self._expected: dict[str, float] = {}
        self._seen: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._in_flight)

    def ask(self, key: str) -> bool:
        """Ask for a worker for `key`, in the background; returns whether that was done.

        Not while one that was asked for `key` is still to come, which is when the engine shows one
        more, or for `COMES_S_MAX`.
        """
        here = self._engine.workers()
        arrived = [worker for worker in here if worker not in self._seen]
        self._expect_no_more(len(arrived))
        self._remember(arrived)
        is_full = len(self._in_flight) >= PROVISIONS_MAX
        at_cap = 0 < self._fleet_cap <= len(here) + len(self._expected)
        if key in self._in_flight or key in self._expected or is_full or at_cap:
            return False
        self._expected[key] = monotonic() + PROVISION_S_MAX + COMES_S_MAX
        task = contained_task(self._call(key), name="rowlock: provision a worker")
        self._in_flight[key] = task
        task.add_done_callback(lambda _: self._in_flight.pop(key, None))
        return True

    def _remember(self, workers: Iterable[str]) -> None:
        # One that was out of sight for a moment, and is back, is not the one that was asked for.
        self._seen.update(dict.fromkeys(workers))
        for oldest in list(self._seen)[: max(0, len(self._seen) - SEEN_MAX)]:
            del self._seen[oldest]

    def _expect_no_more(self, arrived: int) -> None:
        """Whichever came: the oldest requests are taken for answered."""
        now = monotonic()
        left = [(key, until) for key, until in self._expected.items() if until > now]
        self._expected = dict(left[arrived:])

    async def _call(self, key: str) -> None:
        try:
            async with asyncio.timeout(PROVISION_S_MAX):
                await as_host_code(partial(self._provision, key))
        except Exception:
            self._expected.pop(key, None)
            logger.exception("A worker could not be provisioned")
        else:
            if key in self._expected:
                self._expected[key] = monotonic() + COMES_S_MAX

    async def stop(self, grace: timedelta) -> None:
        """Cancel what is in flight, and wait for its end for `grace` at most."""
        in_flight = dict(self._in_flight)
        for task in in_flight.values():
            task.cancel()
        if in_flight:
            await asyncio.wait(in_flight.values(), timeout=grace.total_seconds())
        for key, task in in_flight.items():
            if not task.done():
                logger.error(
                    "provision ignored its cancellation and was left behind with key %s",
                    key,
                    extra={"key": key},
                )
