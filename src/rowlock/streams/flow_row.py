"""The row of a flow: why there is none, its creation, the commands to it, and its deletion.

A declaration that differs from the row is refused. Each command is one UPDATE in the caller's
transaction, and the replicas that work on the flow get a hint after the commit. A pause and a cut
update the same row, so one of them is first: the step that a command returns is binding, and
nothing waits for an answer.

A flow or a log is deleted in transactions of bounded size, of which the first refuses or decides:
it deletes the shards and gives the row a fingerprint that no declaration has, so that no replica
works on what is left; the row itself goes last. Whatever dies on the way, the same call ends it.
The host's own tables keep their rows, such as results `into` them and rows of a fold.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple, cast

from sqlalchemy import CursorResult, Table, delete, func, insert, or_, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock import database_now, hint_after_commit
from rowlock.errors import ConfigurationError, PipelineError, shorten
from rowlock.execution import execute
from rowlock.logs import get_logger
from rowlock.spi import LeasedTable, bind_of, database_instant, database_time_after, in_transaction
from rowlock.stream_errors import FlowChangedError, StillInUse
from rowlock.streams.cursors import DISCARDED
from rowlock.streams.flow_view import BEFORE_FIRST, Transact, check_shards, lease_holds
from rowlock.streams.inputs.event_log import EventLog
from rowlock.streams.program import FlowProgram
from rowlock.streams.settings import check_whole_number
from rowlock.streams.shards.layout import DynamicShards, check_number, even_layout
from rowlock.streams.tables import BEING_DELETED, StreamTables, check_lasts, key_of

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


# ---------------------------------------------------------------- commands


async def reshard(session: AsyncSession, program: FlowProgram, shards: int) -> int:
    """Have so many shards; return the next step."""
    check_number(shards)
    if isinstance(program.shards, DynamicShards):
        raise ConfigurationError(f"the flow {program.name!r} finds its number of shards itself")
    next_step = await change(session, program, {"shards_wanted": shards})
    connection = await session.connection(_bind_arguments(session, program))
    await check_shards(connection, program.tables, program.name)
    return next_step


async def unpark(session: AsyncSession, program: FlowProgram, shard: int | None = None) -> int:
    """Have parked shards tried again, or the one that begins with a bucket, with the states that
    are there; return how many there were.
    """
    if shard is not None:
        check_whole_number(shard, "the first bucket of a shard")
    shards = program.tables.shards
    parked = [shards.c.flow_id == program.id, shards.c.parked_at.is_not(None)]
    if shard is not None:
        parked.append(shards.c.lo == shard)
    values = {
        "parked_at": None,
        "attempts": 0,
        "failures": 0,
        "failed_step": None,
        "state_keys": None,
        "due_at": database_now(),
    }
    done = await execute(
        session,
        update(shards).where(*parked).values(values),
        bind_arguments=_bind_arguments(session, program),
    )
    hint_after_commit(session, program.shards_topic, program.topic)
    return cast("CursorResult[Any]", done).rowcount


async def change(session: AsyncSession, program: FlowProgram, values: Mapping[str, Any]) -> int:
    """Write a command into the row; return the first step that is not cut then."""
    flows = program.tables.flows
    bind = _bind_arguments(session, program)
    own = flows.c.id == program.id
    lasting = update(flows).where(own, flows.c.fingerprint != BEING_DELETED)
    done = await execute(session, lasting.values(dict(values)), bind_arguments=bind)
    columns = select(flows.c.next_step, flows.c.fingerprint).where(own)
    row = (await execute(session, columns, bind_arguments=bind)).first()
    if row is None:
        raise await no_row(await session.connection(bind), program)
    if cast("CursorResult[Any]", done).rowcount == 0:
        check_lasts(program.name, row.fingerprint)
    hint_after_commit(session, program.shards_topic, program.topic)
    return int(row.next_step)


def _bind_arguments(session: AsyncSession, program: FlowProgram) -> dict[str, Any]:
    return {"bind": bind_of(session, LeasedTable.of(program.tables.flow_model))}


DELETED_ROWS_MAX = 5_000
"""Most rows that are deleted in one transaction, unless one step has more results."""
DELETE_TIMEOUT: Final = timedelta(seconds=60)
"""How long one of the transactions may take."""
PRESENT_FOR: Final = timedelta(minutes=1)
"""A process that was seen so long ago counts as one that works on the flow."""

_Work = Callable[[AsyncConnection], Awaitable[int]]


class Deletion:
    """Deletes flows and logs of one database."""

    def __init__(self, sessions: async_sessionmaker[AsyncSession], tables: StreamTables) -> None:
        self._sessions = sessions
        self._tables = tables

    async def delete_flow(self, name: str, *, discard_results: bool) -> int:
        """Return how many rows there were; see `Streams.delete_flow`."""
        flow_id, tables = key_of("flow", name), self._tables

        async def begin(connection: AsyncConnection) -> int:
            return await _begin(connection, tables, name, discard_results=discard_results)

        async def rows(connection: AsyncConnection) -> int:
            # Another deletion may have ended, and the flow may be there anew.
            if not await _is_being_deleted(connection, tables, flow_id):
                return 0
            count = await _delete_results(connection, tables, flow_id)
            for table in (tables.exchange, tables.state, tables.parts, tables.steps):
                count = count or await _delete_some(connection, table, flow_id)
            return count or await _end(connection, tables, flow_id)

        return await self._transact(begin) + await self._repeat(rows)

    async def delete_log(self, name: str) -> int:
        """Return how many rows there were; see `Streams.delete_log`."""
        log: EventLog[Any] = EventLog(name, object, key=str, tables=self._tables)

        async def some(connection: AsyncConnection) -> int:
            # Before it is asked who reads it: a flow that is being created may.
            await log.lock_expiry(connection)
            if readers := await _readers(connection, self._tables, lambda source: source == name):
                reason = f"the flow {readers[0]!r} reads it: delete that first"
                raise StillInUse(what=f"the log {name!r}", reason=reason)
            return await log.delete_first(connection)

        return await self._repeat(some)

    async def _repeat(self, some: _Work) -> int:
        count = 0
        while deleted := await self._transact(some):
            count += deleted
        return count

    async def _transact(self, work: _Work) -> int:
        async def in_session(session: AsyncSession, connection: AsyncConnection) -> int:
            return await work(connection)

        leased, purpose = LeasedTable.of(self._tables.flow_model), "delete a flow or a log"
        return await in_transaction(
            self._sessions, leased, in_session, purpose=purpose, timeout=DELETE_TIMEOUT
        )


async def _begin(
    connection: AsyncConnection, tables: StreamTables, name: str, *, discard_results: bool
) -> int:
    """End the work on a flow, and its reading; StillInUse if there may be more of it."""
    flows, shards = tables.flows, tables.shards
    own = flows.c.id == key_of("flow", name)
    # Written, not just locked: a reader that comes meanwhile, or has come, is seen or refused.
    if not (await connection.execute(update(flows).where(own).values(name=name))).rowcount:
        return 0
    found = select(flows.c.fingerprint, flows.c.state).where(own)
    row = (await connection.execute(found)).one()
    if row.fingerprint == BEING_DELETED:
        return 0
    flow_id = key_of("flow", name)
    reason = await _why_in_use(connection, tables, name, state=row.state)
    if reason is None and not discard_results:
        reason = await _why_results_stay(connection, tables, flow_id)
    if reason is not None:
        raise StillInUse(what=f"the flow {name!r}", reason=reason)
    await connection.execute(update(flows).where(own).values(fingerprint=BEING_DELETED))
    return (await connection.execute(delete(shards).where(shards.c.flow_id == flow_id))).rowcount


async def _why_in_use(
    connection: AsyncConnection, tables: StreamTables, name: str, *, state: str
) -> str | None:
    """Return what works on a flow or reads it, and what to do first; None if nothing does."""
    if state != "stopped":
        return f"it is {state}: call stop() of the flow, and end the processes that work on it"
    flow_id, shards, replicas = key_of("flow", name), tables.shards.c, tables.replicas.c
    is_held = (shards.flow_id == flow_id, lease_holds(tables))
    held = await connection.scalar(select(func.count()).select_from(tables.shards).where(*is_held))
    holding = select(shards.replica).where(*is_held)
    is_there = or_(replicas.seen_at > database_time_after(-PRESENT_FOR), replicas.id.in_(holding))
    there = select(replicas.name).where(replicas.flow_id == flow_id, is_there)
    names = (await connection.scalars(there.order_by(replicas.name).limit(3))).all()
    if held or names:
        who = ", ".join(names) or "a replica that is gone"
        return (
            f"{who} had it among the pipelines a moment ago, and {held} of its shards are leased:"
            " end the processes that have it; one that died counts for a minute, and its leases"
            " for lock_timeout"
        )
    if readers := await _readers(connection, tables, lambda one: one.startswith(f"{name}/")):
        return f"the flow {readers[0]!r} reads its results: delete that first"
    return None


async def _is_being_deleted(
    connection: AsyncConnection, tables: StreamTables, flow_id: int
) -> bool:
    """Return whether it is, and lock its row until the caller's transaction ends."""
    flows = tables.flows
    own = (flows.c.id == flow_id, flows.c.fingerprint == BEING_DELETED)
    same = update(flows).where(*own).values(fingerprint=BEING_DELETED)
    return bool((await connection.execute(same)).rowcount)


