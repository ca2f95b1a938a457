"""`StreamFlow.wait_for`: what a service has added is found at a flow's sources, and waited for;
where it reads the results of another flow, also at the sources of that one.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.clock import monotonic
from rowlock.database.transaction import in_transaction
from rowlock.errors import ConfigurationError
from rowlock.rows.leased_table import LeasedTable
from rowlock.stream_errors import NotProcessedYet
from rowlock.streams.inputs.arguments import seconds_of
from rowlock.streams.inputs.output_source import OutputSource
from rowlock.streams.program import FlowProgram
from rowlock.streams.queries.frontier_watch import LOOK_TIMEOUT, DoneUpto, FrontierWatch
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
        limit_s = seconds_of(timeout)
        self._check_reads(added)
        ends_at = monotonic() + limit_s
        positions = self._positions(added)
        for name, source in self._read_through().items():
            if name not in positions and source.upstream.reads(added):
                left_s = max(0.0, ends_at - monotonic())
                positions[name] = await self._behind(sessions, source, added, left_s=left_s)
        return await self._wait(sessions, positions, limit_s=ends_at - monotonic())

    def reads(self, added: object) -> bool:
        """Return whether it is of a source of the flow, or of the flows whose results it reads."""
        through = self._read_through().values()
        return bool(self._positions(added)) or any(one.upstream.reads(added) for one in through)

    def _read_through(self) -> dict[str, OutputSource[Any]]:
        sources = self._program.sources.items()
        return {name: one for name, one in sources if isinstance(one, OutputSource)}

    async def _behind(
        self,
        sessions: async_sessionmaker[AsyncSession],
        source: OutputSource[Any],
        added: object,
        *,
        left_s: float,
    ) -> int:
        """Return a position of the source that has all that follows from what was added, once it is
        known.
        """
        try:
            frontier = await source.upstream.wait_for(sessions, added, timeout=left_s)
        except NotProcessedYet as error:
            raise NotProcessedYet(
                flow=self._program.name, what=error.what, reason=error.message
            ) from None

        async def look(session: AsyncSession, connection: AsyncConnection) -> int:
            return await source.last_position(connection, below=frontier)

        leased = LeasedTable.of(self._program.tables.flow_model)
        purpose = "find the results of a step"
        return await in_transaction(
            sessions, leased, look, purpose=purpose, timeout=LOOK_TIMEOUT, writes=False
        )

    async def _wait(
        self,
        sessions: async_sessionmaker[AsyncSession],
        positions: dict[str, int],
        *,
        limit_s: float,
    ) -> int:
        # Futures belong to one loop, and a look to one database.
        key = id(asyncio.get_running_loop()), id(sessions)
        watch = self._watches.setdefault(key, FrontierWatch(self._program, sessions))
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
        """Return where what was added stands, by source."""
        return {
            name: position
            for name, source in self._program.sources.items()
            if (position := source.position_of(added)) is not None
        }

    def _check_reads(self, added: object) -> None:
        """Refuse what the flow does not read.

        Raises:
            ConfigurationError: it is nothing of its sources.
        """
        if not self.reads(added):
            names = ", ".join(self._program.sources)
            raise ConfigurationError(
                f"the flow {self._program.name!r} reads {names}, and {added!r:.100} is nothing of"
                " these: pass a row that was added, or what append() returned"
            )

    def _check(self, positions: dict[str, int], seen: DoneUpto) -> None:
        """Refuse rows that the flow never reads."""
        for name, position in positions.items():
            if 0 < position <= seen.begins_after.get(name, 0):
                raise ConfigurationError(
                    f"the flow {self._program.name!r} begins behind position"
                    f" {seen.begins_after[name]} of {name}, so it never reads position {position}"
                )
