"""Cursors: how far each consumer of results is, and up to where results were discarded; and what of
a stream may still be read, by any flow of the database, declared here or not.

A consumer has a row before it reads, so what it has not read yet has a reader like any other. All
that decides by these rows, a discard, the first read of a name and the creation of a flow over the
results, takes the same lock, and so one after the other. To discard is the host's decision; what is
still needed is refused.

A shard that is opened anew begins at its *version*, so that is what counts, and not the step that
it does next. Rules of the other kind broke 29 of 32 runs of the prototype.

Every function joins the transaction of the connection that is its first parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import database_now
from rowlock.spi import ROWS
from rowlock.stream_errors import StepExpired, StillNeeded
from rowlock.streams.computing.encoding import Codec
from rowlock.streams.flow_view import frontier_of, read_frontier
from rowlock.streams.inputs.source import Source
from rowlock.streams.tables import StreamTables

DISCARDED: Final = ""
"""The consumer under whose name it is noted up to which step results were discarded."""
NONE_YET: Final = -1
"""The step before the first one: nothing is acknowledged, or discarded."""


class ResultsOf(Protocol):
    name: str
    flow: str
    flow_id: int
    topic: str
    codec: Codec[Any]
    tables: StreamTables
    sources: Mapping[str, Source[Any]]


async def cursor_of(connection: AsyncConnection, output: ResultsOf, consumer: str) -> int | None:
    """Return the last step that a consumer has acknowledged, None if it has no cursor."""
    found = select(output.tables.cursors.c.step).where(*_own(output, consumer))
    step: int | None = await connection.scalar(found)
    return step


async def last_discarded(connection: AsyncConnection, output: ResultsOf) -> int:
    """Return the last step whose results were discarded, `NONE_YET` if there is none."""
    step = await cursor_of(connection, output, DISCARDED)
    return NONE_YET if step is None else step


async def check_kept(connection: AsyncConnection, output: ResultsOf, after: int) -> None:
    """Refuse to go on behind `after` where results behind it were discarded."""
    discarded = await last_discarded(connection, output)
    if after < discarded:
        name = f"{output.flow}/{output.name}"
        raise StepExpired(source=name, step=after + 1, first=discarded + 1)


async def begin_cursor(
    connection: AsyncConnection, output: ResultsOf, consumer: str, *, after: int | None
) -> int:
    """Write the cursor of a new consumer, behind `after` or at the start; return where it is."""
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
    cursors, connection = output.tables.cursors, await output.tables.connection(session)
    own = _own(output, consumer)
    moved = update(cursors).where(*own, cursors.c.step < step).values(step=step, at=database_now())
    if (await connection.execute(moved)).rowcount:
        return True
    # Its row may have been deleted, and there is none before the first discard.
    return await _add(connection, output, consumer, step=step)


async def lock_discarding(connection: AsyncConnection, output: ResultsOf) -> None:
    """Make discards and new readers of the output wait until the transaction ends."""
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
    cursors = output.tables.cursors
    new = ROWS.of(connection).insert_unless_there(cursors, list(cursors.primary_key))
    own = {"flow_id": output.flow_id, "output": output.name, "consumer": consumer}
    done = await connection.execute(new.values(**own, step=step, at=database_now()))
    return bool(done.rowcount)


# ---------------------------------------------------------------- needs


async def lowest_version(connection: AsyncConnection, tables: StreamTables, flow_id: int) -> int:
    """Return the lowest version of a flow's shards; 0 if shards are missing."""
    return await connection.scalar(select(frontier_of(tables, flow_id, column="version"))) or 0


async def first_needed_step(connection: AsyncConnection, tables: StreamTables, flow_id: int) -> int:
    """Return the first step whose rows a shard, or a consumer's `inputs`, may read again."""
    cursors, outputs = tables.cursors.c, tables.outputs.c
    # Of an output without new results a consumer needs nothing, however long ago it read.
    unread = select(func.min(outputs.step)).where(
        outputs.flow_id == cursors.flow_id,
        outputs.output == cursors.output,
        outputs.step > cursors.step,
    )
    behind = select(unread.scalar_subquery().label("step")).where(
        cursors.flow_id == flow_id, cursors.consumer != DISCARDED
    )
    version = await lowest_version(connection, tables, flow_id)
    first = await connection.scalar(select(func.min(behind.subquery().c.step)))
    return version if first is None else min(version, first)


