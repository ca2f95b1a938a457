"""Related rows: leased under the main row's token, so that they live and end with it.

The one idea: a related row's lease has no life of its own. It carries the main row's token, lasts
as long, and is renewed, written and freed in the transaction that does the same with the main row.
What a crashed holder left is found by its token when the main row is claimed again, and is free for
all pipelines once it has expired.

They are locked all or nothing, in one short transaction. Waiting for a second row lock while
holding one could deadlock, so none waits for a related row.

Source: dstack's pipelines, "Locking many related resources" and "Locking a shared related
resource".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, TypeVar

from sqlalchemy import Column, ColumnElement, select, type_coerce
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.database.faults import is_conflict, is_of_a_type
from rowlock.database.transaction import bind_of, check_session_factory, in_transaction
from rowlock.dialects.contract import LEASES
from rowlock.errors import (
    ConfigurationError,
    LockWaitTimeout,
    PipelineError,
    RelatedLockUnavailable,
    TransactionTimeout,
)
from rowlock.leases.acquire import (
    ACQUIRED_ROWS_MAX,
    Acquired,
    acquire,
    held_under,
    read_acquired,
    release_acquired,
)
from rowlock.leases.apply import RelatedWrite, unchanged_of, with_versions, write_locked
from rowlock.leases.claim import as_seen, may_be_newer
from rowlock.leases.item import PipelineItem
from rowlock.leases.renew import not_renewed
from rowlock.logs import get_logger
from rowlock.rows.database_time import UtcDateTime, database_instant
from rowlock.rows.eligibility import related_owner
from rowlock.rows.leased_table import LeasedTable, ModelT

logger = get_logger(__name__)


def _may_hold(item: PipelineItem[Any]) -> Iterator[tuple[LeasedTable, Acquired, Any]]:
    for leased, acquired in item.held.perhaps() if item.held is not None else ():
        yield leased, acquired, leased.as_token(item.lock_token)


async def lock_held_related(
    connection: AsyncConnection, item: PipelineItem[Any]
) -> frozenset[tuple[type, Any]]:
    """Lock the related rows that still carry the item's token, and return their models and keys.
    `LockWaitTimeout` if one is locked: the whole is to be tried again.
    """
    locked: set[tuple[type, Any]] = set()
    for leased, acquired, token in _may_hold(item):
        ours = select(leased.key).where(held_under(leased, acquired, token))
        unlocked = ours.with_for_update(key_share=True, skip_locked=True)
        mine = frozenset((await connection.scalars(unlocked)).all())
        if len(mine) < len(acquired):
            there = (await connection.scalars(ours)).all()
            if len(there) > len(mine):
                raise LockWaitTimeout(namespace=leased.name, keys=tuple(acquired), timeout_s=0.0)
        locked |= {(leased.model, key) for key in mine}
    return frozenset(locked)


async def write_related(
    connection: AsyncConnection, item: PipelineItem[Any], writes: Sequence[RelatedWrite]
) -> None:
    """Write to the related rows of `item`, if all that it holds are its own, and free all.
    `LeaseLost` if one is not, or was changed: nothing may be committed then.
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
        leases = [(write.key, token) for write in of_table]
        as_read = [item.held.as_read(leased, write.key) for write in of_table]
        pairs = list(zip(leases, as_read, strict=True))
        if len(await unchanged_of(connection, leased, pairs)) < len(pairs):
            raise item.lease_lost(leased.name)
        given = [(write.key, write.values) for write in of_table]
        values = await with_versions(connection, leased, given)
        await write_locked(connection, leased, list(zip(leases, values, strict=True)))
    await release_acquired(connection, _may_hold(item))


async def release_related(connection: AsyncConnection, item: PipelineItem[Any]) -> None:
    await lock_held_related(connection, item)
    await release_acquired(connection, _may_hold(item))


async def release_unlocked_related(
    connection: AsyncConnection, items: Iterable[PipelineItem[Any]]
) -> None:
    """Locked rows are left to their expiry."""
    held = chain.from_iterable(map(_may_hold, items))
    await release_acquired(connection, held, waits=False)


async def renew_related(
    connection: AsyncConnection, items: Iterable[PipelineItem[Any]], *, lock_timeout: timedelta
) -> frozenset[Any]:
    """Return the tokens of items of which a related row was not renewed. One that was deleted
    needs no lease.
    """
    leases: dict[LeasedTable, dict[tuple[Any, Any], Any]] = {}
    missing: set[Any] = set()
    for item in items:
        for leased, acquired, token in _may_hold(item):
            leases.setdefault(leased, {}).update({(key, token): item for key in acquired})
    for leased, holders in leases.items():
        left = await not_renewed(connection, leased, list(holders), lock_timeout=lock_timeout)
        missing |= {
            item.lock_token
            for (key, token), item in holders.items()
            if key in left and item.held is not None and item.held.is_known(leased, key)
        }
    return frozenset(missing)


T = TypeVar("T")


