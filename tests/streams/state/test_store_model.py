"""States in the database beside two dictionaries, one for each version, in whatever order things
happen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.streams.computing.compute import NO_STATE, KeyState
from rowlock.streams.computing.hashing import BUCKETS, BucketRange
from rowlock.streams.key_states import drop_empty, read_states, read_timers, write_states
from rowlock.testing import TemporaryDatabase

from ...lengths import at_length
from .test_store import FLOW, STAGE, new_table, snapshot_of, write

KEYS = [f"key {number}" for number in range(4)]
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EXAMPLES, STEPS = at_length(6, 12), 20
T = TypeVar("T")

some_states = st.dictionaries(
    st.sampled_from(KEYS),
    st.one_of(
        st.just(NO_STATE),
        st.builds(
            KeyState,
            st.integers(0, 9).map(str),
            st.none() | st.integers(0, 9).map(lambda s: NOON + timedelta(seconds=s)),
        ),
    ),
    min_size=1,
)


class Stored(RuleBasedStateMachine):
    """The table, and what it must have: of the latest version, and of the last snapshot.

    Attributes:
        runner: of the connection's loop.
        connection: in a transaction that is rolled back.
        table: of the states.
    """

    runner: asyncio.Runner
    connection: AsyncConnection
    table: Table

    def __init__(self) -> None:
        super().__init__()
        self.version, self.snapshot = 1, None
        self.latest: dict[str, KeyState] = {}
        self.frozen: dict[str, KeyState] = {}

    snapshot: int | None

    def wait(self, work: Awaitable[T]) -> T:
        async def all_of_it() -> T:
            return await work

        return self.runner.run(all_of_it())

    @rule(states=some_states)
    def step(self, states: dict[str, KeyState]) -> None:
        self.version += 1
        rows = [write(key, self.version, state, self.snapshot) for key, state in states.items()]
        self.wait(write_states(self.connection, self.table, FLOW, states=rows))
        self.latest.update(states)

    @rule()
    def take_snapshot(self) -> None:
        """Have the next writes leave what there is now."""
        self.snapshot, self.frozen = self.version, dict(self.latest)

    @precondition(lambda self: self.snapshot is not None)
    @rule(limit=st.integers(1, 3))
    def drop(self, limit: int) -> None:
        """Delete rows of which nothing is left that anybody reads."""
        assert self.snapshot is not None
        work = drop_empty(self.connection, self.table, FLOW, before=self.snapshot, limit=limit)
        assert self.wait(work) <= limit

    @invariant()
    def latest_is_as_written(self) -> None:
        """The latest states are those that were written last."""
        found = self.wait(read_states(self.connection, self.table, FLOW, name=STAGE, keys=KEYS))
        assert _there(found) == _there(self.latest)

    @invariant()
    def timers_are_those_of_the_latest(self) -> None:
        """Timers are those of the latest states, the earliest first."""
        whole = BucketRange(0, BUCKETS)
        work = read_timers(self.connection, self.table, FLOW, buckets=whole, after=None)
        found = [(one.at, one.key) for one in self.wait(work)]
        assert sorted(found) == sorted(
            (state.timer_at, key) for key, state in self.latest.items() if state.timer_at
        )
        assert [at for at, _ in found] == sorted(at for at, _ in found)

    @invariant()
    def snapshot_is_as_it_was(self) -> None:
        """What a snapshot has does not change until there is a later one."""
        if self.snapshot is not None:
            found = self.wait(snapshot_of(self.connection, self.table, self.snapshot))
            assert found == {k: one for k, one in self.frozen.items() if one.value is not None}

    def teardown(self) -> None:
        self.wait(self.connection.rollback())


def _there(states: dict[str, KeyState]) -> dict[str, KeyState]:
    return {key: state for key, state in states.items() if state != NO_STATE}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_both_versions_whatever_happens(kind: str, request: pytest.FixtureRequest) -> None:
    """One of the two versions of a state would be lost, or be the other one, in some order."""
    database: TemporaryDatabase = request.getfixturevalue(f"rowlock_{kind}_database")
    with asyncio.Runner() as runner:
        table = runner.run(new_table(database))
        Stored.runner, Stored.table = runner, table
        engine = database.create_engine()

        async def connect() -> AsyncConnection:
            return await engine.connect()

        Stored.connection = runner.run(connect())
        try:
            run_state_machine_as_test(
                Stored,
                settings=settings(
                    max_examples=EXAMPLES,
                    stateful_step_count=STEPS,
                    deadline=None,
                    derandomize=True,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(Stored.connection.close())
            runner.run(database.aclose())
