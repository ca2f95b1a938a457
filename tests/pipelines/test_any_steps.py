"""Whatever happens, in whatever order, to whatever settings: the promises that can be seen in a row
are kept.

The steps are those of `rowlock.testing.stepping`, on inline SQLite and virtual time, so an example
is the same each time.
"""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from rowlock import Apply, Outcome, Reset, Retry, SettingsError, events
from rowlock.clock import JITTER
from rowlock.pipelines.settings import build_settings
from rowlock.testing import (
    DatabaseClock,
    Step,
    Steps,
    TemporaryDatabase,
    inline_sqlite_database,
    run_until_settled,
    run_virtual,
    stepping,
    take_step,
    virtual_time_now,
)
from rowlock.testing.strategies import outcomes, step_sequences

from ..drawn import pipeline_settings
from ..host import Base, HeardEvents, Volume, VolumePipeline, heard_events
from ..lengths import at_length

ROWS = 3
ANY = settings(
    max_examples=at_length(12, 100),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
ANSWERS = outcomes(
    Volume,
    columns={"status": st.just("active"), "size_gb": st.nothing()},
    kinds=(Apply, Retry, Reset),
)
CALM = settings(deadline=None, derandomize=True, database=None)


class World:
    """Replicas of one pipeline, their rows, and what was seen of both.

    Attributes:
        database: where the rows are.
        replicas: the steps of each replica.
        heard: what happened.
    """

    def __init__(
        self, database: TemporaryDatabase, replicas: list[Steps[Any]], heard: HeardEvents
    ) -> None:
        self.database = database
        self.replicas = replicas
        self.heard = heard
        self.processed_at: dict[Any, Any] = {}
        self.sizes: dict[Any, int] = {}

    async def rows(self) -> list[Volume]:
        async with self.database.session_factory() as session:
            return list(await session.scalars(select(Volume).order_by(Volume.id)))

    async def write(self, number: int) -> None:
        """Be a service that changes a column which the pipeline never writes, or submits the row
        again.
        """
        row = (await self.rows())[number % ROWS]
        values = (
            {"size_gb": row.size_gb + 1, "status": "submitted"}
            if number % 2
            else {"size_gb": row.size_gb + 1}
        )
        async with self.database.session_factory.begin() as session:
            await session.execute(update(Volume).where(Volume.id == row.id).values(values))
        self.sizes[row.id] = row.size_gb + 1

    async def check(self) -> None:
        rows = {row.id: row for row in await self.rows()}
        for replica in self.replicas:
            for item in replica.queued:
                if item.is_trusted():
                    assert rows[item.id].lock_token == item.lock_token, (
                        "a holder trusts a lease that is another's"
                    )
        tokens = [event.lock_token for event in self.heard.of(events.ItemApplied)]
        assert len(tokens) == len(set(tokens)), "one claim had two results"
        for row in rows.values():
            assert row.size_gb == self.sizes.get(row.id, 1), "what a service wrote is lost"
            before = self.processed_at.get(row.id)
            assert before is None or row.last_processed_at >= before, (
                "the processing time went back"
            )
            self.processed_at[row.id] = row.last_processed_at
            assert (row.lock_token is None) == (row.lock_expires_at is None), (
                "a token without an end, or an end without a token"
            )


async def play(folder: Path, steps: list[Step], answers: list[Outcome | None]) -> None:
    """Let the steps happen to two replicas; then let all work be done, and see that it can be."""
    database = inline_sqlite_database(
        folder / "any.db", clock=DatabaseClock(source=virtual_time_now)
    )
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add_all([Volume(id=number_as_id(number)) for number in range(ROWS)])
    told = iter(answers)

    def answer(_: Any) -> Outcome | None:
        return next(told, Apply({"status": "active"}))

    with heard_events() as heard:
        async with AsyncExitStack() as stack:
            pipelines = [VolumePipeline(answer=answer) for _ in range(2)]
            replicas = [
                await stack.enter_async_context(stepping(database.session_factory, pipeline))
                for pipeline in pipelines
            ]
            world = World(database, replicas, heard)
            for step in steps:
                await take_step(step, replicas, service=world.write)
                await world.check()
        await asyncio.sleep(60)  # leases end, and the interval passes
        await settle(database)
        await world.check()
    assert [(row.status, row.lock_token, row.lock_owner) for row in await world.rows()] == [
        ("active", None, None)
    ] * ROWS
    await database.aclose()


async def settle(database: TemporaryDatabase) -> None:
    await run_until_settled(database.session_factory, [VolumePipeline()])


def number_as_id(number: int) -> Any:
    return uuid.UUID(int=number + 1)


@given(step_sequences(replicas=2, seconds_max=40), st.lists(ANSWERS, max_size=10))
@ANY
def test_any_steps_keep_the_promises(steps: list[Step], answers: list[Outcome | None]) -> None:
    """In some order of steps a row would have two holders or two results, lose a service's
    write, or stay locked for ever.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_virtual(lambda: play(Path(folder), steps, answers))


@given(pipeline_settings())
@CALM
def test_any_valid_settings_keep_the_timing_budget(drawn: Any) -> None:
    """A lease could end before its renewal was tried twice, and healthy work be cancelled."""
    built = build_settings("Any", drawn)
    two_beats = timedelta(seconds=2 * built.heartbeat_interval.total_seconds() * (1 + JITTER))
    assert two_beats + built.renew_timeout <= built.heartbeat_trigger - built.lease_margin
    assert (
        timedelta(0)
        < built.lease_margin
        < built.heartbeat_trigger
        < built.lock_timeout
        < built.orphaned_after
    )
    assert 1 <= built.queue_low_watermark <= built.queue_capacity


@given(
    pipeline_settings(), st.sampled_from(["lease_margin", "heartbeat_interval", "renew_timeout"])
)
@CALM
def test_settings_beyond_the_budget_are_refused(drawn: Any, name: str) -> None:
    """Settings under which one slow beat loses a lease would be accepted."""
    with pytest.raises(SettingsError) as refusal:
        build_settings("Any", {**drawn, name: drawn["heartbeat_trigger"]})
    assert name in refusal.value.settings
