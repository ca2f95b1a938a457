"""`StreamFlow.wait_for`: what a service has added is found at its sources, and waited for."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock.errors import ConfigurationError
from rowlock.stream_errors import NotProcessedYet
from rowlock.streams.program import FlowProgram
from rowlock.streams.queries.frontier_watch import DoneUpto, FrontierWatch
from rowlock.streams.queries.reasons import done_or_reason


class FlowWaits:
    """The waits for one flow in this process.

    Args:
        program: the flow; its handlers are not needed.
    """

    def __init__(self, program: FlowProgram) -> None:
        self._program = program
        self._watches: dict[tuple[int, int], FrontierWatch] = {}

    def __repr__(self) -> str:
        return f"<FlowWaits for {self._program.name}, {len(self._watches)} look>"

    async def wait_for(
        self,
        sessions: async_sessionmaker[AsyncSession],
        added: object,
        *,
        timeout: timedelta | float,
    ) -> int:
        """Wait until what was added is done; see `StreamFlow.wait_for`."""
        positions = self._positions(added)
        # Futures belong to one loop, and a look to one database.
        key = id(asyncio.get_running_loop()), id(sessions)
        watch = self._watches.setdefault(key, FrontierWatch(self._program, sessions))
        limit_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        seen: DoneUpto | str | None = None
        try:
            async with asyncio.timeout(max(0.0, limit_s)):
                for name, position in positions.items():
                    seen = await watch.wait(name, position)
        except TimeoutError:
            seen = await done_or_reason(sessions, self._program, positions)
        finally:
            if watch.is_idle:
                self._watches.pop(key, None)
        if not isinstance(seen, DoneUpto):
            what = " and ".join(f"position {at} of {name}" for name, at in positions.items())
            raise NotProcessedYet(flow=self._program.name, what=what, reason=str(seen))
        self._check(positions, seen)
        return seen.frontier

    def _positions(self, added: object) -> dict[str, int]:
        """Return where what was added stands, by source.

        Raises:
            ConfigurationError: it is nothing that the flow reads.
        """
        found = {
            name: position
            for name, source in self._program.sources.items()
            if (position := source.position_of(added)) is not None
        }
        if not found:
            names = ", ".join(self._program.sources)
            raise ConfigurationError(
                f"the flow {self._program.name!r} reads {names}, and {added!r:.100} is nothing of"
                " these: pass a row that was added, or what append() returned"
            )
        return found

    def _check(self, positions: dict[str, int], seen: DoneUpto) -> None:
        """Refuse rows that the flow never reads."""
        for name, position in positions.items():
            if 0 < position <= seen.begins_after.get(name, 0):
                raise ConfigurationError(
                    f"the flow {self._program.name!r} begins behind position"
                    f" {seen.begins_after[name]} of {name}, so it never reads position {position}"
                )
