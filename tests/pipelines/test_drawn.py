"""Rows in any lease state, and pipelines with any valid settings."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from rowlock import Pipeline
from rowlock.testing import TemporaryDatabase, stepping

from ..drawn import lease_states, pipeline_settings
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


@pytest.mark.parametrize("name", ["free", "held", "expired", "reset", "parked"])
@pytest.mark.parametrize("is_due", [False, True])
def test_each_lease_state_is_drawn(name: str, is_due: bool) -> None:
    """One of them would never be tried."""
    assert find(
        lease_states(Run, owner="RunPipeline"),
        lambda state: (state.name, state.is_due) == (name, is_due),
    )


@given(pipeline_settings(workers_num=3))
@settings(deadline=None)
def test_settings_are_accepted(drawn: Any) -> None:
    """A property test would be about refusals, or about other settings than were asked for."""
    pipeline = RunPipeline(**drawn)
    assert pipeline.settings.workers_num == 3
    assert pipeline.settings.lock_timeout == timedelta(seconds=drawn["lock_timeout"])


@pytest.mark.parametrize(
    ("fixed", "left_out"),
    [
        ({"lock_timeout": 40}, {"heartbeat_trigger", "lease_margin", "orphaned_after"}),
        ({"orphaned_after": 3600}, {"lock_timeout", "renew_timeout", "heartbeat_interval"}),
        ({"queue_upper_limit_factor": 2}, {"queue_lower_limit_factor"}),
        ({"retry_delay": 60}, {"retry_delay_max"}),
    ],
)
def test_a_setting_that_others_depend_on_may_be_fixed(
    fixed: dict[str, Any], left_out: set[str]
) -> None:
    """A host would be told that it contradicts a setting which nobody has made."""

    @given(pipeline_settings(workers_num=3, **fixed))
    @settings(deadline=None)
    def check(drawn: Any) -> None:
        RunPipeline(**drawn)
        assert fixed.items() <= drawn.items()
        assert left_out.isdisjoint(drawn)
        assert "fetch_delays" in drawn

    check()
