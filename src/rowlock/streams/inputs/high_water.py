"""The high-water mark: up to which position a stream is complete; and what makes a column a
position: the database assigns it, one by one and ascending, and keeps it.

The trap this closes: positions become visible in another order than they were assigned in. A reader
of ``max(position)`` who goes on from there misses every row of a transaction that took its position
before and commits after; among 24 writers that was more than a third of all rows. To wait for gaps
to close loses rows, or waits for those that were rolled back.

The way out: (1) read the last position that is visible; (2) *then* list the transactions that may
have taken one below it; when all of these have ended, that position is the mark; (3) read the rows
in a **later** transaction. What (3) reads must see the step that was cut with this mark: a snapshot
that is older than the look, as one REPEATABLE READ transaction for both would have, lacks rows of
those that ended in between.

What a model says of its positions is found when the source is made, before anything was started;
what the database says is asked once, before the first row is read.

Source: the same mark in Kafka ("high watermark") and Marten ("high water detection"), found there
by other means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Integer, Select, Table, func, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import InstrumentedAttribute

from rowlock.clock import monotonic
from rowlock.errors import ModelError
from rowlock.spi import innermost
from rowlock.stream_errors import PositionsWentBackError
from rowlock.streams.dialects.stream_dialect import STREAMS
from rowlock.streams.inputs.candidates import Candidates, OpenWriter

_CURE = "declare it with Identity(always=True), or as EventColumns do"


def column_of(table: Table, given: Any, what: str) -> Column[Any]:
    column = given.property.columns[0] if isinstance(given, InstrumentedAttribute) else given
    if not isinstance(column, Column) or column.table is not table:
        msg = f"the {what} of a stream is a column of {table.name}, not {given!r:.100}"
        raise ModelError(msg, model=table.name)
    return column


def position_column(table: Table, position: object) -> Column[Any]:
    """Return the column of `table` that gives the positions; ModelError says what to change."""
    column = column_of(table, position, "position")
    problem = _problem_with(column)
    if problem:
        raise ModelError(
            f"{table.name}.{column.name} is no position: {problem}",
            model=table.name,
            column=column.name,
        )
    return column


async def check_bucket(connection: AsyncConnection, column: Column[Any]) -> None:
    """Refuse a column that cannot keep buckets in the database."""
    problem = await STREAMS.of(connection).problem_with_number(connection, column)
    if problem:
        raise ModelError(
            f"{column.table.name}.{column.name} is no bucket: {problem}, and buckets are whole"
            " numbers, or null",
            model=column.table.name,
            column=column.name,
        )


def _problem_with(column: Column[Any]) -> str:
    if not isinstance(innermost(column.type), Integer):
        return f"it is {column.type}, and positions are whole numbers"
    if column.default is not None:
        return f"the client gives its values (default=...), before the database knows: {_CURE}"
    if column.onupdate is not None or column.server_onupdate is not None:
        return "it changes when the row does, and a position never changes"
    if not _heads_index(column):
        return "no index begins with it, so every step would read the whole table"
    return ""


def _heads_index(column: Column[Any]) -> bool:
    table = column.table
    assert isinstance(table, Table)
    heads = [next(iter(index.columns), None) for index in table.indexes]
    heads.append(next(iter(table.primary_key), None))
    return bool(column.unique) or any(head is column for head in heads)


CHECK_EVERY_S: Final = 600.0
"""How often the database is asked whether it assigns positions as it did, in seconds."""


@dataclass(frozen=True, slots=True)
class HighWater:
    mark: int  # no row can appear at or below this position any more
    newest: int  # the last position that was visible; rows above the mark wait for it
    # The transactions that the mark waits for, the one that has been open for longest first
    held_back_by: tuple[OpenWriter, ...]
    # The flow that the mark of an output waits for, in words; None: it waits for none
    upstream: str | None = None


def newest_of(position: Column[Any], rows: ColumnElement[bool] | None) -> Select[Any]:
    """Return the query for the last position that is visible, null if there is none."""
    newest = select(func.max(position))
    return newest if rows is None else newest.where(rows)


class HighWaterLook:
    def __init__(
        self, position: Column[Any], rows: ColumnElement[bool] | None = None, *, name: str
    ) -> None:
        self._position, self._name = position, name
        self._newest = newest_of(position, rows)
        self._candidates = Candidates()
        self._counter = ""
        self._checks_at = float("-inf")

    async def look(self, connection: AsyncConnection, *, recorded: int) -> HighWater:
        """Find the mark, in a transaction in which no row below it may be read: see the module."""
        # `recorded` is up to where rows were read already, as the last step says.
        dialect, table = STREAMS.of(connection), self._position.table
        assert isinstance(table, Table)
        if monotonic() >= self._checks_at:
            self._counter = await dialect.check_position(connection, self._position)
            self._checks_at = monotonic() + CHECK_EVERY_S
        newest = await connection.scalar(self._newest) or 0
        # Behind it, never before: the list must have every writer that was there when it was read.
        writers = await dialect.open_writers(connection, table)
        assigned = await dialect.last_assigned(connection, self._position, self._counter)
        known = max(recorded, newest, self._candidates.mark)
        if assigned < known:
            raise PositionsWentBackError(source=self._name, recorded=known, assigned=assigned)
        mark = self._candidates.look(newest, writers)
        return HighWater(mark, newest, self._candidates.held_back_by)
