"""Hold rows as a service: the lease of a pipeline, taken by an API handler that must change what
pipelines work on.

The one idea: no connection is held while waiting. To take the rows is one short transaction,
tried again until they are free or time is up; to hold them is a lease in the rows, renewed
meanwhile by a task; the service's own transactions are its own business.

Not here: changes that need not be made at once. `request_update` asks the pipeline to make them,
without waiting.

Source: dstack, "all write APIs must respect DB-level locks".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Generic, TypeVar

from sqlalchemy import not_, select, type_coerce
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, SessionTransaction

from rowlock.clock import exponential, monotonic, sleep
from rowlock.database.faults import is_conflict
from rowlock.database.transaction import check_session_factory, in_transaction
from rowlock.errors import LeaseLost, LockWaitTimeout, PipelineError, RelatedLockUnavailable
from rowlock.hints import pipeline_hinter
from rowlock.leases.acquire import (
    ACQUIRED_ROWS_MAX,
    Acquired,
    AcquireRequest,
    Renewed,
    acquire,
    lock_held,
    read_acquired,
    read_fresh,
    release_keys,
    renew_keys,
)
from rowlock.leases.claim import as_seen
from rowlock.leases.claim_request import lockset_guard
from rowlock.locks.advisory import WAIT_S_MAX, wait_limit_s
from rowlock.logs import get_logger
from rowlock.rows.database_time import UtcDateTime, database_now, database_time_after
from rowlock.rows.eligibility import OWNER_SEPARATOR, is_free
from rowlock.rows.leased_table import LeasedTable, ModelT, changed_attributes
from rowlock.tasks import finish

logger = get_logger(__name__)

T = TypeVar("T")

HOLD_LOCK_TIMEOUT = timedelta(seconds=30)
"""How long the lease of a service lasts that died with it."""
HOLD_TIMEOUT = timedelta(seconds=10)
"""How long `hold_rows` waits for rows by default."""
DATABASE_TIMEOUT = timedelta(seconds=10)
"""Longest time for one of its transactions."""
LEASE_S_MIN = 0.1
RENEWALS_PER_LEASE = 3
MARGIN = 0.1
"""By which part of the lease the holder's trust ends before it."""
LOOK_AGAIN_S = 0.02
LOOK_AGAIN_S_MAX = 0.5


@dataclass(slots=True, eq=False)
class HeldByService(Generic[ModelT]):
    """Rows that a service holds, for the time of the block.

    Attributes:
        rows: as they were once they were held, in the order of their keys, detached. Rows that do
            not exist are not among them.
        lock_token: fences this hold.
        lock_owner: what pipelines and other services see as the holder.
    """

    rows: list[ModelT]
    lock_token: Any
    lock_owner: str
    leased: LeasedTable = field(repr=False)
    keys: tuple[Any, ...] = field(repr=False)
    trusted_until: float = field(repr=False)
    guarded: list[tuple[Session, SessionTransaction | None]] = field(
        default_factory=list, repr=False
    )

    @property
    def remaining(self) -> timedelta:
        """Time left in which the rows are surely held, unless that is renewed; never negative."""
        return timedelta(seconds=max(0.0, self.trusted_until - monotonic()))

    async def guard(self, session: AsyncSession) -> list[ModelT]:
        """Make sure that the rows are held until the session's transaction ends, and return them as
        they are now; joins it.

        Call it first in a transaction that writes them: what is committed then was written under
        the lease, whatever delayed it. Commit before the block of `hold_rows` ends. Instances that
        the session has already are refreshed.

        Raises:
            LeaseLost: they are held no longer.
        """
        if not self.keys:
            return []
        _, lost = await lock_held(session, self.leased, self.keys, token=self.lock_token)
        if lost or monotonic() >= self.trusted_until:
            raise LeaseLost(pipeline=self.lock_owner, row_id=", ".join(map(str, self.keys)))
        self.guarded.append((session.sync_session, session.sync_session.get_transaction()))
        return await read_fresh(session, self.leased, self.keys)

    def _check_written(self) -> None:
        """Refuse changes of `rows` in a block that has guarded no transaction."""
        changed = {name for row in self.rows for name in changed_attributes(row)}
        if changed and not self.guarded:
            raise PipelineError(
                f"held.rows was changed ({', '.join(sorted(changed))}), which writes nothing:"
                " change what `await held.guard(session)` returns, and commit it in the block"
            )

    def is_committed(self) -> bool:
        """Whether every transaction that `guard` has joined has ended."""
        return all(
            transaction is None or session.get_transaction() is not transaction
            for session, transaction in self.guarded
        )


