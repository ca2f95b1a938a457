"""Creates the rows of a flow where it is new, and refuses one that was changed where it is not."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import delete, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.errors import PipelineError, shorten
from rowlock.logs import get_logger
from rowlock.rows.database_time import database_instant
from rowlock.stream_errors import FlowChangedError
from rowlock.streams.cutting.flow_view import BEFORE_FIRST, Transact
from rowlock.streams.program import FlowProgram
from rowlock.streams.queries.absence import LOST, absence_of
from rowlock.streams.shards.layout import even_layout
from rowlock.streams.tables import check_lasts

logger = get_logger(__name__)

DECLARATION_CHARS_MAX: Final = 20_000
"""So much of what a flow is declared as is stored, in words."""


async def ensure_flow(program: FlowProgram, transact: Transact) -> None:
    """Create the rows of a flow that is not there: all of them, or none.

    Raises:
        FlowChangedError: it is there, with other sources, stages, states or outputs.
        PipelineError: it is being deleted, or its row was.
    """

    async def there(session: AsyncSession, connection: AsyncConnection) -> bool:
        return await _is_there(connection, program)

    if await transact(there, purpose="look for a flow", writes=False):
        return
    upto = await _positions(program, transact)

    async def create(session: AsyncSession, connection: AsyncConnection) -> dict[str, int]:
        # First: another replica may be making it, with its row and its shards in one transaction.
        absence = await absence_of(connection, program)
        if await _is_there(connection, program):
            return {}
        if absence.state == LOST:
            # Its states and results are there: begun anew, each event would count once more.
            raise PipelineError(f"the flow {program.name!r}: {absence.text}")
        # What it is to read may have been deleted since it was looked at, and is kept from now.
        begins = {
            name: max(upto[name], await source.lock_begin(connection))
            for name, source in sorted(program.sources.items())
        }
        await _create(connection, program, {name: begins[name] for name in upto})
        return begins

    try:
        begins = await transact(create, purpose="create a flow")
    except IntegrityError:
        # Another replica did it at this moment; and if that is not why, it is refused again.
        begins = await transact(create, purpose="create a flow")
    for name, position in begins.items():
        if position and not program.from_now:
            logger.warning(
                "the flow %s begins behind position %s of %s: what was there before was deleted",
                program.name,
                position,
                name,
                extra={"flow": program.name, "source": name, "begins_after": position},
            )


async def _positions(program: FlowProgram, transact: Transact) -> dict[str, int]:
    """Return where the first step begins in each source."""

    async def look(session: AsyncSession, connection: AsyncConnection) -> dict[str, int]:
        return {
            name: (await source.watcher().look(connection, recorded=0)).newest
            if program.from_now
            else await source.begins_after(connection)
            for name, source in program.sources.items()
        }

    return await transact(look, purpose="look where a flow begins", writes=False)


async def _is_there(connection: AsyncConnection, program: FlowProgram) -> bool:
    flows = program.tables.flows
    found = select(flows.c.fingerprint, flows.c.declaration).where(flows.c.id == program.id)
    row = (await connection.execute(found)).first()
    if row is None:
        return False
    check_lasts(program.name, row.fingerprint)
    if row.fingerprint != program.fingerprint:
        raise FlowChangedError(
            flow=program.name, description=program.description, stored=row.declaration
        )
    return True


async def _create(connection: AsyncConnection, program: FlowProgram, upto: dict[str, int]) -> None:
    tables, cursors = program.tables, program.tables.cursors
    # A consumer of a deleted flow of this name may have acknowledged what it had in hand.
    old = delete(cursors).where(cursors.c.flow_id == program.id, cursors.c.step > BEFORE_FIRST)
    await connection.execute(old)
    flow: dict[str, Any] = {
        "id": program.id,
        "name": program.name,
        "fingerprint": program.fingerprint,
        "declaration": shorten(program.description, chars_max=DECLARATION_CHARS_MAX),
        "code_version": program.code_version,
        "upto": upto,
        "begins_after": upto,
    }
    await connection.execute(insert(tables.flows).values(flow))
    first = {
        "flow_id": program.id,
        "step": BEFORE_FIRST,
        "upto": upto,
        "now": await connection.scalar(select(database_instant())),
        "checkpoint": True,
        "snapshot": False,
    }
    await connection.execute(insert(tables.steps).values(first))
    shards = [
        {"id": program.shard_id(each.lo), "flow_id": program.id, "lo": each.lo, "hi": each.hi}
        for each in even_layout(program.shards_at_first)
    ]
    await connection.execute(insert(tables.shards), shards)
