"""What makes a column a position: the database assigns it, one by one and ascending, and keeps it.

The one idea: what a model says is found when the source is made, before anything was started; what
the database says is asked once, before the first row is read.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Integer, Table
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import InstrumentedAttribute

from rowlock.errors import ModelError
from rowlock.rows.model_check import innermost
from rowlock.streams.dialects.stream_dialect import STREAMS

_CURE = "declare it with Identity(always=True), or as EventColumns do"


def position_column(table: Table, position: object) -> Column[Any]:
    """Return the column of `table` that gives the positions.

    Args:
        table: of the stream.
        position: the column, or the mapped attribute of it.

    Raises:
        ModelError: it cannot give positions; the text says what to change.
    """
    column = position
    if isinstance(position, InstrumentedAttribute):
        column = position.property.columns[0]
    if not isinstance(column, Column) or column.table is not table:
        raise ModelError(
            f"the position of a stream is a column of {table.name}, not {position!r:.100}",
            model=table.name,
        )
    problem = _problem_with(column)
    if problem:
        raise ModelError(
            f"{table.name}.{column.name} is no position: {problem}",
            model=table.name,
            column=column.name,
        )
    return column


async def check_position(connection: AsyncConnection, column: Column[Any]) -> str:
    """Ask the database whether it assigns `column` as positions want it; joins the caller's
    transaction.

    Returns:
        The name of what assigns them there: a sequence, or a counter.

    Raises:
        ModelError: it does not; the text says what to change in the database.
    """
    return await STREAMS.of(connection).check_position(connection, column)


async def check_bucket(connection: AsyncConnection, column: Column[Any]) -> None:
    """Refuse a column that cannot keep buckets in the database; joins the caller's transaction.

    Raises:
        ModelError: it cannot; the text says why.
    """
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