async def first_kept_result(
    connection: AsyncConnection, tables: StreamTables, flow_id: int
) -> int | None:
    """Return the first step of which a flow keeps results; None if there are none."""
    outputs = tables.outputs.c
    found = select(func.min(outputs.step)).where(outputs.flow_id == flow_id)
    first: int | None = await connection.scalar(found)
    return first


async def needed_positions(
    connection: AsyncConnection, tables: StreamTables, source: str
) -> dict[str, int]:
    """Return the first position that each flow may read again, by the name of the flow."""
    flows, steps = tables.flows.c, tables.steps.c
    needed = {}
    found = select(flows.id, flows.name, flows.upto).order_by(flows.name)
    for flow_id, name, upto in (await connection.execute(found)).all():
        if source not in upto:
            continue
        first = await first_needed_step(connection, tables, flow_id)
        before = select(steps.upto).where(steps.flow_id == flow_id, steps.step == first - 1)
        reached = await connection.scalar(before)
        # Where that is not known, nothing may go.
        needed[name] = 0 if reached is None else reached[source] + 1
    return needed


# ---------------------------------------------------------------- discarding


DISCARD_ROWS_MAX = 50_000
"""Most results that are deleted in one transaction, unless one step has more."""


async def discard(session: AsyncSession, output: ResultsOf, before: int) -> int:
    """Delete the results of steps before `before`; return how many."""
    # StillNeeded if they may be read.
    connection, rows = await output.tables.connection(session), output.tables.outputs
    # Before anything is read: a flow that is being created may need what no flow has needed so far.
    await lock_discarding(connection, output)
    await _check(connection, output, before)
    own = [rows.c.flow_id == output.flow_id, rows.c.output == output.name]
    below = [*own, rows.c.step < before]
    surplus = select(rows.c.step).where(*below).order_by(rows.c.step).offset(DISCARD_ROWS_MAX)
    first_left = await connection.scalar(surplus.limit(1))
    if first_left is not None:
        lowest = select(func.min(rows.c.step)).where(*below)
        first = (await connection.execute(lowest)).scalar_one()
        # Whole steps, and one at least.
        before = max(first_left, first + 1)
    gone = [*own, rows.c.step < before]
    last = await connection.scalar(select(func.max(rows.c.step)).where(*gone))
    if last is None:
        return 0
    done = await connection.execute(delete(rows).where(*gone))
    # Not the step before `before`: a consumer that has no results to read behind its cursor lacks
    # nothing.
    await move_cursor(session, output, DISCARDED, step=last)
    return done.rowcount


async def _check(connection: AsyncConnection, output: ResultsOf, before: int) -> None:
    """Refuse what consumers need, and steps that are not complete."""
    tables, name = output.tables, f"{output.flow}/{output.name}"
    cursors, rows = tables.cursors, tables.outputs
    end = await read_frontier(connection, tables, output.flow)
    if end is None or end < before:
        raise StillNeeded(source=name, step=end or 0, by="the flow itself, which has not done them")
    of_output = (cursors.c.flow_id == output.flow_id, cursors.c.output == output.name)
    unread = (
        select(rows.c.step)
        .where(rows.c.flow_id == output.flow_id, rows.c.output == output.name)
        .where(rows.c.step > cursors.c.step, rows.c.step < before)
    )
    behind = (
        select(cursors.c.consumer, cursors.c.step)
        .where(*of_output, cursors.c.consumer != DISCARDED, unread.exists())
        .order_by(cursors.c.step)
        .limit(1)
    )
    slowest = (await connection.execute(behind)).first()
    if slowest is not None:
        who = f"the consumer {slowest.consumer!r}"
        raise StillNeeded(source=name, step=slowest.step + 1, by=who)
    for flow, position in (await needed_positions(connection, tables, name)).items():
        needed = select(func.min(rows.c.step)).where(
            rows.c.flow_id == output.flow_id,
            rows.c.output == output.name,
            # The position of a result is one more than its step.
            rows.c.step >= position - 1,
            rows.c.step < before,
        )
        first = await connection.scalar(needed)
        if first is not None:
            raise StillNeeded(source=name, step=first, by=f"the flow {flow!r}")
