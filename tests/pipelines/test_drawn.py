"""Rows in any lease state."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from rowlock import Pipeline
from rowlock.testing import TemporaryDatabase, stepping

from ..drawn import lease_states
from ..host import Base as HostBase
from ..host import Run, RunPipeline, Volume, VolumePipeline

SOME = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
async def hosts(database_with_clock: TemporaryDatabase) -> TemporaryDatabase:
    await database_with_clock.create_tables(HostBase.metadata)
    return database_with_clock


async def check_claim(
    database: TemporaryDatabase, pipeline: Pipeline[Any], states: list[Any]
) -> None:
    """Put a row in each of the states, and compare what is claimed with what may be."""
    rows = [pipeline.model(**state.values) for state in states]
    async with database.session_factory.begin() as session:
        await session.execute(delete(pipeline.model))
        session.add_all(rows)
    async with stepping(database.session_factory, pipeline) as steps:
        claimed = {item.id for item in await steps.fetch_once()}
    assert claimed == {
        row.id for row, state in zip(rows, states, strict=True) if state.is_claimable
    }


@given(states=st.lists(lease_states(Volume, owner="VolumePipeline"), max_size=8))
@SOME
async def test_lease_states_are_what_they_say(hosts: TemporaryDatabase, states: list[Any]) -> None:
    """A row that may be claimed would be left, or one would be claimed that may not be."""
    await check_claim(hosts, VolumePipeline(), states)


@given(states=st.lists(lease_states(Run, owner="RunPipeline"), max_size=8))
@SOME
async def test_lease_states_of_scheduled_rows(hosts: TemporaryDatabase, states: list[Any]) -> None:
    """As above, for rows that are due and parked."""
    await check_claim(hosts, RunPipeline(), states)


def test_each_lease_state_is_drawn() -> None:
    """One of them would never be tried."""
    drawn: set[tuple[str, bool]] = set()

    @given(lease_states(Run, owner="RunPipeline"))
    @settings(max_examples=200, derandomize=True, database=None)
    def draw(state: Any) -> None:
        drawn.add((state.name, state.is_due))

    draw()
    names = ("free", "held", "expired", "reset", "parked")
    assert drawn == {*product(names, (False, True))}
