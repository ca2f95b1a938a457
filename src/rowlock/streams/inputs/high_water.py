"""The high-water mark: up to which position a stream is complete.

The trap this closes: positions become visible in another order than they were assigned in. A reader
of ``max(position)`` who goes on from there misses every row of a transaction that took its position
before and commits after; among 24 writers that was more than a third of all rows. To wait for gaps
to close loses rows, or waits for those that were rolled back.

The way out: (1) read the last position that is visible; (2) *then* list the transactions that may
have taken one below it; when all of these have ended, that position is the mark; (3) read the rows
in a **later** transaction. What (3) reads must see the step that was cut with this mark: a snapshot
that is older than the look, as one REPEATABLE READ transaction for both would have, lacks rows of
those that ended in between.

Source: the same mark in Kafka ("high watermark") and Marten ("high water detection"), found there
by other means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Select, Table, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.clock import monotonic
from rowlock.stream_errors import PositionsWentBackError
from rowlock.streams.dialects.stream_dialect import STREAMS
from rowlock.streams.inputs.candidates import Candidates, OpenWriter
from rowlock.streams.inputs.positions import check_position

CHECK_EVERY_S: Final = 600.0
"""How often the database is asked whether it assigns positions as it did, in seconds."""


@dataclass(frozen=True, slots=True)
class HighWater:
    """How far a stream was when it was looked at.

    Attributes:
        mark: no row can appear at or below this position any more.
        newest: the last position that was visible; rows above the mark wait for it.
        held_back_by: the transactions that the mark waits for, the one that has been open for
            longest first; empty if it waits for none.
        upstream: the flow that the mark of an output waits for, in words; None: it waits for none.
    """

    mark: int
    newest: int
    held_back_by: tuple[OpenWriter, ...]
    upstream: str | None = None


def newest_of(position: Column[Any], rows: ColumnElement[bool] | None) -> Select[Any]:
    """Return the query for the last position that is visible, null if there is none."""
    newest = select(func.max(position))
    return newest if rows is None else newest.where(rows)


class HighWaterLook:
    """Looks at one stream, again and again; belongs to one replica.

    Args:
        position: the column that gives the positions.
        rows: which rows of the table belong to the stream; None if all do.
        name: of the stream, for errors.
    """

    def __init__(
        self, position: Column[Any], rows: ColumnElement[bool] | None = None, *, name: str
    ) -> None:
        self._position, self._name = position, name
        self._newest = newest_of(position, rows)
        self._candidates = Candidates()
        self._counter = ""
        self._checks_at = float("-inf")

    async def look(self, connection: AsyncConnection, *, recorded: int) -> HighWater:
        """Find the mark; joins the caller's transaction, in which no row below it may be read: see
        the top of this file.

        Args:
            connection: to the server that rows are added to.
            recorded: up to where rows were read already, as the last step says; 0 if none were.

        Raises:
            PositionsWentBackError: positions that were read will be assigned again.
            ModelError: the column cannot give positions, or does no longer.
            ConfigurationError: the connection leads to a replica of the database.
        """
        dialect, table = STREAMS.of(connection), self._position.table
        assert isinstance(table, Table)
        if monotonic() >= self._checks_at:
            self._counter = await check_position(connection, self._position)
            self._checks_at = monotonic() + CHECK_EVERY_S
        newest = await connection.scalar(self._newest) or 0
        # Behind it, never before: who is listed is who may have been there when it was read.
        writers = await dialect.open_writers(connection, table)
        assigned = await dialect.last_assigned(connection, self._position, self._counter)
        known = max(recorded, newest, self._candidates.mark)
        if assigned < known:
            raise PositionsWentBackError(source=self._name, recorded=known, assigned=assigned)
        mark = self._candidates.look(newest, writers)
        return HighWater(mark, newest, self._candidates.held_back_by)
