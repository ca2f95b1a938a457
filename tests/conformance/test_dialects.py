"""One suite for both databases: what `rowlock.leases.claim_request` promises, for every kind of
model that is accepted.

A third database is a third parameter of the fixture `database`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from sqlalchemy import select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import PipelineItem
from rowlock.database.transaction import in_transaction
from rowlock.dialects.contract import LEASES, TRANSACTIONS, LeaseDialect
from rowlock.dialects.postgresql.leases import PostgresqlLeases
from rowlock.dialects.sqlite.leases import SqliteLeases
from rowlock.errors import UnsupportedDialectError
from rowlock.leases.apply import RowWrite, Written, apply_locked, lock_for_apply, processed_at
from rowlock.leases.claim import claim, load_rows
from rowlock.leases.claim_request import ClaimRequest
from rowlock.leases.release import release, sweep
from rowlock.leases.renew import renew, tokens_still_held
from rowlock.rows.eligibility import eligible_parts, oldest_first
from rowlock.rows.lease_values import processed_values, unlocked_values
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase

from ..leases.ground import apply
from .kinds import KINDS, Animal, ByNumber, ByUuid, Cat, KindsBase

T = TypeVar("T")
TIMEOUT = timedelta(seconds=20)
LOCK_TIMEOUT = timedelta(seconds=30)
FUNCTIONS = (
    *("claim", "matches_leases", "lease_parameters", "held_parameters"),
    *("unnested", "skip_locked", "indexes", "serving"),
)
each_kind = pytest.mark.parametrize("model", KINDS, ids=lambda model: model.__name__)


async def insert_rows(database: TemporaryDatabase, *rows: Any) -> list[Any]:
    """Make the tables and insert the rows; return their keys."""
    await database.create_tables(KindsBase.metadata)
    async with database.session_factory.begin() as session:
        session.add_all(rows)
    return [row.id for row in rows]


async def transact(
    database: TemporaryDatabase,
    leased: LeasedTable,
    step: Callable[[AsyncConnection], Awaitable[T]],
) -> T:
    async def work(session: AsyncSession, connection: AsyncConnection) -> T:
        return await step(connection)

    return await in_transaction(
        database.session_factory, leased, work, purpose="take a step", timeout=TIMEOUT
    )


def order_for(leased: LeasedTable, *, limit: int = 1000) -> ClaimRequest:
    condition = eligible_parts(
        leased, ready=true(), owner="Me", min_processing_interval=timedelta(0)
    ).whole
    return ClaimRequest(leased, condition, oldest_first(leased), "Me", LOCK_TIMEOUT, limit)


async def claimed(
    database: TemporaryDatabase, leased: LeasedTable, *, limit: int = 1000
) -> list[PipelineItem[Any]]:
    return await claim(
        database.session_factory,
        order_for(leased, limit=limit),
        lease_margin=timedelta(0),
        timeout=TIMEOUT,
    )


async def columns_of(
    database: TemporaryDatabase, leased: LeasedTable, *names: str
) -> dict[Any, tuple[Any, ...]]:
    async with database.engine.connect() as connection:
        columns = [leased.column(name) for name in names]
        found = await connection.execute(select(leased.key, *columns))
        return {row[0]: tuple(row)[1:] for row in found}


# ---------------------------------------------------------------- the shape


@pytest.mark.parametrize("implementation", [PostgresqlLeases, SqliteLeases])
def test_all_have_the_same_functions_in_the_same_order(implementation: type[LeaseDialect]) -> None:
    """A reader who knows one file would not know the other; a call would work on one database
    only.
    """
    for members in (vars(LeaseDialect), vars(implementation)):
        assert tuple(one for one in members if one in LeaseDialect.__abstractmethods__) == FUNCTIONS
    for name in FUNCTIONS:
        promised = inspect.signature(getattr(LeaseDialect, name))
        assert list(inspect.signature(getattr(implementation, name)).parameters) == list(
            promised.parameters
        )


async def test_a_connection_knows_its_dialect(database: TemporaryDatabase) -> None:
    """Statements of one database would be sent to the other."""
    async with database.engine.connect() as connection:
        found = LEASES.of(connection)
    assert found is LEASES.on(database.dialect_name)
    assert isinstance(
        found, {"postgresql": PostgresqlLeases, "sqlite": SqliteLeases}[database.dialect_name]
    )


def test_another_database_is_refused() -> None:
    """A host would meet a KeyError, or SQL that its database does not know."""
    with pytest.raises(
        UnsupportedDialectError, match="rowlock runs on postgresql and sqlite, not on 'mysql'"
    ) as caught:
        LEASES.on("mysql")
    assert caught.value.dialect_name == "mysql"


# -------------------- a lease's whole life, for every kind of model


@each_kind
async def test_a_lease_lives_alike_for_every_kind_of_model(
    database: TemporaryDatabase, model: type[Any]
) -> None:
    """A model that was accepted at construction would fail at the first claim, renewal or
    outcome.
    """
    leased = LeasedTable.of(model)
    keys = await insert_rows(database, model(), model(), model())
    items = await claimed(database, leased)
    assert sorted(item.id for item in items) == sorted(keys)
    tokens = {item.id: item.lock_token for item in items}
    assert {
        key: token for key, (token,) in (await columns_of(database, leased, "lock_token")).items()
    } == tokens

    renewed = await transact(
        database, leased, lambda c: renew(c, leased, items, lock_timeout=LOCK_TIMEOUT)
    )
    assert set(renewed) == set(tokens.values())
    assert all(
        expiry >= item.lock_expires_at for item in items for expiry in [renewed[item.lock_token]]
    )
    assert await transact(database, leased, lambda c: tokens_still_held(c, leased, items)) == set(
        tokens.values()
    )

    async with database.session_factory() as session:
        rows = await load_rows(session, leased, items)
    assert [row.id for row in rows if row is not None] == [item.id for item in items]
    assert {row.lock_token for row in rows if row is not None} == set(tokens.values())

    one, two, three = items
    status = leased.column("status")
    times = []

    async def write(connection: AsyncConnection) -> None:
        now, locked = await lock_for_apply(connection, leased, [one, two])
        assert now is not None
        assert set(locked) == {one.lock_token, two.lock_token}
        times.append(now)
        values = {status: "done", **unlocked_values(leased), **processed_values(leased, now)}
        stale = await apply_locked(connection, leased, [(one, RowWrite(values))])
        alone = await apply(
            connection, leased, two, write=RowWrite(values, unless_changed={status: "new"})
        )
        assert [*stale, alone] == [Written.APPLIED, Written.APPLIED]

    await transact(database, leased, write)
    assert await transact(database, leased, lambda c: release(c, leased, items)) == {three.id}
    left = await columns_of(
        database, leased, "lock_token", "lock_owner", "lock_expires_at", "status"
    )
    assert left == {
        one.id: (None, None, None, "done"),
        two.id: (None, None, None, "done"),
        three.id: (None, None, None, "new"),
    }
    for item, processed in ((one, True), (three, False)):
        stamps = frozenset(times)
        found = await transact(
            database, leased, lambda c, i=item, s=stamps: processed_at(c, leased, [i], stamps=s)
        )
        assert found == {item.id: Written.APPLIED if processed else Written.STALE}


@pytest.mark.databases_in_turn
@each_kind
async def test_what_was_left_behind_is_swept_for_every_kind_of_model(
    database_with_clock: TemporaryDatabase, model: type[Any]
) -> None:
    """A dead pipeline's name would stay on the rows of some models."""
    database, leased = database_with_clock, LeasedTable.of(model)
    await insert_rows(database, model())
    await claimed(database, leased)
    database.clock.advance(LOCK_TIMEOUT * 2 + timedelta(milliseconds=1))
    assert (
        await transact(database, leased, lambda c: sweep(c, leased, older_than=LOCK_TIMEOUT)) == 1
    )
    assert list((await columns_of(database, leased, "lock_owner")).values()) == [(None,)]


