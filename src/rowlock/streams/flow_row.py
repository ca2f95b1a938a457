"""The row of a flow: why there is none, its creation, and the commands to it.

A declaration that differs from the row is refused. Each command is one UPDATE in the caller's
transaction, and the replicas that work on the flow get a hint after the commit. A pause and a cut
update the same row, so one of them is first: the step that a command returns is binding, and
nothing waits for an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import database_now, hint_after_commit
from rowlock.errors import ConfigurationError, PipelineError, shorten
from rowlock.logs import get_logger
from rowlock.spi import database_instant
from rowlock.stream_errors import FlowChangedError
from rowlock.streams.flow_view import BEFORE_FIRST, check_shards
from rowlock.streams.program import FlowProgram
from rowlock.streams.settings import check_whole_number
from rowlock.streams.shards.layout import DynamicShards, check_number, even_layout
from rowlock.streams.tables import StreamDatabase, Transact

NEVER_STARTED: Final = "new"
"""The state of a flow that has no row."""
LOST: Final = "lost"
"""The state of a flow whose row was deleted, while others of it are there."""


class Absence(NamedTuple):
    """Why a flow has no row: `NEVER_STARTED` or `LOST`, and in words."""

    state: str
    text: str


async def absence_of(connection: AsyncConnection, program: FlowProgram) -> Absence:
    shards = program.tables.shards
    own = select(func.count()).select_from(shards).where(shards.c.flow_id == program.id)
    count = await connection.scalar(own)
    if not count:
        return Absence(NEVER_STARTED, "it was never started")
    return Absence(
        LOST,
        f"its row in {program.tables.flows.name} was deleted, and {count} shards of it are there:"
        " nothing is cut until the row is back, from a backup of one moment with all others of it",
    )


async def no_row(connection: AsyncConnection, program: FlowProgram) -> PipelineError:
    """Return the error of what needs the row of a flow that has none."""
    absence = await absence_of(connection, program)
    if absence.state == LOST:
        return PipelineError(f"the flow {program.name!r}: {absence.text}")
    return PipelineError(
        f"the flow {program.name!r} has no row yet: it is made when a manager with"
        " streams.pipelines() starts"
    )


# ---------------------------------------------------------------- new or changed


logger = get_logger(__name__)

DECLARATION_CHARS_MAX: Final = 20_000
"""So much of what a flow is declared as is stored, in words."""


async def ensure_flow(program: FlowProgram, transact: Transact) -> None:
    """Create the rows of a flow that is not there: all of them, or none."""
    database = StreamDatabase(transact)
    if await database.read("look for a flow", lambda one: _is_there(one, program)):
        return
    upto = await database.read("look where a flow begins", lambda one: _positions(one, program))

    async def create(connection: AsyncConnection) -> dict[str, int]:
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
        begins = await database.write("create a flow", create)
    except IntegrityError:
        # Another replica did it at this moment; and if that is not why, it is refused again.
        begins = await database.write("create a flow", create)
    for name, position in begins.items():
        if position and not program.from_now:
            logger.warning(
                "the flow %(flow)s begins behind position %(begins_after)s of %(source)s: what"
                " was there before was deleted",
                {"flow": program.name, "source": name, "begins_after": position},
            )


async def _positions(connection: AsyncConnection, program: FlowProgram) -> dict[str, int]:
    return {
        name: (await source.watcher().look(connection, recorded=0)).newest
        if program.from_now
        else await source.begins_after(connection)
        for name, source in program.sources.items()
    }


async def _is_there(connection: AsyncConnection, program: FlowProgram) -> bool:
    flows = program.tables.flows
    found = select(flows.c.fingerprint, flows.c.declaration).where(flows.c.id == program.id)
    row = (await connection.execute(found)).first()
    if row is None:
        return False
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


# ---------------------------------------------------------------- commands


async def reshard(session: AsyncSession, program: FlowProgram, shards: int) -> int:
    """Have so many shards; return the next step."""
    check_number(shards)
    if isinstance(program.shards, DynamicShards):
        raise ConfigurationError(f"the flow {program.name!r} finds its number of shards itself")
    next_step = await change(session, program, {"shards_wanted": shards})
    await check_shards(await program.tables.connection(session), program.tables, program.name)
    return next_step


async def unpark(session: AsyncSession, program: FlowProgram, shard: int | None = None) -> int:
    """Have parked shards tried again, or the one that begins with a bucket, with the states that
    are there; return how many there were.
    """
    shards = program.tables.shards
    parked = [shards.c.flow_id == program.id, shards.c.parked_at.is_not(None)]
    if shard is not None:
        check_whole_number(shard, "the first bucket of a shard")
        parked.append(shards.c.lo == shard)
    values = {
        "parked_at": None,
        "attempts": 0,
        "failures": 0,
        "failed_step": None,
        "state_keys": None,
        "due_at": database_now(),
    }
    connection = await program.tables.connection(session)
    done = await connection.execute(update(shards).where(*parked).values(values))
    hint_after_commit(session, program.shards_topic, program.topic)
    return done.rowcount


async def change(session: AsyncSession, program: FlowProgram, values: Mapping[str, Any]) -> int:
    """Write a command into the row; return the first step that is not cut then."""
    flows, connection = program.tables.flows, await program.tables.connection(session)
    changed = update(flows).where(flows.c.id == program.id).values(dict(values))
    next_step: int | None = await connection.scalar(changed.returning(flows.c.next_step))
    if next_step is None:
        raise await no_row(connection, program)
    hint_after_commit(session, program.shards_topic, program.topic)
    return next_step
