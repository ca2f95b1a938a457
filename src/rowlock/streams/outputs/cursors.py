"""Cursors: how far each consumer of results is, and up to where results were discarded.

The one idea: a consumer has a row before it reads, so what it has not read yet has a reader like
any other. All that decides by these rows, a discard, the first read of a name and the creation of
a flow over the results, takes the same lock, and so one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol, cast

from sqlalchemy import ColumnElement, CursorResult, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.database.binds import bind_of
from rowlock.database.bulk_dialect import BULK
from rowlock.execution import execute
from rowlock.rows.database_time import database_now
from rowlock.rows.leased_table import LeasedTable
from rowlock.stream_errors import StepExpired
from rowlock.streams.computing.encoding import Codec
from rowlock.streams.inputs.source import Source
from rowlock.streams.tables import StreamTables

DISCARDED: Final = ""
"""The consumer under whose name it is noted up to which step results were discarded."""
NONE_YET: Final = -1
"""The step before the first one: nothing is acknowledged, or discarded."""

CURSOR: Final = ("flow_id", "output", "consumer", "step", "at")
"""The columns of a cursor."""


class ResultsOf(Protocol):
    """An output, as far as it is read."""

    name: str
    flow: str
    flow_id: int
    topic: str
    codec: Codec[Any]
    tables: StreamTables
    sources: Mapping[str, Source[Any]]


async def cursor_of(connection: AsyncConnection, output: ResultsOf, consumer: str) -> int | None:
    """Return the last step that a consumer has acknowledged, None if it has no cursor; joins the
    caller's transaction.
    """
    found = select(output.tables.cursors.c.step).where(*_own(output, consumer))
    step: int | None = await connection.scalar(found)
    return step


async def last_discarded(connection: AsyncConnection, output: ResultsOf) -> int:
    """Return the last step whose results were discarded, `NONE_YET` if there is none; joins the
    caller's transaction.
    """
    step = await cursor_of(connection, output, DISCARDED)
    return NONE_YET if step is None else step


async def check_kept(connection: AsyncConnection, output: ResultsOf, after: int) -> None:
    """Refuse to go on behind `after` where results behind it were discarded; joins the caller's
    transaction.

    Raises:
        StepExpired: they were.
    """
    discarded = await last_discarded(connection, output)
    if after < discarded:
        name = f"{output.flow}/{output.name}"
        raise StepExpired(source=name, step=after + 1, first=discarded + 1)


async def begin_cursor(
    connection: AsyncConnection, output: ResultsOf, consumer: str, *, after: int | None
) -> int:
    """Write the cursor of a consumer that has none, behind `after` or else before the first step;
    return where it stands. Joins the caller's transaction.

    Raises:
        StepExpired: results behind it were discarded.
    """
    # A discard that is under way has not seen this consumer, and the next one is to see it.
    await lock_discarding(connection, output)
    known = await cursor_of(connection, output, consumer)
    if known is not None:
        return known
    begins = NONE_YET if after is None else after
    await check_kept(connection, output, begins)
    await _add(connection, output, consumer, step=begins)
    return begins


async def move_cursor(
    session: AsyncSession, output: ResultsOf, consumer: str, *, step: int
) -> bool:
    """Move a cursor forward to `step`, in the caller's transaction; return whether it was before
    it.
    """
    cursors = output.tables.cursors
    bind = {"bind": bind_of(session, LeasedTable.of(output.tables.flow_model))}
    own = _own(output, consumer)
    moved = update(cursors).where(*own, cursors.c.step < step).values(step=step, at=database_now())
    done = await execute(session, moved, bind_arguments=bind)
    if cast("CursorResult[Any]", done).rowcount:
        return True
    # Its row may have been deleted, and there is none where nobody has discarded yet.
    return await _add(await session.connection(bind), output, consumer, step=step)


async def lock_discarding(connection: AsyncConnection, output: ResultsOf) -> None:
    """Make discards of the output's results, and whoever begins to read them, wait until the
    caller's transaction ends.
    """
    cursors = output.tables.cursors
    # Written, not just locked: a snapshot that is older than the lock is refused then.
    taken = update(cursors).where(*_own(output, DISCARDED)).values(step=cursors.c.step)
    if (await connection.execute(taken)).rowcount:
        return
    await _add(connection, output, DISCARDED, step=NONE_YET)
    await connection.execute(taken)


def _own(output: ResultsOf, consumer: str) -> tuple[ColumnElement[bool], ...]:
    c = output.tables.cursors.c
    return c.flow_id == output.flow_id, c.output == output.name, c.consumer == consumer


async def _add(connection: AsyncConnection, output: ResultsOf, consumer: str, *, step: int) -> bool:
    """Add a cursor; return whether there was none."""
    dialect = BULK.of(connection)
    now = await connection.scalar(select(database_now()))
    inserted = dialect.insert(output.tables.cursors, CURSOR).on_conflict_do_nothing()
    row = (output.flow_id, output.name, consumer, step, now)
    done = await connection.execute(inserted, dialect.insert_parameters(CURSOR, [row]))
    return cast("CursorResult[Any]", done).rowcount > 0