class RelatedLocker:
    """Locks related rows for the items of one pipeline. What a dead holder left is looked for in
    the `tables` that are declared. Rows of the pipeline's own table, which cannot be declared (a
    circle), are free by expiry alone.
    """

    def __init__(
        self,
        session_factory: async_sessionmaker[AsyncSession],
        leased: LeasedTable,
        *,
        owner: str,
        declared: Iterable[LeasedTable],
        intent_of: Callable[[LeasedTable], Sequence[Column[Any]]],
        timeout: timedelta,
    ) -> None:
        self._session_factory, self._timeout = session_factory, timeout
        self._leased, self._owner, self._intent_of = leased, owner, intent_of
        self.tables = tuple(declared)

    async def lock(
        self,
        item: PipelineItem[Any],
        model: type[ModelT],
        where: ColumnElement[bool],
        *,
        shared: bool,
    ) -> list[ModelT]:
        leased = self.table_of(model)
        is_own_table = leased.table is self._leased.table
        # In its own table the pipeline's bare name is that of a main row's holder.
        owner = self._owner
        if shared or is_own_table:
            owner = related_owner(leased, owner, item.id)
        if is_own_table:
            # Its own row is the item's anyway.
            where = where & (leased.attribute(leased.key_name) != item.id)
        held, intent = item.held_rows(), self._intent_of(leased)
        token = leased.as_token(item.lock_token)
        async with held.lock:
            if item.is_settling or not item.is_trusted():
                raise item.lease_lost()
            dialect = LEASES.on(bind_of(self._session_factory(), leased).dialect.name)
            async with dialect.excluding(leased, timeout=self._timeout) as in_lockset:

                async def work(session: AsyncSession, connection: AsyncConnection) -> list[ModelT]:
                    until = await self._need_main(connection, item)
                    seen = await as_seen(session, leased, where)
                    lease = token, owner, until
                    acquired = await acquire(connection, leased, seen, lease=lease, held=in_lockset)
                    if held.count_with(leased, acquired) > ACQUIRED_ROWS_MAX:
                        raise PipelineError(
                            f"an item holds at most {ACQUIRED_ROWS_MAX} related rows; lock fewer at"
                            " a time"
                        )
                    held.may_hold(leased, acquired)
                    return await read_acquired(session, leased, acquired, compared=intent)

                try:
                    rows = await self._again_if_aborted(item, leased, work)
                except Exception as error:
                    if is_of_a_type(error) and may_be_newer(error):
                        # No attempt is charged for what only this replica cannot read.
                        extra = {"pipeline": self._owner, "model": leased.name}
                        text = "%(pipeline)s: a row of %(model)s cannot be read"
                        logger.error(text, extra, exc_info=error)
                    elif not (isinstance(error, DBAPIError) and is_conflict(error)):
                        raise
                    # Else another transaction changes the rows so often that it has them; how many
                    # they are was rolled back with the rest.
                    unavailable = RelatedLockUnavailable(model=leased.name, wanted=1, available=0)
                    raise unavailable from error
            read = leased.value_as_read
            as_read = {
                read(row, leased.key): {one: read(row, one) for one in intent} for row in rows
            }
            held.holds(leased, as_read)
        return rows

    async def _again_if_aborted(
        self,
        item: PipelineItem[Any],
        leased: LeasedTable,
        work: Callable[[AsyncSession, AsyncConnection], Awaitable[T]],
    ) -> T:
        # Taken under the same token, so a second time does no harm where the first was committed
        # after all.
        while True:
            try:
                return await in_transaction(
                    self._session_factory,
                    leased,
                    work,
                    purpose="lock related rows",
                    timeout=self._timeout,
                )
            except TransactionTimeout as error:
                if not error.was_aborted or not item.is_trusted():
                    raise

    async def _need_main(self, connection: AsyncConnection, item: PipelineItem[Any]) -> datetime:
        """Keep the main row until the commit: no claim may free its token; return its expiry."""
        leased, expires_at = self._leased, self._leased.column("lock_expires_at")
        ours = held_under(leased, [item.id], item.lock_token) & (expires_at > database_instant())
        statement = select(type_coerce(expires_at, UtcDateTime)).where(ours)
        until = await connection.scalar(statement.with_for_update(key_share=True))
        if until is None:
            raise item.lease_lost()
        assert isinstance(until, datetime)
        return until

    def table_of(self, model: type[Any]) -> LeasedTable:
        """Return the table of `model`; `ConfigurationError` if it is not declared."""
        for known in self.tables:
            if known.model is model:
                return known
        leased = LeasedTable.of(model)
        # Rows of a subclass are rows of what was declared; and all of its own table are known.
        if leased.table is self._leased.table or any(
            issubclass(model, known.model) for known in self.tables
        ):
            return leased
        raise ConfigurationError(
            f"{self._owner} locks rows of {leased.name}, which it does not declare, so rows that a"
            f" dead holder left would not be released; write `locks = [{leased.name}]` in the class"
        )


def check_one_database(
    session_factory: async_sessionmaker[AsyncSession],
    leased: LeasedTable,
    *,
    declared: Iterable[LeasedTable],
) -> None:
    """Refuse, by `ConfigurationError` and without connecting, sessions that do not serve `leased`,
    or could not free its rows and those of `declared` in one transaction.
    """
    check_session_factory(session_factory, leased)
    for table in declared:
        check_session_factory(session_factory, table)
        session = session_factory()
        # Engines that differ in their options share a pool.
        if bind_of(session, table).engine.pool is not bind_of(session, leased).engine.pool:
            raise ConfigurationError(
                f"{table.name} lives in another database than {leased.name}; no transaction could"
                " free the rows of both"
            )
