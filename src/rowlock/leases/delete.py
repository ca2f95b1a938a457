"""Delete: delete rows under the same guard as an outcome.

Alone, a row is first written like any outcome, which proves that it is this claim's and that the
transaction lasts; what else belongs to the transaction comes between, such as the deletion of rows
that refer to it. Together, rows that are locked are deleted by one statement.

Not here: what is written to related rows (``leases/related/writes.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Executable, delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import OutcomeError
from rowlock.leases.apply import Written
from rowlock.leases.item import PipelineItem, leases_of
from rowlock.leases.lease_dialect import LEASES
from rowlock.rows.database_time import database_instant
from rowlock.rows.leased_table import LeasedTable


async def delete_locked(
    connection: AsyncConnection, leased: LeasedTable, items: Sequence[PipelineItem[Any]]
) -> frozenset[Any]:
    """Delete those rows of `items` that are still theirs; joins the caller's transaction, which has
    locked them.

    A stronger lock is needed than a write takes: rows to which somebody adds a reference at this
    moment are left out, so that nobody waits for that.

    Returns:
        The keys of the rows that were deleted.
    """
    if not items:
        return frozenset()
    dialect = LEASES.of(connection)

    def build() -> Executable:
        ours = select(leased.key).where(dialect.matches_leases(leased))
        free = ours.with_for_update(skip_locked=True)
        return delete(leased.table).where(leased.key.in_(free)).returning(leased.key)

    statement = leased.prepared((delete_locked, dialect), build)
    parameters = dialect.lease_parameters(leases_of(items))
    return frozenset((await connection.scalars(statement, parameters)).all())


async def delete_written(
    connection: AsyncConnection, leased: LeasedTable, item: PipelineItem[Any]
) -> None:
    """Delete the row of `item`, which this transaction has written and unlocked; joins it.

    Raises:
        OutcomeError: a trigger or a policy of the database keeps it.
    """
    free = leased.column("lock_token").is_(None)
    statement = delete(leased.table).where(leased.key == item.id, free)
    if (await connection.execute(statement)).rowcount == 0:
        raise OutcomeError(
            f"{leased.name} {item.id} was not deleted: a trigger or a policy of the database, or"
            " also, keeps it or has deleted it before"
        )


async def deleted(
    connection: AsyncConnection,
    leased: LeasedTable,
    items: Sequence[PipelineItem[Any]],
    *,
    waits: bool = False,
) -> dict[Any, Written]:
    """Say of each row of `items`, by its key, whether it was deleted by a transaction whose COMMIT
    was not answered; joins the caller's transaction.

    A row that is there was not (stale). One that is gone was, as long as its lease would last:
    nobody else had it. Later, somebody else may have had it, and deleted it (unknown). PostgreSQL
    may still be carrying a COMMIT out: if it `waits` for the rows' locks, what is returned is as
    that has ended.
    """
    found = select(leased.key).where(leased.key.in_([item.id for item in items]))
    rows = await connection.scalars(found.with_for_update(key_share=True) if waits else found)
    there = frozenset(rows.all())
    # Asked afterwards: as long as the lease lasts now, it lasted when the row was looked for.
    now = await connection.scalar(select(database_instant()))
    assert now is not None
    return {item.id: _became(item, is_there=item.id in there, now=now) for item in items}


def _became(item: PipelineItem[Any], *, is_there: bool, now: Any) -> Written:
    if is_there:
        return Written.STALE
    return Written.APPLIED if now < item.lock_expires_at else Written.UNKNOWN
