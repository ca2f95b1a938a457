"""Claim: lease eligible rows in one short transaction and hand out tickets.

The anchor of trust is taken before the statement is sent, so that a slow answer shortens it. What a
dead holder of one of the rows had locked besides is freed in the same transaction, whatever will
become of the row now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.clock import monotonic
from rowlock.database.binds import bind_of
from rowlock.database.claim_slots import claim_slot
from rowlock.database.faults import is_outage, is_refused
from rowlock.database.transaction import in_transaction
from rowlock.leases.claim_request import ClaimedRow, ClaimRequest, Position
from rowlock.leases.equal_keys import check_keys
from rowlock.leases.item import LocksRelated, PipelineItem
from rowlock.leases.lease_dialect import LEASES, lockset_guard
from rowlock.leases.load import as_seen
from rowlock.leases.release import release_dead
from rowlock.rows.lock_tokens import fresh_token


async def claim(
    session_factory: async_sessionmaker[AsyncSession],
    request: ClaimRequest,
    *,
    lease_margin: timedelta,
    timeout: timedelta,
    locker: LocksRelated | None = None,
    reached: Callable[[Position], None] | None = None,
) -> list[PipelineItem[Any]]:
    """Lease up to `request.limit` rows in a transaction of its own; oldest first.

    Args:
        session_factory: opened and committed here.
        request: which rows, for whom, for how long.
        lease_margin: by how much the holder's trust ends before the lease.
        timeout: longest time for the transaction.
        locker: locks related rows for the items.
        reached: told the position of the last row, once it is leased for good.

    Raises:
        ModelError: the keys are objects that are not equal where their values are.
        LockWaitTimeout: somebody in this process kept the table's lockset still for so long.
        TransactionTimeout: the database did not answer in time; rows it leased all the same become
            free by expiry.
    """
    engine = bind_of(session_factory(), request.leased).engine
    request = replace(request, digits=fresh_token().hex)
    async with (
        lockset_guard(session_factory, request.leased, timeout=timeout) as in_lockset,
        claim_slot(engine, wait_s=timeout.total_seconds() / 2),
    ):
        sent_at = monotonic()

        async def lease(session: AsyncSession, connection: AsyncConnection) -> list[ClaimedRow]:
            return await _lease(connection, await _as_seen(session, request), in_lockset)

        transact = partial(in_transaction, session_factory, request.leased, timeout=timeout)
        autocommit = not request.related
        try:
            rows = await transact(lease, purpose="claim rows", autocommit=autocommit)
        except Exception as error:
            # An autocommitted claim has leased its rows before their values are decoded, and any
            # type may fail at that; without an answer their tokens are unknown here.
            if autocommit and not (is_outage(error) or is_refused(error)):
                await transact(
                    lambda _, connection: LEASES.of(connection).release_claim(connection, request),
                    purpose="release rows of a claim that cannot be read",
                )
            raise
    # A place that cannot be read is none to resume behind.
    last = next((row for row in reversed(rows) if row.unreadable is None), None)
    if last is not None and reached is not None:
        reached(last.position)
    trust_s = (request.lock_timeout - lease_margin).total_seconds()
    ticket = partial(
        _ticket,
        request=request,
        session_factory=session_factory,
        locker=locker,
        sent_at=sent_at,
        trust_s=trust_s,
    )
    return [ticket(row) for row in rows]


async def _lease(
    connection: AsyncConnection, request: ClaimRequest, in_lockset: frozenset[Any]
) -> list[ClaimedRow]:
    rows = await LEASES.of(connection).claim(connection, request, in_lockset | request.left_out)
    await check_keys(connection, request.leased, [row.id for row in rows])
    await _release_what_dead_held(connection, request, rows)
    return rows


async def _as_seen(session: AsyncSession, request: ClaimRequest) -> ClaimRequest:
    eligible = await as_seen(session, request.leased, request.eligible)
    if eligible is request.eligible:
        return request
    # What a listener asks for may differ from claim to claim.
    return replace(request, eligible=eligible, statements={})


async def _release_what_dead_held(
    connection: AsyncConnection, request: ClaimRequest, rows: Sequence[ClaimedRow]
) -> None:
    for died_here in (True, False):
        dead = [
            row.dead_token
            for row in rows
            if row.dead_token is not None and row.died_here is died_here
        ]
        for related in request.related if dead else ():
            await release_dead(connection, related, dead, only_ended=not died_here)


def _ticket(
    row: ClaimedRow,
    *,
    request: ClaimRequest,
    session_factory: async_sessionmaker[AsyncSession],
    locker: LocksRelated | None,
    sent_at: float,
    trust_s: float,
) -> PipelineItem[Any]:
    return PipelineItem(
        # Of the base class, where pyright does not look.
        id=row.id,  # pyright: ignore[reportCallIssue]
        lock_token=row.lock_token,
        lock_owner=request.owner,
        lock_expires_at=row.lock_expires_at,
        prev_lock_expired=row.dead_token is not None,
        attempt=1 if row.attempts is None else row.attempts + 1,
        place=float("-inf") if row.place is None else row.place.timestamp(),
        claimed_at=sent_at,
        trusted_until=sent_at + trust_s,
        session_factory=session_factory,
        locker=locker,
        unreadable=row.unreadable,
        leased=request.leased,
        _claimed=row.row,
    )
