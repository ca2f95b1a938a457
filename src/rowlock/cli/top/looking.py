"""Looks again and again, one look at a time.

The one idea: the next look begins a rest after the end of the one before, and the rest grows with
what the look took. So a slow database is asked less often, and questions never pile up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from rowlock.cli.answering import ANSWER_WITHIN_S, message_of
from rowlock.cli.status import status_in_time
from rowlock.cli.top.view import Look
from rowlock.clock import monotonic
from rowlock.insight.insight import Insight

EVERY_S: Final = 2.0
"""The rest between two looks, in seconds."""
REST_FACTOR: Final = 2.0
"""The rest is at least so many times as long as the look."""


@dataclass(frozen=True, slots=True)
class LookState:
    """What is known now. Times are of the monotonic clock.

    Attributes:
        look: the last one that succeeded.
        looked_at: when that ended.
        asking_since: when the look began that is under way; None if none is.
        error: why the last look failed; empty if it did not.
        failing_since: when the first of the looks began that have failed since one succeeded.
    """

    look: Look | None = None
    looked_at: float = 0.0
    asking_since: float | None = None
    error: str = ""
    failing_since: float = 0.0


async def look_once(insight: Insight) -> Look:
    """Ask for the status.

    Raises:
        TimeoutError: there was no answer within `ANSWER_WITHIN_S`.
    """
    async with asyncio.timeout(ANSWER_WITHIN_S):
        status = await status_in_time(insight)
    return Look(status, {name: one.leased.name for name, one in insight.pipelines.items()})


class Looker:
    """Looks until it is cancelled, and tells whenever something has changed."""

    def __init__(self, insight: Insight, tell: Callable[[LookState], None]) -> None:
        self.seen = LookState()
        self._insight, self._tell = insight, tell
        self._wanted = asyncio.Event()

    def hurry(self) -> None:
        """Have the rest end now. A look that is under way is not repeated."""
        self._wanted.set()

    async def run(self) -> None:
        """Look, rest, and look again."""
        while True:
            begun = monotonic()
            self._know(replace(self.seen, asking_since=begun))
            await self._look(begun)
            self._wanted.clear()
            rest_s = max(EVERY_S, REST_FACTOR * (monotonic() - begun))
            with suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self._wanted.wait()

    async def _look(self, begun: float) -> None:
        try:
            look = await look_once(self._insight)
        # Of the host's modules and database, whatever it is: the next look may succeed.
        except Exception as error:  # noqa: BLE001
            since = self.seen.failing_since if self.seen.error else begun
            failed = replace(self.seen, error=message_of(error), failing_since=since)
            self._know(replace(failed, asking_since=None))
        else:
            self._know(LookState(look, looked_at=monotonic()))

    def _know(self, seen: LookState) -> None:
        self.seen = seen
        self._tell(seen)