@asynccontextmanager
async def hold_rows(
    session_factory: async_sessionmaker[AsyncSession],
    model: type[ModelT],
    ids: Iterable[Any],
    *,
    timeout: timedelta | float = HOLD_TIMEOUT,
    lock_timeout: timedelta | float = HOLD_LOCK_TIMEOUT,
    owner: str = "service",
) -> AsyncIterator[HeldByService[ModelT]]:
    """Hold rows for the time of the block, all or none: no pipeline and no other holder works on
    them meanwhile.

        async with hold_rows(session_factory, Volume, [volume_id], timeout=5) as held:
            async with session_factory.begin() as session:
                await held.guard(session)
                ...

    Opens short transactions of its own; between them no connection is held, neither while it waits
    nor inside the block. The transactions inside the block are the caller's: commit them there.

    Args:
        session_factory: the host's.
        model: a mapped class with the lock columns.
        ids: keys of the rows, at most `ACQUIRED_ROWS_MAX`; ids of rows that do not exist are passed
            over.
        timeout: how long to wait for them, a number being seconds, up to `WAIT_S_MAX`; 0 asks once.
        lock_timeout: after what time the rows are free if this process dies; renewed until the
            block ends.
        owner: who holds them, for `LockWaitTimeout.holder` and for those who look at the table.

    Raises:
        LockWaitTimeout: one of them was held for so long; names the holder, and how long its lease
            still lasts.
        LeaseLost: at the end of the block: the lease was lost before (a blocked event loop, a
            database that was away, a guarded transaction that took longer than the lease).
        PipelineError: at the end of the block: a guarded transaction is still open, or
            `held.rows` was changed and no transaction guarded, which writes nothing.
        TransactionTimeout: the database did not answer in time; rows that were leased are free
            when their lease ends.
        ModelError: `model` cannot be leased.
        ConfigurationError: the session factory is bound to no engine that can keep leases.
    """
    leased = LeasedTable.of(model)
    try:
        async with hold(
            session_factory, leased, ids, timeout=timeout, lock_timeout=lock_timeout, owner=owner
        ) as held:
            yield held
    finally:
        # Pipelines that were hinted meanwhile skipped the rows.
        if pipeline_hinter.reaches(model):
            pipeline_hinter.hint_fetch(model)


@asynccontextmanager
async def hold(
    session_factory: async_sessionmaker[AsyncSession],
    leased: LeasedTable,
    ids: Iterable[Any],
    *,
    timeout: timedelta | float,
    lock_timeout: timedelta | float,
    owner: str,
) -> AsyncIterator[HeldByService[Any]]:
    """Hold rows for the time of the block, as `hold_rows` does, without its hint."""
    check_session_factory(session_factory, leased)
    keys, lease_s = _checked_keys(ids), _checked_lease_s(lock_timeout)
    timeout_s = wait_limit_s(timeout)
    if timeout_s is None:
        raise ValueError("hold_rows waits for a limited time; pass a number of seconds")
    token = leased.new_token()
    name = f"{owner}{OWNER_SEPARATOR}{str(token)[:8]}"
    leased.check_owner(name)
    holder: _Holder[Any] = _Holder(
        session_factory, leased, keys, token=token, owner=name, lease_s=lease_s
    )
    try:
        held = await holder.acquire(timeout_s)
        holder.renewing = asyncio.create_task(
            holder.renew(held), name=f"rowlock: hold rows of {leased.name}"
        )
        try:
            yield held
        finally:
            if is_open := not held.is_committed():
                # Letting go would wait for that very transaction.
                holder.acquired = None
        if is_open:
            raise PipelineError(
                "a guarded transaction is still open at the end of hold_rows, and would be"
                " committed without the lease; commit inside the block. The rows stay leased until"
                " that expires"
            )
        held._check_written()
        if held.keys and monotonic() >= held.trusted_until:
            raise LeaseLost(pipeline=name, row_id=", ".join(map(str, held.keys)))
    finally:
        await finish(holder.release(), purpose="let go of held rows")