async def _readers(
    connection: AsyncConnection, tables: StreamTables, is_meant: Callable[[str], bool]
) -> list[str]:
    """Return the names of the flows that read a source."""
    flows = tables.flows.c
    found = await connection.execute(select(flows.name, flows.upto).order_by(flows.name))
    return [name for name, upto in found if any(map(is_meant, upto))]


async def _why_results_stay(
    connection: AsyncConnection, tables: StreamTables, flow_id: int
) -> str | None:
    """Return which results would be lost, and what to do first; None: there are none."""
    rows, cursors = tables.outputs.c, tables.cursors.c
    unread = select(rows.step).where(
        rows.flow_id == flow_id, rows.output == cursors.output, rows.step > cursors.step
    )
    behind = (
        select(cursors.consumer, cursors.output)
        .where(cursors.flow_id == flow_id, cursors.consumer != DISCARDED, unread.exists())
        .order_by(cursors.step)
    )
    slowest = (await connection.execute(behind.limit(1))).first()
    some = select(rows.output).where(rows.flow_id == flow_id).order_by(rows.output)
    kept = await connection.scalar(some.limit(1))
    if kept is None:
        return None
    who = (
        f"its output {kept!r} keeps results"
        if slowest is None
        else f"the consumer {slowest.consumer!r} has not read all of its output {slowest.output!r}"
    )
    return f"{who}: discard() what is done with, or pass discard_results=True to lose the rest"


