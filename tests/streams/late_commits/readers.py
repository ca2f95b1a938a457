"""Those who read beside the flow, each without one of its guards.

What a reader has missed is what is there in the end and was never read: each goes on behind the
last position that it knows, and never comes back.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rowlock.streams.dialects.stream_dialect import STREAMS
from rowlock.streams.inputs.candidates import Candidates


class PositionReader:
    """Reads what is behind a position, up to another one.

    Attributes:
        count: how many rows it has read.
        last: the position behind which it goes on.
    """

    def __init__(self, engine: AsyncEngine, position: Column[Any]) -> None:
        self.count = self.last = 0
        self._engine, self._position = engine, position

    async def missed(self) -> int:
        """Return how many rows are there that it has passed over."""
        found = select(func.count()).select_from(self._position.table)
        async with self._engine.connect() as connection:
            there = await connection.scalar(found.where(self._position <= self.last))
        return (there or 0) - self.count

    async def _read(self, connection: AsyncConnection, upto: int | None = None) -> list[int]:
        found = select(self._position).where(self._position > self.last)
        if upto is not None:
            found = found.where(self._position <= upto)
        positions = list(await connection.scalars(found.order_by(self._position)))
        self.count += len(positions)
        return positions


class NaiveReader(PositionReader):
    """Goes on behind the last position that it has seen."""

    async def look(self) -> None:
        async with self._engine.connect() as connection:
            positions = await self._read(connection)
        self.last = positions[-1] if positions else self.last


class UncheckedReader(PositionReader):
    """Reads up to the mark, in a later transaction, of a table whose sequence is unchecked."""

    def __init__(self, engine: AsyncEngine, position: Column[Any]) -> None:
        super().__init__(engine, position)
        self._candidates = Candidates()

    async def look(self) -> None:
        table: Any = self._position.table
        async with self._engine.connect() as connection:
            newest = await connection.scalar(select(func.max(self._position))) or 0
            writers = await STREAMS.of(connection).open_writers(connection, table)
            mark = self._candidates.look(newest, writers)
        async with self._engine.connect() as connection:
            await self._read(connection, mark)
        self.last = max(self.last, mark)
