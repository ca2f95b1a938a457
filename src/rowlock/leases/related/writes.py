"""What becomes of related rows that an item holds: renewed, written and released together with the
main row.

Every function joins the transaction that does the same with the main row. That row is locked there
already, so none waits for a related row: waiting for a second row lock while holding one could
deadlock.

Not here: how they are locked (``leases/related/locker.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import LockWaitTimeout
from rowlock.leases.acquire import existing, held_under, release_keys
from rowlock.leases.apply import RelatedWrite, with_versions
from rowlock.leases.claim_request import Lease
from rowlock.leases.compare import all_unchanged
from rowlock.leases.item import PipelineItem
from rowlock.leases.lease_dialect import LEASES
from rowlock.leases.renew import LEASES_PER_STATEMENT_MAX, renew_each
from rowlock.rows.assignments import Shape, set_clause, slots_of, split, without_onupdate
from rowlock.rows.lease_values import unlocked_values
from rowlock.rows.leased_table import LeasedTable


async def lock_held_related(
    connection: AsyncConnection, item: PipelineItem[Any]
) -> frozenset[tuple[type, Any]]:
    """Lock the related rows that still carry the item's token, and return their models and keys;
    joins the caller's transaction.

    Waits for none of them, since the main row is locked already: waiting for a second row lock
    while holding one could deadlock.

    Raises:
        LockWaitTimeout: somebody has locked one of them for the moment; the whole transaction is to
            be tried again.
    """
    locked: set[tuple[type, Any]] = set()
    for leased, acquired in item.held.perhaps() if item.held is not None else ():
        ours = select(leased.key).where(
            held_under(leased, acquired.keys, leased.as_token(item.lock_token))
        )
        mine = frozenset(
            (await connection.scalars(ours.with_for_update(key_share=True, skip_locked=True))).all()
        )
        if len(mine) < len(acquired.keys) and len((await connection.scalars(ours)).all()) > len(
            mine
        ):
            raise LockWaitTimeout(namespace=leased.name, keys=acquired.keys, timeout_s=0.0)
        locked |= {(leased.model, key) for key in mine}
    return frozenset(locked)


async def write_related(
    connection: AsyncConnection, item: PipelineItem[Any], writes: Sequence[RelatedWrite]
) -> None:
    """Write to the related rows of `item`, if all that it holds are still its own, and free all;
    joins the caller's transaction.

    Raises:
        LeaseLost: one of them is not, or a service has changed what is written; nothing may be
            committed of this transaction.
        LockWaitTimeout: as `lock_held_related`.
    """
    assert item.held is not None
    locked = await lock_held_related(connection, item)
    for leased, keys in item.held.known():
        if any((leased.model, key) not in locked for key in keys):
            raise item.lease_lost(leased.name)
    by_table: dict[LeasedTable, list[RelatedWrite]] = {}
    for write in writes:
        by_table.setdefault(write.leased, []).append(write)
    for leased, of_table in by_table.items():
        token = leased.as_token(item.lock_token)
        as_read = [((write.key, token), item.held.as_read(leased, write.key)) for write in of_table]
        if not await all_unchanged(connection, leased, as_read):
            raise item.lease_lost(leased.name)
    for leased, of_table in by_table.items():
        await _write(connection, leased, of_table)
    await _release_all(connection, item)


async def release_related(connection: AsyncConnection, item: PipelineItem[Any]) -> None:
    """Release every related row that still carries the item's token; joins the caller's
    transaction.

    Raises:
        LockWaitTimeout: as `lock_held_related`.
    """
    await lock_held_related(connection, item)
    await _release_all(connection, item)


async def release_unlocked_related(
    connection: AsyncConnection, items: Iterable[PipelineItem[Any]]
) -> None:
    """As `release_related`, for many items at once, but rows that another transaction has locked
    for the moment are left to their expiry.
    """
    leases: dict[tuple[LeasedTable, str | None], list[Lease]] = {}
    for item in items:
        for leased, acquired in item.held.perhaps() if item.held is not None else ():
            token = leased.as_token(item.lock_token)
            for key in acquired.keys:
                # Rows that another pipeline had reserved go back to it.
                group = leased, acquired.reset_by.get(key)
                leases.setdefault(group, []).append((key, token))
    dialect = LEASES.of(connection)
    for (leased, owner), pairs in leases.items():
        values = without_onupdate(leased, unlocked_values(leased, owner=owner))
        unlocked = dialect.skip_locked(leased, dialect.matches_leases(leased))
        statement = update(leased.table).where(unlocked).values(values)
        for start in range(0, len(pairs), LEASES_PER_STATEMENT_MAX):
            chunk = pairs[start : start + LEASES_PER_STATEMENT_MAX]
            await connection.execute(statement, dialect.lease_parameters(chunk))


async def _release_all(connection: AsyncConnection, item: PipelineItem[Any]) -> None:
    for leased, acquired in item.held.perhaps() if item.held is not None else ():
        await release_keys(connection, leased, acquired, token=leased.as_token(item.lock_token))


async def renew_related(
    connection: AsyncConnection, items: Iterable[PipelineItem[Any]], *, lock_timeout: timedelta
) -> frozenset[Any]:
    """Let the related rows of `items` be held as long as their main rows; joins the transaction
    that renewed those.

    Returns:
        The tokens of items of which a related row was not renewed: it is locked by somebody for the
        moment, or lost. One that was deleted needs no lease.
    """
    leases: dict[LeasedTable, dict[tuple[Any, Any], Any]] = {}
    missing: set[Any] = set()
    for item in items:
        for leased, acquired in item.held.perhaps() if item.held is not None else ():
            token = leased.as_token(item.lock_token)
            leases.setdefault(leased, {}).update({(key, token): item for key in acquired.keys})
    for leased, holders in leases.items():
        pairs = list(holders)
        for start in range(0, len(pairs), LEASES_PER_STATEMENT_MAX):
            chunk = pairs[start : start + LEASES_PER_STATEMENT_MAX]
            renewed = await renew_each(connection, leased, chunk, lock_timeout=lock_timeout)
            if len(renewed) == len(chunk):
                continue
            there = await existing(
                connection, leased, [key for key, _ in chunk if key not in renewed]
            )
            missing |= {
                item.lock_token
                for (key, token), item in holders.items()
                if key in there and item.held is not None and item.held.is_known(leased, key)
            }
    return frozenset(missing)


async def _write(
    connection: AsyncConnection, leased: LeasedTable, writes: Sequence[RelatedWrite]
) -> None:
    """Write to rows that are locked, those of one shape in a round trip: `check_related` bounds
    how many there are.
    """
    groups: dict[Shape, list[dict[str, Any]]] = {}
    each = await with_versions(connection, leased, [(write.key, write.values) for write in writes])
    for write, values in zip(writes, each, strict=True):
        shape, parameters = split(values)
        given = {name: value for (name, _), value in zip(slots_of(shape), parameters, strict=True)}
        groups.setdefault(shape, []).append({"rowlock_key": write.key, **given})
    for shape, rows in groups.items():
        statement = update(leased.table).where(
            leased.key == bindparam("rowlock_key", type_=leased.key.type)
        )
        await connection.execute(statement.values(set_clause(shape)), rows)
