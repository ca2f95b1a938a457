"""What a flow has come to in the database: its results, states and timers as they are stored.

Reads everything with one connection, whose transaction is the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import PipelineError
from rowlock.streams.computing.hashing import BucketRange
from rowlock.streams.outputs import Output, TableOutput
from rowlock.streams.program import FlowProgram
from rowlock.testing.streams.folded import read_rows
from rowlock.testing.streams.records import FlowRecord, FlowResult, in_order

__all__ = ["ShardAt", "check_at_one_step", "read_recorded", "read_shards"]


class ShardAt(NamedTuple):
    """How far a shard is: its stored states are those at the start of step `version`."""

    range: BucketRange
    step: int
    version: int
    parked: str | None


async def read_shards(connection: AsyncConnection, program: FlowProgram) -> list[ShardAt]:
    """Return how far each shard is, in the order of their buckets; joins the caller's
    transaction.
    """
    c = program.tables.shards.c
    columns = (c.lo, c.hi, c.step, c.version, c.parked_at, c.last_error)
    own = select(*columns).where(c.flow_id == program.id).order_by(c.lo)
    return [
        ShardAt(BucketRange(lo, hi), step, version, None if parked_at is None else error or "")
        for lo, hi, step, version, parked_at, error in await connection.execute(own)
    ]


def check_at_one_step(program: FlowProgram, shards: Sequence[ShardAt]) -> None:
    """Raise PipelineError unless all shards are at one step, and have written their states."""
    for shard in shards:
        if shard.parked is not None:
            raise PipelineError(
                f"the shard {shard.range} of {program.name!r} is parked: {shard.parked}"
            )
    if len({step for one in shards for step in (one.step, one.version)}) != 1:
        told = ", ".join(f"{one.range} at {one.step}, states of {one.version}" for one in shards)
        raise PipelineError(
            f"the shards of {program.name!r} are not at one step with their states written, so"
            f" nothing can be compared: {told or 'there are none'}"
        )


async def read_recorded(
    connection: AsyncConnection, program: FlowProgram, shards: Sequence[ShardAt]
) -> FlowRecord:
    """Return what is stored of a flow; joins the caller's transaction.

    Results are of steps that all shards have done, and the states of each shard as of its version.
    """
    next_step = min(shard.step for shard in shards)
    c = program.tables.state.c
    own = select(c.name, c.key, c.value, c.timer_at).where(c.flow_id == program.id)
    names = [stage.name for stage in program.stages if stage.name not in program.folds]
    values: dict[str, dict[str, Any]] = {name: {} for name in names}
    timers: dict[str, dict[str, Any]] = {name: {} for name in names}
    for name, key, value, timer_at in await connection.execute(own):
        if value is not None:
            values[name][key] = value
        if timer_at is not None:
            timers[name][key] = timer_at
    outputs = program.outputs.items()
    return FlowRecord(
        next_step,
        {
            name: await _results(connection, output, before=next_step)
            for name, output in outputs
            if not isinstance(output, TableOutput)
        },
        {
            name: await _rows(connection, output)
            for name, output in outputs
            if isinstance(output, TableOutput)
        },
        states_of(program, values),
        timers,
        {name: await read_rows(connection, fold) for name, fold in program.folds.items()},
    )


def states_of(
    program: FlowProgram, stored: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the states of each stage from their stored texts; a fold's are rows."""
    found = {}
    for stage in program.stages:
        if stage.name in program.folds:
            continue
        own = stored[stage.name]
        values = [] if stage.codec is None else stage.codec.decode_many(list(own.values()))
        found[stage.name] = dict(zip(own, values, strict=True))
    return found


def results_of(
    output: Output[Any], rows: Sequence[tuple[int, str | None, str]]
) -> list[FlowResult]:
    """Return the results of an output from step, key and text of each."""
    values = output.codec.decode_many([text for _, _, text in rows])
    return in_order(
        FlowResult(step, key, value, text)
        for (step, key, text), value in zip(rows, values, strict=True)
    )


async def _results(
    connection: AsyncConnection, output: Output[Any], *, before: int
) -> list[FlowResult]:
    c = output.tables.outputs.c
    own = select(c.step, c.key, c.payload).where(
        c.flow_id == output.flow_id, c.output == output.name, c.step < before
    )
    rows = await connection.execute(own)
    return results_of(output, [(step, key, text) for step, key, text in rows])


async def _rows(connection: AsyncConnection, output: TableOutput[Any]) -> list[dict[str, Any]]:
    rows = await connection.execute(select(output.table))
    return [dict(zip(output.table.columns.keys(), row, strict=True)) for row in rows]
