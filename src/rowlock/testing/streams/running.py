"""Runs a flow until nothing is left to do, and reads what it has come to.

    async def test_balances(rowlock_session_factory):
        await pay(rowlock_session_factory, "ada", 5)
        record = await run_flow(rowlock_session_factory, balances)
        assert record.states["add"] == {"ada": 5}
        assert record.differences(await reference(rowlock_session_factory, balances)) == []

Each opens sessions of its own. Not here: several replicas, and faults (`simulation`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.spi import LeasedTable, bind_of
from rowlock.streams.cut_plan import Checkpoint
from rowlock.streams.flow import StreamFlow
from rowlock.streams.program import FlowProgram, check_fold
from rowlock.streams.shards.layout import check_number
from rowlock.streams.shards.pipeline import FlowPipeline
from rowlock.testing.stepping import run_until_settled
from rowlock.testing.streams.one_loop import read_reference
from rowlock.testing.streams.recorded import check_at_one_step, read_recorded, read_shards
from rowlock.testing.streams.records import FlowRecord

__all__ = ["flow_pipeline", "recorded", "reference", "run_flow"]

T = TypeVar("T")
Sessions = async_sessionmaker[AsyncSession]


async def run_flow(
    session_factory: Sessions,
    flow: StreamFlow[Any],
    *,
    shards: int | None = None,
    checkpoint: Checkpoint | None = None,
) -> FlowRecord:
    """Do all steps for which there is something now, write the states, and return what the flow has
    come to since it was created.

    Timers that are due later stay: let time pass, and call it again.

    Args:
        session_factory: the host's.
        flow: as the host declares it.
        shards: how many shards there are, where the flow is created by this; by default as
            declared.
        checkpoint: how often states are written; by default as declared. They are written at the
            end in any case.

    Raises:
        PipelineError: a shard was parked; the text says at which step, and why.
        ConfigurationError: the flow folds, and `checkpoint` is not every step.
        ValueError: the number of shards is no power of two.
    """
    pipeline = flow_pipeline(flow, shards=shards, checkpoint=checkpoint)
    await run_until_settled(session_factory, [pipeline])
    return await recorded(session_factory, flow)


async def recorded(session_factory: Sessions, flow: StreamFlow[Any]) -> FlowRecord:
    """Return what is stored of a flow that has ended in order: its results, states and timers.

    Raises:
        PipelineError: a shard is parked, behind the others, or has not written its states.
    """
    program = flow.program

    async def read(connection: AsyncConnection) -> FlowRecord:
        shards = await read_shards(connection, program)
        check_at_one_step(program, shards)
        return await read_recorded(connection, program, shards)

    return await connected(session_factory, program, read)


async def reference(
    session_factory: Sessions,
    flow: StreamFlow[Any],
    *,
    before: int | None = None,
    shards: int = 1,
) -> FlowRecord:
    """Return what a flow must have come to: its handlers are called for each recorded step in one
    loop, without leases, replays, caches or transactions.

    Args:
        session_factory: the host's.
        flow: as the host declares it; it was run before.
        before: the first step that is left out; by default none that is cut.
        shards: into how many parts the keys are divided for each step. A handler that treats its
            keys separately gives the same for any number.

    Raises:
        PipelineError: the flow was never run, a handler fails, or the first steps are kept no more.
        ValueError: the number of shards is no power of two.
    """
    program = flow.program
    return await connected(
        session_factory,
        program,
        lambda connection: read_reference(connection, program, before=before, shards=shards),
    )


def flow_pipeline(
    flow: StreamFlow[Any],
    *,
    shards: int | None = None,
    checkpoint: Checkpoint | None = None,
    **changes: Any,
) -> FlowPipeline:
    """Return a new pipeline of a flow; `changes` of its program do not change what is stored."""
    program: FlowProgram = flow.program
    if shards is not None:
        changes["shards"] = check_number(shards)
    if checkpoint is not None:
        if program.folds:
            check_fold(program.name, checkpoint)
        changes["checkpoint"] = checkpoint
    return FlowPipeline(replace(program, **changes), **flow.pipeline_settings)


async def connected(
    session_factory: Sessions,
    program: FlowProgram,
    read: Callable[[AsyncConnection], Awaitable[T]],
) -> T:
    """Return the answer of `read`, with a connection to the flow's database."""
    leased = LeasedTable.of(program.tables.flow_model)
    async with session_factory() as session:
        return await read(await session.connection({"bind": bind_of(session, leased)}))
