"""Databases that are far away: every statement takes its time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import String, bindparam, event, func
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only

from rowlock import Apply, Outcome, PipelineManager, events
from rowlock.database.batcher import STATEMENTS_FIRST
from rowlock.pipelines.settler import OVERRUNS_MAX
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline, heard_events
from .scenes import add, counted, faults_of, is_free, is_outcome, read_all, until

ROUND_TRIP_S = 0.08
"""How long each statement and each COMMIT takes. **Unit** seconds."""
ROWS = 150


@contextmanager
def far_away(engine: AsyncEngine, *, round_trip_s: float = ROUND_TRIP_S) -> Iterator[None]:
    def wait(*_: Any) -> None:
        await_only(asyncio.sleep(round_trip_s))

    for name in ("before_cursor_execute", "commit"):
        event.listen(engine.sync_engine, name, wait)
    try:
        yield
    finally:
        for name in ("before_cursor_execute", "commit"):
            event.remove(engine.sync_engine, name, wait)


def guarded(_item: Any) -> Outcome:
    return Apply({"status": "done"}, unless_changed=["result"])


def of_sql(_item: Any) -> Outcome:
    """Return an outcome with an expression that is like no other: it asks for its value when it
    is sent.
    """
    return Apply({"status": func.lower(bindparam("done", callable_=lambda: "DONE", type_=String))})


@pytest.mark.parametrize("answer", [guarded, of_sql])
@virtual_time
async def test_no_result_is_dropped_where_round_trips_take_long(
    virtual_database: TemporaryDatabase, answer: Callable[[Any], Outcome]
) -> None:
    """A batch would outlast its own transaction and be tried at the same size, until its results
    are dropped and begun again.
    """
    await add(virtual_database, *(Run(id=number) for number in range(ROWS)))
    pipeline = RunPipeline(answer=answer, workers_num=ROWS)
    with heard_events() as heard, far_away(virtual_database.engine):
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await until(lambda: len(heard.of(events.ItemApplied)) >= ROWS)
    assert (len(pipeline.items), pipeline.stale, heard.of(events.ItemStale)) == (ROWS, [], [])
    rows = await read_all(virtual_database, Run)
    assert all(row.status == "done" and is_free(row) and row.attempts == 0 for row in rows)


@pytest.mark.parametrize("answer", [guarded, of_sql])
@virtual_time
async def test_the_first_batch_is_small(
    virtual_database: TemporaryDatabase, answer: Callable[[Any], Outcome]
) -> None:
    """Before anything is known of the database, a batch of five hundred statements would run out
    of time.
    """
    await add(virtual_database, *(Run(id=number) for number in range(3 * STATEMENTS_FIRST)))
    begun: list[str] = []
    pipeline = RunPipeline(answer=answer, workers_num=3 * STATEMENTS_FIRST)
    async with stepping(virtual_database.session_factory, pipeline) as steps:
        items = await steps.fetch_once()
        with faults_of(virtual_database.engine) as faults:
            for item in items:
                steps.run.settler.settle_later(item, answer(item))
            await steps.run.settler.wait_until_idle()
            begun = [statement for _, statement in faults.sent if statement.startswith("SELECT")]
    assert len(begun) >= 3, "one for each transaction"


@virtual_time
async def test_a_result_is_tried_as_long_as_its_lease_is_renewed(
    virtual_database: TemporaryDatabase,
) -> None:
    """A result that had no turn for one lease would be dropped, though the database is there and
    its lease is renewed.
    """
    await add(virtual_database, Volume())
    with faults_of(virtual_database.engine) as faults:
        faults.fail(TimeoutError("no connection is free"), when=is_outcome)
        loop = asyncio.get_running_loop()
        async with stepping(
            virtual_database.session_factory, VolumePipeline(lock_timeout=3, heartbeat_trigger=1.5)
        ) as steps:
            [item] = await steps.fetch_once()
            item.trusted_until += 1000  # as if it had been renewed
            loop.call_later(12, faults.heal)
            await steps.work_once()
            assert (counted(steps)["applied"], counted(steps)["retried"]) == (1, 0)


@virtual_time
async def test_a_result_that_never_gets_through_is_given_up(
    virtual_database: TemporaryDatabase,
) -> None:
    """Its row would be leased and renewed for ever, with others going on beside it."""
    await add(virtual_database, Volume())
    pipeline = VolumePipeline(lock_timeout=3, heartbeat_trigger=1.5)
    with faults_of(virtual_database.engine) as faults:
        faults.fail(TimeoutError("this row's trigger waits"), when=is_outcome)
        loop = asyncio.get_running_loop()
        async with stepping(virtual_database.session_factory, pipeline) as steps:
            [item] = await steps.fetch_once()
            item.trusted_until += 1000
            loop.call_later(40, faults.heal)
            began_at = loop.time()
            await steps.work_once()
            assert 30 <= loop.time() - began_at < 50
            assert counted(steps)["applied"] == 0
    assert [outcome for _, outcome in pipeline.stale] == [pipeline.usual_answer(item)]


@virtual_time
async def test_to_wait_for_a_row_is_no_overrun(virtual_database: TemporaryDatabase) -> None:
    """A result whose row an earlier try had locked would be dropped for what others do since."""
    await add(virtual_database, Volume())
    cut = OperationalError("", {}, ConnectionResetError("cut"), connection_invalidated=True)

    async def also(_session: Any, now: Any) -> None:
        tries.append(now)
        if len(tries) == 1:
            faults.hang(when=lambda statement: statement.startswith("BEGIN"))
            asyncio.get_running_loop().call_later(5 * OVERRUNS_MAX, faults.heal)
            raise cut

    tries: list[Any] = []
    pipeline = VolumePipeline(answer=Apply({"status": "active"}, also=also), database_timeout=2)
    async with stepping(virtual_database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        with faults_of(virtual_database.engine) as faults:
            await steps.work_once()
        assert (counted(steps)["applied"], len(tries)) == (1, 2)


@virtual_time
async def test_one_that_runs_out_of_time_takes_no_others_with_it(
    virtual_database: TemporaryDatabase,
) -> None:
    """A result whose statement never ends would join the next batch, and let it run out of time,
    again and again.
    """
    await add(virtual_database, *(Run(id=number) for number in range(8)))

    def answer(item: Any) -> Apply:
        # Each a statement of its own; the value tells which is which.
        return Apply({"status": f"done{item.id}"}, unless_changed=["result"])

    def hang(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if is_outcome(statement):
            tried.append("done3" in parameters)
            if tried[-1] and len(applied.of(events.ItemApplied)) < 7:
                await_only(asyncio.sleep(1000))

    tried: list[bool] = []
    with heard_events() as applied:
        event.listen(virtual_database.engine.sync_engine, "before_cursor_execute", hang)
        async with PipelineManager(
            virtual_database.session_factory, [RunPipeline(answer=answer, workers_num=8)]
        ):
            await until(lambda: len(applied.of(events.ItemApplied)) >= 8)
        event.remove(virtual_database.engine.sync_engine, "before_cursor_execute", hang)
    assert sum(tried) <= 6, "by halves, and then alone"
    assert {row.status for row in await read_all(virtual_database, Run)} == {
        f"done{number}" for number in range(8)
    }


@contextmanager
def slow_outcomes(engine: AsyncEngine, *, tries: float) -> Iterator[list[float]]:
    """Let that many statements of outcomes that end well never end; give the times at which
    there was one.
    """
    tried: list[float] = []

    def hang(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if is_outcome(statement) and "done" in parameters:
            tried.append(asyncio.get_running_loop().time())
            if len(tried) <= tries:
                await_only(asyncio.sleep(1000))

    event.listen(engine.sync_engine, "before_cursor_execute", hang)
    try:
        yield tried
    finally:
        event.remove(engine.sync_engine, "before_cursor_execute", hang)


@virtual_time
async def test_an_outcome_that_never_fits_into_its_transaction_is_a_failed_attempt(
    virtual_database: TemporaryDatabase,
) -> None:
    """It would be tried for ever with its row locked, which no renewal gets past, and be told as
    stale with no attempt counted.
    """
    await add(virtual_database, Run(id=1))
    pipeline = RunPipeline(retry_delay=300)
    with heard_events() as heard, slow_outcomes(virtual_database.engine, tries=math.inf) as tried:
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await until(lambda: heard.of(events.ItemApplied))
    [row] = await read_all(virtual_database, Run)
    assert (row.status, row.attempts, len(tried)) == ("queued", 1, 1 + OVERRUNS_MAX), (
        "once with others, and then alone"
    )
    assert "TransactionTimeout" in row.last_error
    assert (heard.of(events.ItemStale), heard.of(events.LeaseExpired)) == ([], [])
    assert [type(outcome) for _, outcome in pipeline.stale] == [Apply]


@virtual_time
async def test_a_renewal_gets_in_between_two_tries(virtual_database: TemporaryDatabase) -> None:
    """The lease of an outcome that fits at last would be lost, since its own tries have the row
    locked whenever it is renewed.
    """
    await add(virtual_database, Run(id=1))

    async def process(item: Any) -> Apply:
        await asyncio.sleep(14)  # a moment before the renewal is due
        item.trusted_until = asyncio.get_running_loop().time() + 12.5
        return Apply({"status": "done"})

    with heard_events() as heard, slow_outcomes(virtual_database.engine, tries=2) as tried:
        async with PipelineManager(virtual_database.session_factory, [RunPipeline(answer=process)]):
            await until(lambda: heard.of(events.ItemApplied))
    assert len(tried) == 3
    assert (heard.of(events.ItemStale), heard.of(events.LeaseExpired)) == ([], [])