@dataclass(slots=True, eq=False)
class _Holder(Generic[ModelT]):
    """Acquires, renews and releases; after a lost COMMIT, `acquired` may not be held."""

    session_factory: async_sessionmaker[AsyncSession]
    leased: LeasedTable
    keys: tuple[Any, ...]
    token: Any
    owner: str
    lease_s: float
    acquired: Acquired | None = None
    renewing: asyncio.Task[None] | None = None

    async def acquire(self, timeout_s: float) -> HeldByService[ModelT]:
        ends_at, tries = monotonic() + timeout_s, 0
        while True:
            tries += 1
            lockset_wait_s = min(
                DATABASE_TIMEOUT.total_seconds(), max(LOOK_AGAIN_S, ends_at - monotonic())
            )
            try:
                return await self._acquire_once(lockset_wait=timedelta(seconds=lockset_wait_s))
            except (RelatedLockUnavailable, LockWaitTimeout, DBAPIError) as error:
                if isinstance(error, DBAPIError) and not is_conflict(error):
                    raise
                left_s = ends_at - monotonic()
                if left_s <= 0:
                    raise await self._timed_out(timeout_s) from None
            await sleep(
                min(left_s, exponential(tries, first_s=LOOK_AGAIN_S, most_s=LOOK_AGAIN_S_MAX))
            )

    async def _acquire_once(self, lockset_wait: timedelta) -> HeldByService[ModelT]:
        leased, lock_timeout = self.leased, timedelta(seconds=self.lease_s)
        named = leased.attribute(leased.key_name).in_(self.keys)
        request = AcquireRequest(
            leased, named, self.token, self.owner, database_time_after(lock_timeout)
        )
        async with lockset_guard(self.session_factory, leased, timeout=lockset_wait) as in_lockset:
            sent_at = monotonic()

            async def work(session: AsyncSession, connection: AsyncConnection) -> list[ModelT]:
                seen = replace(request, where=await as_seen(session, leased, named))
                self.acquired = await acquire(connection, seen, in_lockset)
                return await read_acquired(session, leased, self.acquired.keys)

            rows = await self._transact(work, purpose="hold rows")
            assert self.acquired is not None
        return HeldByService(
            rows, self.token, self.owner, leased, self.acquired.keys, self._trusted_from(sent_at)
        )

    async def renew(self, held: HeldByService[ModelT]) -> None:
        """Renew the lease three times in its length; a failure is tried again while it lasts."""

        async def work(session: AsyncSession, connection: AsyncConnection) -> Renewed:
            until = database_time_after(timedelta(seconds=self.lease_s))
            return await renew_keys(
                connection, self.leased, held.keys, token=self.token, expires_at=until
            )

        while held.keys and monotonic() < held.trusted_until:
            await sleep(self.lease_s / RENEWALS_PER_LEASE)
            sent_at = monotonic()
            try:
                renewed = await self._transact(work, purpose="renew held rows")
            except Exception as error:
                logger.warning("Renewing held rows failed: %s", self.leased.name, exc_info=error)
                continue
            if renewed.lost:
                held.trusted_until = monotonic()
            elif not renewed.lagging and monotonic() < held.trusted_until:
                held.keys = tuple(key for key in held.keys if key in renewed.done)
                held.trusted_until = self._trusted_from(sent_at)

    async def release(self) -> None:
        """End the renewals and release the rows. If the database does not take it, they expire."""
        if self.renewing is not None:
            self.renewing.cancel()
            await asyncio.wait({self.renewing})

        async def work(session: AsyncSession, connection: AsyncConnection) -> None:
            if self.acquired is not None:
                await release_keys(connection, self.leased, self.acquired, token=self.token)

        if self.acquired is not None:
            try:
                await self._transact(work, purpose="let go of held rows")
            except Exception as error:
                text = "Held rows were not freed and stay leased until they expire: %s"
                logger.warning(text, self.leased.name, exc_info=error)

    async def _timed_out(self, timeout_s: float) -> LockWaitTimeout:
        expires_at = self.leased.attribute("lock_expires_at")
        owner = self.leased.attribute("lock_owner")
        key = self.leased.attribute(self.leased.key_name)
        statement = (
            select(owner, type_coerce(expires_at, UtcDateTime), database_now())
            .where(key.in_(self.keys), not_(is_free(self.leased)))
            .order_by(expires_at.desc())
            .limit(1)
        )

        async def work(session: AsyncSession, connection: AsyncConnection) -> Any:
            return (await connection.execute(statement)).one_or_none()

        row = await self._transact(work, purpose="see who holds rows", writes=False)
        # Without an answer it is a row lock or a lockset, whose holder is not known.
        return LockWaitTimeout(
            namespace=self.leased.name,
            keys=self.keys,
            timeout_s=timeout_s,
            holder=None if row is None else row[0],
            seconds_left=None if row is None else (row[1] - row[2]).total_seconds(),
        )

    async def _transact(
        self,
        work: Callable[[AsyncSession, AsyncConnection], Awaitable[T]],
        *,
        purpose: str,
        writes: bool = True,
    ) -> T:
        return await in_transaction(
            self.session_factory,
            self.leased,
            work,
            purpose=purpose,
            timeout=DATABASE_TIMEOUT,
            writes=writes,
        )

    def _trusted_from(self, sent_at: float) -> float:
        return sent_at + self.lease_s * (1 - MARGIN)


def _checked_keys(ids: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise TypeError(f"ids is a collection of keys, not {ids!r:.100}; pass a list")
    keys = tuple(dict.fromkeys(ids))
    if len(keys) > ACQUIRED_ROWS_MAX:
        raise ValueError(f"at most {ACQUIRED_ROWS_MAX} rows can be held at once, not {len(keys)}")
    return keys


def _checked_lease_s(lock_timeout: timedelta | float) -> float:
    seconds = lock_timeout.total_seconds() if isinstance(lock_timeout, timedelta) else lock_timeout
    if not LEASE_S_MIN <= seconds <= WAIT_S_MAX:
        raise ValueError(
            f"lock_timeout must be {LEASE_S_MIN:g} to {WAIT_S_MAX:g} seconds, not {lock_timeout!r}"
        )
    return seconds
