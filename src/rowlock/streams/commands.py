"""The commands to a flow: each is one UPDATE in the caller's transaction, and the replicas that
work on the flow hear of it after the commit.

A pause and a cut update the same row, so one of them is first: the step that a command returns is
binding, and nothing waits for an answer. Each raises `PipelineError` where the flow has no row yet,
or is being deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from sqlalchemy import CursorResult, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from rowlock.database.binds import bind_of
from rowlock.errors import ConfigurationError
from rowlock.execution import execute
from rowlock.hints.hinter import hint_after_commit
from rowlock.rows.database_time import database_now
from rowlock.rows.leased_table import LeasedTable
from rowlock.streams.frontier import check_shards
from rowlock.streams.inputs.arguments import check_whole_number
from rowlock.streams.program import FlowProgram
from rowlock.streams.queries.absence import no_row
from rowlock.streams.shards.layout import DynamicShards, check_number
from rowlock.streams.tables import BEING_DELETED, check_lasts


async def pause(session: AsyncSession, program: FlowProgram) -> int:
    """Cut no more steps; return the first one that is not done then."""
    return await _change(session, program, {"state": "paused"})


async def resume(session: AsyncSession, program: FlowProgram) -> int:
    """Go on after a pause or a stop; return the next step."""
    return await _change(session, program, {"state": "running"})


async def stop(session: AsyncSession, program: FlowProgram) -> int:
    """Cut no more steps, and have shards released behind those that are cut; return the first one
    that is not done then.
    """
    return await _change(session, program, {"state": "stopped"})


async def checkpoint(session: AsyncSession, program: FlowProgram) -> int:
    """Have all states written with the next step, and return it."""
    return await _change(session, program, {"checkpoint_requested": True})


async def reshard(session: AsyncSession, program: FlowProgram, shards: int) -> int:
    """Have so many shards; return the next step.

    Raises:
        ValueError: the number is none that a flow can have.
        ConfigurationError: the number follows that of the replicas.
        ShardsMissingError: the shards that there are do not have each bucket once.
    """
    check_number(shards)
    if isinstance(program.shards, DynamicShards):
        raise ConfigurationError(f"the flow {program.name!r} finds its number of shards itself")
    next_step = await _change(session, program, {"shards_wanted": shards})
    connection = await session.connection(_bind_arguments(session, program))
    await check_shards(connection, program.tables, program.name)
    return next_step


async def unpark(session: AsyncSession, program: FlowProgram, shard: int | None = None) -> int:
    """Have parked shards tried again, or the one that begins with a bucket, with the states that
    are there; return how many there were.

    Raises:
        ConfigurationError: it is no number of a bucket.
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


async def _change(session: AsyncSession, program: FlowProgram, values: Mapping[str, Any]) -> int:
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
