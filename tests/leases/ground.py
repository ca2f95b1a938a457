"""Steps that the tests of this room share: make rows, claim them, look at them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import PipelineItem
from rowlock.database.transaction import in_transaction
from rowlock.leases.apply import RowWrite, Written, apply_locked, lock_for_apply
from rowlock.leases.claim import claim
from rowlock.leases.claim_request import ClaimRequest
from rowlock.rows.eligibility import eligible_parts, oldest_first
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase

from ..host import Base, Run, Volume

T = TypeVar("T")

VOLUMES = LeasedTable.of(Volume)
RUNS = LeasedTable.of(Run)
LOCK_TIMEOUT = timedelta(seconds=30)
MARGIN = timedelta(seconds=3)
INTERVAL = timedelta(seconds=15)
TIMEOUT = timedelta(seconds=10)


async def add(database: TemporaryDatabase, *rows: Any) -> None:
    for metadata in {Base.metadata, *(type(row).metadata for row in rows)}:
        await database.create_tables(metadata)
    async with database.session_factory.begin() as session:
        session.add_all(rows)


def order_for(leased: LeasedTable, owner: str = "Me", limit: int = 10) -> ClaimRequest:
    """Return the order of a pipeline named `owner`, for which rows in their first status are
    ready.
    """
    ready = leased.attribute("status").in_(["submitted", "queued"])
    return ClaimRequest(
        leased,
        eligible=eligible_parts(
            leased, ready=ready, owner=owner, min_processing_interval=INTERVAL
        ).whole,
        oldest_first=oldest_first(leased),
        owner=owner,
        lock_timeout=LOCK_TIMEOUT,
        limit=limit,
    )


async def claimed(
    database: TemporaryDatabase,
    leased: LeasedTable = VOLUMES,
    *,
    owner: str = "Me",
    limit: int = 10,
) -> list[PipelineItem[Any]]:
    request = order_for(leased, owner, limit)
    return await claim(database.session_factory, request, lease_margin=MARGIN, timeout=TIMEOUT)


async def transact(
    database: TemporaryDatabase,
    work: Callable[[AsyncConnection], Awaitable[T]],
    leased: LeasedTable = VOLUMES,
) -> T:
    async def with_connection(session: AsyncSession, connection: AsyncConnection) -> T:
        return await work(connection)

    return await in_transaction(
        database.session_factory, leased, with_connection, purpose="test", timeout=TIMEOUT
    )


async def row_of(database: TemporaryDatabase, leased: LeasedTable, key: object) -> Any:
    async with database.session_factory() as session:
        return (await session.scalars(select(leased.model).where(leased.key == key))).one()


async def change(
    database: TemporaryDatabase, leased: LeasedTable, key: object, **values: object
) -> None:
    """Write to a row behind the library's back, as a service or another replica would."""
    named = {leased.column(name): value for name, value in values.items()}
    async with database.session_factory.begin() as session:
        await session.execute(update(leased.table).where(leased.key == key).values(named))


async def apply(connection: Any, leased: Any, item: Any, *, write: RowWrite) -> Written:
    """Write one outcome as in a transaction of its own."""
    _, locked = await lock_for_apply(connection, leased, [item], waits=True)
    return (await apply_locked(connection, leased, [(item, write)]))[0] if locked else Written.STALE
