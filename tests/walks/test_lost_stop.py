"""The lost stop: a service asks for a stop at some moment of an attempt, and the attempt must not
make it unasked.

The story of every job system that writes results under a valid lock: the service writes `stopping`,
the worker, which has read the row before, writes `active`, and nobody ever stops the resource. Here
the service strikes between any two statements of the claim, the reading, the work and the outcome,
also within a transaction: on PostgreSQL another one commits there, too. The same walk without
`intent` loses stops, so it could find one that is lost.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import ColumnElement, delete, event, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.util import await_only

from rowlock import Apply, Outcome, Retry, request_update
from rowlock.testing import Steps, TemporaryDatabase, stepping

from ..host import Volume, VolumePipeline
from ..pipelines.scenes import add, is_free, read_all, turns

MOMENTS = (
    "before the claim",
    "before it is read",
    "in process",
    "before it is written",
    "after it is written",
)
BEFORE_CLAIM, BEFORE_READ, IN_PROCESS, BEFORE_WRITE, AFTER_WRITE = MOMENTS


class StoppingPipeline(VolumePipeline):
    """Makes submitted volumes active, and stops those that a service wants stopped.

    Attributes:
        moment: how far the attempt is.
        turns: how long `process` takes.
        fails: whether the next attempt fails, having written how far it came.
    """

    intent = (Volume.status,)
    moment = BEFORE_CLAIM
    turns = 0
    fails = False

    def ready(self) -> ColumnElement[bool]:
        return Volume.status.in_(["submitted", "stopping"])

    async def process(self, item: Any) -> Outcome:
        self.moment = IN_PROCESS
        await turns(self.turns)
        self.moment = BEFORE_WRITE
        if item.row.status == "stopping":
            return Apply({"status": "stopped", "disk_id": None})
        if self.fails:
            self.fails = False
            return Retry(
                error="no disk yet", values={"status": "submitted", "disk_id": "half made"}
            )
        return Apply({"status": "active", "disk_id": "made"})


class CarelessPipeline(StoppingPipeline):
    intent = ()


async def _one_life(steps: Steps[Any], pipeline: StoppingPipeline) -> None:
    await steps.fetch_once()
    pipeline.moment = BEFORE_READ
    await steps.work_all()
    pipeline.moment = AFTER_WRITE


async def settled(database: TemporaryDatabase, steps: Steps[Any]) -> str:
    """Let the pipeline go on until nothing is left to be done; return the status of the only
    row, and delete it.
    """
    for _ in range(5):
        async with database.session_factory.begin() as session:
            # the minimum interval is over
            await session.execute(update(Volume).values(last_processed_at=None))
        await steps.fetch_once()
        if not await steps.work_all():
            [after] = await read_all(database, Volume)
            assert is_free(after)
            assert after.disk_id == (None if after.status == "stopped" else "made")
            async with database.session_factory.begin() as session:
                await session.execute(delete(Volume))
            return after.status
    raise AssertionError("it never settles")


class Stopper:
    """A service that strikes when the pipeline's engine passes boundary number `at`.

    The pipeline stands still until the stop is committed; where its transaction has locked the row,
    the service waits for it.
    """

    def __init__(
        self, database: TemporaryDatabase, row: Volume, pipeline: StoppingPipeline, *, at: int
    ) -> None:
        self._database, self._row, self._pipeline, self._left = database, row, pipeline, at
        self._waiting: asyncio.Task[None] | None = None
        self.struck: str | None = None

    def pass_boundary(self, *_: Any) -> None:
        self._left -= 1
        if self._left == -1:
            self.struck = self._pipeline.moment
            await_only(self._strike())

    async def wait_until_asked(self) -> None:
        if self._waiting is not None:
            await self._waiting

    async def _strike(self) -> None:
        try:
            await self._ask(nowait=True)
        except DBAPIError:
            self._waiting = asyncio.create_task(self._ask(nowait=False))

    async def _ask(self, *, nowait: bool) -> None:
        async with self._database.session_factory.begin() as session:
            await session.execute(select(Volume.id).with_for_update(key_share=True, nowait=nowait))
            assert await request_update(session, Volume, self._row.id, {"status": "stopping"})


async def strike(
    database: TemporaryDatabase, pipeline: StoppingPipeline, *, at: int, fails: bool
) -> tuple[str | None, str]:
    """Strike at one boundary; return at which moment of the attempt that was, and where the row
    ended.
    """
    [row] = await add(database, Volume())
    engine = database.create_engine()
    pipeline.moment, pipeline.turns, pipeline.fails = BEFORE_CLAIM, 3, fails
    stopper = Stopper(database, row, pipeline, at=at)
    for name in ("begin", "before_cursor_execute", "after_cursor_execute", "commit"):
        event.listen(engine.sync_engine, name, stopper.pass_boundary)
    async with stepping(async_sessionmaker(engine, expire_on_commit=False), pipeline) as steps:
        await _one_life(steps, pipeline)
    await engine.dispose()
    await stopper.wait_until_asked()
    async with stepping(database.session_factory, pipeline) as steps:
        return stopper.struck, await settled(database, steps)


async def strike_everywhere(
    database: TemporaryDatabase, pipeline: StoppingPipeline, *, fails: bool = False
) -> list[tuple[str, str]]:
    """Strike at one boundary after the other, until a life has no more of them."""
    seen: list[tuple[str, str]] = []
    while True:
        moment, status = await strike(database, pipeline, at=len(seen), fails=fails)
        if moment is None:
            assert status == "active"
            return seen
        seen.append((moment, status))


@pytest.mark.parametrize("fails", [False, True])
async def test_a_stop_survives_between_any_two_statements(
    postgresql_database: TemporaryDatabase, fails: bool
) -> None:
    """A user's stop would be overwritten by a result, or by how far a failed attempt came, that was
    computed before it, and the resource never be stopped.
    """
    seen = await strike_everywhere(postgresql_database, StoppingPipeline(), fails=fails)
    assert {status for _, status in seen} == {"stopped"}
    assert len(seen) >= 12
    assert {BEFORE_CLAIM, BEFORE_READ, BEFORE_WRITE} <= {moment for moment, _ in seen}


async def test_without_intent_it_is_lost_between_two_statements(
    postgresql_database: TemporaryDatabase,
) -> None:
    """Not a promise: the walk above finds lost stops, if there are any."""
    seen = await strike_everywhere(postgresql_database, CarelessPipeline())
    assert (BEFORE_WRITE, "active") in seen
    assert (BEFORE_CLAIM, "stopped") in seen
