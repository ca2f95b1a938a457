"""Hold rows as a service: the lease of a pipeline, taken by an API handler that must change what
pipelines work on.

To take the rows is one short transaction, tried again until they are free or time is up.

Source: dstack, "all write APIs must respect DB-level locks".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Generic

from sqlalchemy import not_, select, type_coerce
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, SessionTransaction

from rowlock.clock import exponential, monotonic, sleep
from rowlock.database.faults import is_conflict
from rowlock.database.transaction import bind_of, check_session_factory, in_transaction
from rowlock.dialects.contract import LEASES
from rowlock.errors import LeaseLost, LockWaitTimeout, PipelineError, RelatedLockUnavailable
from rowlock.hints import pipeline_hinter
from rowlock.leases.acquire import (
    ACQUIRED_ROWS_MAX,
    Acquired,
    acquire,
    held_under,
    lock_held,
    read_acquired,
    read_fresh,
    release_acquired,
)
from rowlock.leases.claim import as_seen
from rowlock.leases.renew import not_renewed
from rowlock.locks.advisory import WAIT_S_MAX, wait_limit_s
from rowlock.logs import get_logger
from rowlock.rows.database_time import UtcDateTime, database_now, database_time_after
from rowlock.rows.eligibility import OWNER_SEPARATOR, is_free
from rowlock.rows.leased_table import LeasedTable, ModelT, changed_attributes
from rowlock.tasks import finish

logger = get_logger(__name__)

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


class HeldByService(Generic[ModelT]):
    """Rows that a service holds, for the time of the block.

    Attributes:
        rows: as they were once they were held, in the order of their keys, detached. Rows that do
            not exist are not among them.
        lock_token: fences this hold.
        lock_owner: what pipelines and other services see as the holder.
    """

    def __init__(
        self,
        session_factory: async_sessionmaker[AsyncSession],
        leased: LeasedTable,
        keys: tuple[Any, ...],
        *,
        owner: str,
        lease_s: float,
    ) -> None:
        self.rows: list[ModelT] = []
        self.keys = keys
        self.lock_token = leased.new_token()
        self.lock_owner = f"{owner}{OWNER_SEPARATOR}{str(self.lock_token)[:8]}"
        leased.check_owner(self.lock_owner)
        self._leased, self._lease_s = leased, lease_s
        self._engine = bind_of(session_factory(), leased)
        self._transact: Callable[..., Awaitable[Any]] = partial(
            in_transaction, session_factory, leased, timeout=DATABASE_TIMEOUT
        )
        self._trusted_until = 0.0
        self._guarded: list[tuple[Session, SessionTransaction | None]] = []
        self._acquired: Acquired | None = None
        """Written before the COMMIT: if its answer is lost, rows may be held, and are released."""
        self._renewing: asyncio.Task[None] | None = None

    @property
    def remaining(self) -> timedelta:
        """Time left in which the rows are surely held, unless that is renewed; never negative."""
        return timedelta(seconds=max(0.0, self._trusted_until - monotonic()))

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
        _, lost = await lock_held(session, self._leased, self.keys, token=self.lock_token)
        self._check_trust(lost)
        self._guarded.append((session.sync_session, session.sync_session.get_transaction()))
        return await read_fresh(session, self._leased, self.keys)

    @property
    def _is_open(self) -> bool:
        return any(
            transaction is not None and session.get_transaction() is transaction
            for session, transaction in self._guarded
        )

    def _check_trust(self, lost: Collection[Any] = ()) -> None:
        if lost or (self.keys and monotonic() >= self._trusted_until):
            raise LeaseLost(pipeline=self.lock_owner, row_id=", ".join(map(str, self.keys)))

    async def _begin(self, timeout_s: float) -> None:
        ends_at, tries = monotonic() + timeout_s, 0
        while True:
            tries += 1
            left = timedelta(seconds=max(LOOK_AGAIN_S, ends_at - monotonic()))
            try:
                await self._acquire(lockset_wait=min(DATABASE_TIMEOUT, left))
                break
            except (RelatedLockUnavailable, LockWaitTimeout, DBAPIError) as error:
                if isinstance(error, DBAPIError) and not is_conflict(error):
                    raise
                left_s = ends_at - monotonic()
                if left_s <= 0:
                    raise await self._timed_out(timeout_s) from None
            await sleep(
                min(left_s, exponential(tries, first_s=LOOK_AGAIN_S, most_s=LOOK_AGAIN_S_MAX))
            )
        self._renewing = asyncio.create_task(
            self._renew(), name=f"rowlock: hold rows of {self._leased.name}"
        )

    async def _acquire(self, lockset_wait: timedelta) -> None:
        leased, until = self._leased, database_time_after(timedelta(seconds=self._lease_s))
        lease = self.lock_token, self.lock_owner, until
        named = leased.attribute(leased.key_name).in_(self.keys)
        dialect = LEASES.on(self._engine.dialect.name)
        async with dialect.excluding(leased, timeout=lockset_wait) as held:
            sent_at = monotonic()

            async def work(session: AsyncSession, connection: AsyncConnection) -> Acquired:
                seen = await as_seen(session, leased, named)
                self._acquired = await acquire(connection, leased, seen, lease=lease, held=held)
                self.rows = await read_acquired(session, leased, self._acquired)
                return self._acquired

            self.keys = tuple(await self._transact(work, purpose="hold rows"))
        self._trusted_until = sent_at + self._lease_s * (1 - MARGIN)

    async def _renew(self) -> None:
        leased, lock_timeout = self._leased, timedelta(seconds=self._lease_s)
        leases = [(key, self.lock_token) for key in self.keys]

        async def work(session: AsyncSession, connection: AsyncConnection) -> tuple[int, int]:
            left = await not_renewed(connection, leased, leases, lock_timeout=lock_timeout)
            if not left:
                return 0, 0
            ours = held_under(leased, left, self.lock_token)
            found = await connection.scalars(select(leased.key).where(ours))
            return len(left), len(left) - len(found.all())

        while self.keys and monotonic() < self._trusted_until:
            await sleep(self._lease_s / RENEWALS_PER_LEASE)
            sent_at = monotonic()
            try:
                left, lost = await self._transact(work, purpose="renew held rows")
            except Exception as error:
                extra = {"model": leased.name}
                logger.warning("Renewing held rows failed: %(model)s", extra, exc_info=error)
                continue
            if lost:
                self._trusted_until = monotonic()
            # What another transaction has locked for the moment is renewed by the next try.
            elif not left and monotonic() < self._trusted_until:
                self._trusted_until = sent_at + self._lease_s * (1 - MARGIN)

    def _check_end(self) -> None:
        if self._is_open:
            raise PipelineError(
                "a guarded transaction is still open at the end of hold_rows, and would be"
                " committed without the lease; commit inside the block. The rows stay leased until"
                " that expires"
            )
        changed = {name for row in self.rows for name in changed_attributes(row)}
        if changed and not self._guarded:
            raise PipelineError(
                f"held.rows was changed ({', '.join(sorted(changed))}), which writes nothing:"
                " change what `await held.guard(session)` returns, and commit it in the block"
            )
        self._check_trust()

    async def _release(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
        # A release would wait for a guarded transaction that is still open.
        if (acquired := self._acquired) is None or self._is_open:
            return

        async def work(session: AsyncSession, connection: AsyncConnection) -> None:
            await release_acquired(connection, [(self._leased, acquired, self.lock_token)])

        try:
            await self._transact(work, purpose="release held rows")
        except Exception as error:
            text = "Held rows were not freed and stay leased until they expire: %(model)s"
            logger.warning(text, {"model": self._leased.name}, exc_info=error)

    async def _timed_out(self, timeout_s: float) -> LockWaitTimeout:
        expires_at = self._leased.attribute("lock_expires_at")
        owner = self._leased.attribute("lock_owner")
        key = self._leased.attribute(self._leased.key_name)
        statement = (
            select(owner, type_coerce(expires_at, UtcDateTime), database_now())
            .where(key.in_(self.keys), not_(is_free(self._leased)))
            .order_by(expires_at.desc())
            .limit(1)
        )

        async def work(session: AsyncSession, connection: AsyncConnection) -> Any:
            return (await connection.execute(statement)).one_or_none()

        row = await self._transact(work, purpose="see who holds rows", writes=False)
        # Without an answer it is a row lock or a lockset, whose holder is not known.
        return LockWaitTimeout(
            namespace=self._leased.name,
            keys=self.keys,
            timeout_s=timeout_s,
            holder=None if row is None else row[0],
            seconds_left=None if row is None else (row[1] - row[2]).total_seconds(),
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
        ids: keys of the rows, at most `ACQUIRED_ROWS_MAX`; those of no row are passed over.
        timeout: how long to wait for them, a number being seconds, up to `WAIT_S_MAX`; 0 asks once.
        lock_timeout: after what time the rows are free if this process dies.
        owner: who holds them, for `LockWaitTimeout.holder` and for those who look at the table.

    Raises:
        LockWaitTimeout: one of them was held for so long; names the holder, and how long its lease
            still lasts.
        LeaseLost: at the end of the block: the lease was lost before (a blocked event loop, a
            database that was away, a guarded transaction that took longer than the lease).
        PipelineError: at the end of the block: a guarded transaction is still open, or
            `held.rows` was changed and no transaction guarded, which writes nothing.
        TransactionTimeout: the database did not answer in time.
        ModelError: `model` cannot be leased.
        ConfigurationError: the session factory is bound to no engine that can keep leases.
    """
    leased = LeasedTable.of(model)
    check_session_factory(session_factory, leased)
    keys, lease_s = _checked_keys(ids), _checked_lease_s(lock_timeout)
    timeout_s = wait_limit_s(timeout)
    if timeout_s is None:
        raise ValueError("hold_rows waits for a limited time; pass a number of seconds")
    held: HeldByService[ModelT] = HeldByService(
        session_factory, leased, keys, owner=owner, lease_s=lease_s
    )
    try:
        await held._begin(timeout_s)
        yield held
        held._check_end()
    finally:
        await finish(held._release(), purpose="release held rows")
        # Pipelines that were hinted meanwhile skipped the rows.
        if pipeline_hinter.reaches(model):
            pipeline_hinter.hint_fetch(model)


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
