"""States in the database: the latest of each key, and those of the last snapshot; also beside two
dictionaries, one for each version, in whatever order things happen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, TypeVar

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
from sqlalchemy import Table, func, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import DeclarativeBase

from rowlock.streams import key_states as store
from rowlock.streams.computing.compute import NO_STATE, KeyState
from rowlock.streams.computing.hashing import BUCKETS, BucketRange, bucket_of
from rowlock.streams.key_states import (
    PageBounds,
    StateWrite,
    drop_empty,
    read_snapshot,
    read_states,
    read_timers,
    write_states,
)
from rowlock.streams.shards.layout import even_layout
from rowlock.streams.tables import StreamTables
from rowlock.testing import TemporaryDatabase

from ...lengths import at_length

FLOW = 7
STAGE = "add"
KEYS = [f"key {number}" for number in range(12)]
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Base(DeclarativeBase):
    pass


async def new_table(database: TemporaryDatabase) -> Table:
    tables = StreamTables.of(Base)
    await database.create_tables(Base.metadata)
    return tables.state


def write(key: str, version: int, state: KeyState, snapshot: int | None) -> StateWrite:
    return StateWrite(STAGE, key, bucket_of(key), version, state, snapshot)


async def snapshot_of(connection: AsyncConnection, table: Table, version: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    after = ""
    while page := await read_snapshot(
        connection, table, FLOW, name=STAGE, version=version, after=after, most=PageBounds(3, 1_000)
    ):
        found.update(page)
        after = page[-1][0]
    return found


async def test_what_is_dropped_leaves_no_row(database: TemporaryDatabase) -> None:
    """The table would keep a row for each key that there ever was."""
    table = await new_table(database)
    async with database.create_engine().connect() as connection:
        count = select(func.count()).select_from(table)
        await write_states(
            connection, table, FLOW, states=[write(key, 1, KeyState("1"), None) for key in KEYS]
        )
        await write_states(
            connection, table, FLOW, states=[write(key, 2, NO_STATE, None) for key in KEYS[:4]]
        )
        assert await connection.scalar(count) == len(KEYS) - 4
        await write_states(
            connection, table, FLOW, states=[write(key, 3, NO_STATE, 2) for key in KEYS[4:]]
        )
        # The snapshot has them still.
        assert await drop_empty(connection, table, FLOW, before=2, limit=100) == 0
        assert len(await snapshot_of(connection, table, 2)) == len(KEYS) - 4
        assert await drop_empty(connection, table, FLOW, before=4, limit=3) == 3
        assert await drop_empty(connection, table, FLOW, before=4, limit=100) == len(KEYS) - 7
        assert await connection.scalar(count) == 0


async def test_timers_are_read_by_shard_and_time(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer would be read by the wrong shard, or be left out between two pages."""
    monkeypatch.setattr(store, "TIMERS_READ_MAX", 5)
    table = await new_table(database)
    random = Random(4)
    timers = {f"k{number}": NOON + timedelta(seconds=random.randrange(8)) for number in range(60)}
    async with database.create_engine().connect() as connection:
        states = [write(key, 1, KeyState("1", at), None) for key, at in timers.items()]
        states.append(write("without", 1, KeyState("1"), None))
        await write_states(connection, table, FLOW, states=states)
        for shard in [*even_layout(4), BucketRange(0, BUCKETS)]:
            found: dict[str, datetime] = {}
            after: datetime | None = None
            while page := await read_timers(connection, table, FLOW, buckets=shard, after=after):
                assert not found.keys() & {timer.key for timer in page}
                assert [one.at for one in page] == sorted(one.at for one in page)
                found.update({timer.key: timer.at for timer in page})
                after = page[-1].at
            own = {key: at for key, at in timers.items() if bucket_of(key) in shard}
            assert found == own


FEW_KEYS = [f"key {number}" for number in range(4)]
EXAMPLES, STEPS = at_length(6, 12), 20
T = TypeVar("T")

some_states = st.dictionaries(
    st.sampled_from(FEW_KEYS),
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
    """The table, and what it must have: of the latest version, and of the last snapshot."""

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
        found = self.wait(read_states(self.connection, self.table, FLOW, name=STAGE, keys=FEW_KEYS))
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