@pytest.mark.databases_in_turn(first=1)
@each_kind
async def test_the_oldest_come_first_for_every_kind_of_model(
    database_with_clock: TemporaryDatabase, model: type[Any]
) -> None:
    """Times of some models would be compared as something else than times."""
    database, leased = database_with_clock, LeasedTable.of(model)
    name = "due_at" if leased.has_schedule else "last_processed_at"
    ages = [timedelta(minutes=minutes) for minutes in (5, 700, 60 * 24 * 40, 1)]
    now = database.clock.now
    keys = await insert_rows(database, *(model(**{name: now - age}) for age in ages))
    items = await claimed(database, leased, limit=3)
    assert [item.id for item in items] == [keys[2], keys[1], keys[0]]
    assert [item.place for item in items] == [(now - ages[n]).timestamp() for n in (2, 1, 0)]


async def test_a_pipeline_of_one_kind_of_animal_leaves_the_others(
    database: TemporaryDatabase,
) -> None:
    """A pipeline would lease rows that it cannot read, over and over: its model does not map
    them.
    """
    await insert_rows(database, Animal(), Animal())
    (cat,) = await insert_rows(database, Cat())
    items = await claimed(database, LeasedTable.of(Cat))
    assert [item.id for item in items] == [cat]


# ---------------------------------------------------------------- each function


async def test_writing_begins_before_the_first_statement(database: TemporaryDatabase) -> None:
    """A claim would begin as a reader, and fail half-way when another one wrote meanwhile."""
    await insert_rows(database, ByUuid())
    async with database.engine.begin() as connection:
        await TRANSACTIONS.of(connection).begin_writing(connection, wait_s=5)
        await connection.execute(update(ByUuid.__table__).values(status="written"))
        raw = await connection.get_raw_connection()
        assert raw.driver_connection is not None
        assert bool(getattr(raw.driver_connection, "in_transaction", True))
    assert list((await columns_of(database, LeasedTable.of(ByUuid), "status")).values()) == [
        ("written",)
    ]


async def test_held_keys_are_not_claimed(database: TemporaryDatabase) -> None:
    """What a service holds would be worked on at the same time."""
    leased = LeasedTable.of(ByUuid)
    await insert_rows(database, *(ByUuid() for _ in range(5)))
    dialect = LEASES.on(database.dialect_name)
    async with dialect.excluding(leased, timeout=timedelta(seconds=10)) as held:
        assert held == frozenset()
        rows = await transact(database, leased, lambda c: dialect.claim(c, order_for(leased), held))
    assert len(rows) == 5
    assert [row.dead_token for row in rows] == [None] * 5
    assert [row.attempts for row in rows] == [None] * 5


async def test_attempts_of_a_claim(database: TemporaryDatabase) -> None:
    """`process` would be told another attempt than the row has."""
    leased = LeasedTable.of(ByNumber)
    await insert_rows(database, ByNumber(attempts=3))
    dialect = LEASES.on(database.dialect_name)
    (row,) = await transact(
        database, leased, lambda c: dialect.claim(c, order_for(leased), frozenset())
    )
    assert row.attempts == 3
    assert type(row.attempts) is int
