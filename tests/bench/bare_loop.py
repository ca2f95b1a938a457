"""The loop that a host would write by hand through SQLAlchemy: claim a batch, run each job in a
task, write all results.

One statement claims and one writes, each committed by itself, under the same guard and the same
lock columns; the next claim is under way while the last results are written. It keeps none of the
other promises: no renewal, no retry, no lost COMMIT, no drain, no order among replicas, and a job
that fails takes its batch with it. So it says what those cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from drain import drain_once
from host import Host, Job
from measure import Figures, Place, Scale, beside
from meter import Meter
from sqlalchemy import ARRAY, Integer, Uuid, bindparam, column, func, select, update
from sqlalchemy.ext.asyncio import async_sessionmaker

BATCH = 100
"""Rows of one claim, as many as the workers of the drain beside it."""


async def bare_loop(place: Place, scale: Scale) -> Figures:
    """Return our drain with 100 workers and that of the bare loop, on PostgreSQL."""

    async def ours() -> Figures:
        return await drain_once(place, rows=scale.rows, workers=BATCH)

    async def bare() -> Figures:
        async with Host.opened(place.url) as host:
            await host.add(scale.rows)
            meter = await Meter.on(host.engine)
            meter.start()
            assert await _drain(host.session_factory) == scale.rows
            meter.stop()
        return {"rows/s": scale.rows / meter.seconds, **meter.cpu_per(scale.rows)}

    theirs, figures = await beside(bare, ours, limit_first=scale.limit_first)
    compared = {f"bare loop {name}": value for name, value in theirs.items()}
    return figures | compared | {"of the bare loop": figures["rows/s"] / theirs["rows/s"]}


async def _drain(session_factory: async_sessionmaker[Any]) -> int:
    done, writing = 0, None
    while True:
        jobs = await _claim(session_factory)
        if writing is not None:
            await writing
        if not jobs:
            return done
        async with asyncio.TaskGroup() as group:
            results = [group.create_task(_process(job)) for job in jobs]
        writing = asyncio.create_task(
            _write(session_factory, jobs, [result.result() for result in results])
        )
        done += len(jobs)


async def _process(job: Job) -> str:
    return "settled"


def _claiming() -> Any:
    is_free = Job.lock_expires_at.is_(None) | (Job.lock_expires_at <= func.now())
    due = (
        select(Job.id)
        .where(Job.status == "submitted", is_free)
        .order_by(Job.last_processed_at.asc().nulls_first())
        .limit(BATCH)
        .with_for_update(key_share=True, skip_locked=True)
        .cte("due")
    )
    lease = {
        Job.lock_token: func.gen_random_uuid(),
        Job.lock_owner: "bare",
        Job.lock_expires_at: func.now() + func.make_interval(0, 0, 0, 0, 0, 0, 30),
    }
    claimed = update(Job).where(Job.id == due.c.id).values(lease).returning(Job)
    return claimed.execution_options(synchronize_session=False)


def _writing() -> Any:
    arrays = (("key", Integer()), ("token", Uuid()), ("status", Job.status.type))
    held = (
        func.unnest(*(bindparam(f"held_{name}", type_=ARRAY(type_)) for name, type_ in arrays))
        .table_valued(*(column(name, type_) for name, type_ in arrays))
        .render_derived(name="held")
    )
    freed = {Job.lock_token: None, Job.lock_owner: None, Job.lock_expires_at: None}
    result = {Job.status: held.c.status, Job.last_processed_at: func.now()}
    ours = (Job.id == held.c.key, Job.lock_token == held.c.token)
    return (
        update(Job).where(*ours).values(result | freed).execution_options(synchronize_session=False)
    )


_CLAIMING, _WRITING = _claiming(), _writing()
_AT_ONCE = {"isolation_level": "AUTOCOMMIT"}


async def _claim(session_factory: async_sessionmaker[Any]) -> Sequence[Job]:
    async with session_factory() as session:
        await session.connection(execution_options=_AT_ONCE)
        return (await session.scalars(_CLAIMING)).all()


async def _write(
    session_factory: async_sessionmaker[Any], jobs: Sequence[Job], results: Sequence[str]
) -> None:
    parameters = {
        "held_key": [job.id for job in jobs],
        "held_token": [job.lock_token for job in jobs],
        "held_status": list(results),
    }
    async with session_factory() as session:
        connection = await session.connection(execution_options=_AT_ONCE)
        written = await connection.execute(_WRITING, parameters)
    assert written.rowcount == len(jobs)
