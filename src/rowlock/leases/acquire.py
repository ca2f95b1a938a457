"""Acquire: lease particular rows for a caller that names them, all of them or none.

A claim leases whatever is due; this leases what was asked for. It never waits for a row: what
another holder has, by lease, row lock or lockset, cannot be acquired now, and the caller decides
whether to come back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Column, ColumnElement, case, func, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import undefer
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock.database.transaction import bind_of
from rowlock.dialects.contract import LEASES
from rowlock.errors import PipelineError, RelatedLockUnavailable
from rowlock.execution import execute
from rowlock.leases.claim_request import Lease, check_keys
from rowlock.rows.assignments import without_onupdate
from rowlock.rows.eligibility import is_lockable
from rowlock.rows.lease_values import leased_values, unlocked_values
from rowlock.rows.leased_table import LeasedTable

ACQUIRED_ROWS_MAX = 10_000
"""Most rows that are acquired at once; a statement of SQLite has room for some 32,000 values."""


LEASES_PER_STATEMENT_MAX = 1000
"""Most leases that one statement renews or releases."""

T = TypeVar("T")
Acquired: TypeAlias = dict[Any, str | None]
"""Keys that were acquired, in order; of a row that another pipeline had reserved, with its name."""


def in_pieces(members: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (members[start : start + size] for start in range(0, len(members), size))


async def acquire(
    connection: AsyncConnection,
    leased: LeasedTable,
    where: ColumnElement[bool],
    *,
    lease: tuple[Any, str, Any],
    held: frozenset[Any],
) -> Acquired:
    """Lease all rows of `where`, or none, by a `lease` of token, owner and expiry. Rows that the
    same token holds already are renewed. Keys `held` are held by others in this process.
    """
    token, owner, expires_at = lease
    key, lock_owner = leased.attribute(leased.key_name), leased.attribute("lock_owner")
    to_be_had = (
        select(key, case((leased.attribute("lock_token").is_(None), lock_owner)))
        .where(where, is_lockable(leased, token), key.not_in(held) if held else true())
        .order_by(key)
        .limit(ACQUIRED_ROWS_MAX + 1)
        .with_for_update(key_share=True, skip_locked=True, of=leased.model)
    )
    found = {row[0]: row[1] for row in (await connection.execute(to_be_had)).all()}
    check_keys(leased, found)
    if len(found) > ACQUIRED_ROWS_MAX:
        raise PipelineError(
            f"more than {ACQUIRED_ROWS_MAX} rows of {leased.name} are to be locked at once; narrow"
            " the condition"
        )
    all_of_them = select(func.count()).select_from(leased.model).where(where)
    missing = await connection.scalar(all_of_them.where(key.not_in(found))) or 0
    if missing:
        raise RelatedLockUnavailable(
            model=leased.name, wanted=len(found) + missing, available=len(found)
        )
    if found:
        values = leased_values(leased, token=token, owner=owner, expires_at=expires_at)
        await connection.execute(update(leased.table).where(leased.key.in_(found)).values(values))
    return found


def needed_options(leased: LeasedTable, compared: Sequence[Column[Any]]) -> list[LoaderOption]:
    """Return options that load what an outcome is planned from, and what it is `compared` with."""
    others = (leased.mapper.get_property_by_column(column).key for column in compared)
    return [undefer(leased.attribute(name)) for name in (*leased.lease_columns, *others)]


async def read_acquired(
    session: AsyncSession,
    leased: LeasedTable,
    keys: Iterable[Any],
    *,
    compared: Sequence[Column[Any]] = (),
) -> list[Any]:
    """Return the rows of `keys`, detached, in their order."""
    rows = await read_fresh(session, leased, keys, *needed_options(leased, compared))
    session.expunge_all()
    return rows


async def read_fresh(
    session: AsyncSession, leased: LeasedTable, keys: Iterable[Any], *options: LoaderOption
) -> list[Any]:
    """Return the rows of `keys` as they are now, attached, in order."""
    key, bind = leased.attribute(leased.key_name), bind_of(session, leased)
    statement = select(leased.model).where(key.in_(keys)).order_by(key).options(*options)
    fresh = statement.execution_options(populate_existing=True)
    return list((await execute(session, fresh, bind_arguments={"bind": bind})).scalars().unique())


def held_under(leased: LeasedTable, keys: Collection[Any], token: object) -> ColumnElement[bool]:
    return leased.key.in_(keys) & (leased.column("lock_token") == token)


async def lock_held(
    session: AsyncSession, leased: LeasedTable, keys: Collection[Any], *, token: object
) -> tuple[frozenset[Any], frozenset[Any]]:
    """Keep rows with `token` as they are until the transaction ends; return their keys, and those
    of rows that are there and no longer held.
    """
    # In the order in which all transactions lock rows, or two that want the same ones may deadlock.
    in_order = select(leased.key).where(leased.key.in_(keys)).order_by(leased.key)
    bind = {"bind": bind_of(session, leased)}
    locking = in_order.with_for_update(key_share=True)
    there = frozenset((await execute(session, locking, bind_arguments=bind)).scalars())
    # On SQLite a SELECT locks nothing and does not even begin a transaction.
    values = without_onupdate(leased, {leased.column("lock_token"): leased.column("lock_token")})
    ours = update(leased.table).where(held_under(leased, keys, token))
    statement = ours.values(values).returning(leased.key)
    held = frozenset((await execute(session, statement, bind_arguments=bind)).scalars())
    return held, there - held


async def release_acquired(
    connection: AsyncConnection,
    held: Iterable[tuple[LeasedTable, Acquired, Any]],
    *,
    waits: bool = True,
) -> None:
    """Release rows that still carry the tokens under which they were acquired. Unless it `waits`
    for them, locked rows are left to their expiry.
    """
    leases: dict[tuple[LeasedTable, str | None], list[Lease]] = {}
    for leased, acquired, token in held:
        for key, owner in acquired.items():
            # Rows that another pipeline had reserved go back to it.
            leases.setdefault((leased, owner), []).append((key, token))
    dialect = LEASES.of(connection)
    for (leased, owner), pairs in leases.items():
        values = without_onupdate(leased, unlocked_values(leased, owner=owner))
        ours = dialect.matches_leases(leased)
        statement = update(leased.table).values(values)
        statement = statement.where(ours if waits else dialect.skip_locked(leased, ours))
        for chunk in in_pieces(pairs, LEASES_PER_STATEMENT_MAX):
            await connection.execute(statement, dialect.lease_parameters(leased, chunk))