async def _delete_results(connection: AsyncConnection, tables: StreamTables, flow_id: int) -> int:
    """Delete whole steps of one output: a consumer that is reading never gets a part of one."""
    rows = tables.outputs
    of_flow = rows.c.flow_id == flow_id
    first = select(rows.c.output, rows.c.step).where(of_flow).order_by(rows.c.output, rows.c.step)
    found = (await connection.execute(first.limit(1))).first()
    if found is None:
        return 0
    gone = [of_flow, rows.c.output == found.output]
    surplus = select(rows.c.step).where(*gone).order_by(rows.c.step).offset(DELETED_ROWS_MAX)
    end = await connection.scalar(surplus.limit(1))
    if end is not None:
        gone.append(rows.c.step < max(end, found.step + 1))
    return (await connection.execute(delete(rows).where(*gone))).rowcount


async def _delete_some(connection: AsyncConnection, table: Table, flow_id: int) -> int:
    key, of_flow = list(table.primary_key), table.c.flow_id == flow_id
    some = select(*key).where(of_flow).limit(DELETED_ROWS_MAX)
    gone = delete(table).where(of_flow, tuple_(*key).in_(some))
    return (await connection.execute(gone)).rowcount


async def _end(connection: AsyncConnection, tables: StreamTables, flow_id: int) -> int:
    """Delete what has a row for each replica and consumer, and the flow's own row."""
    count = 0
    for table in (tables.cursors, tables.replicas):
        gone = delete(table).where(table.c.flow_id == flow_id)
        count += (await connection.execute(gone)).rowcount
    own = delete(tables.flows).where(tables.flows.c.id == flow_id)
    return count + (await connection.execute(own)).rowcount
