"""Related rows: leased under the main row's token, so that they live and end with it.

The one idea: a related row's lease has no life of its own. It carries the main row's token, lasts as long as the main row's lease,
is renewed with it, and is freed in the transaction that frees it. What a crashed holder left is found by its token when the main
row is claimed again, and is free for everybody once it has expired.

All or nothing, in one short transaction that waits for no related row: so two items never wait for each other.

Source: dstack's pipelines, "Locking many related resources" and "Locking a shared related resource".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import ColumnElement, Engine, bindparam, select, type_coerce, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.errors import LeaseLost, PipelineError
from rowlock.leases.apply import RelatedWrite
from rowlock.leases.dialects import bind_of
from rowlock.leases.item import PipelineItem
from rowlock.leases.renew import LEASES_PER_STATEMENT_MAX, extend
from rowlock.leases.take import TakeOrder, held_under, read_taken, take, unlock
from rowlock.leases.transaction import excluding_takers, in_transaction
from rowlock.rows.assignments import parameters_of, set_clause, shape_of
from rowlock.rows.database_time import UtcDateTime, database_instant
from rowlock.rows.eligibility import OWNER_SEPARATOR
from rowlock.rows.leased_table import LeasedTable, ModelT

logger = logging.getLogger(__name__)


class RelatedLocker:
    """Locks related rows for the items of one pipeline."""

    def __init__(
        self,
        session_factory: async_sessionmaker[AsyncSession],
        leased: LeasedTable[Any],
        *,
        owner: str,
        declared: Iterable[LeasedTable[Any]],
        timeout: timedelta,
    ) -> None:
        self._session_factory = session_factory
        self._leased = leased
        self._owner = owner
        self._timeout = timeout
        self._declared = tuple(declared)
        engine = bind_of(session_factory(), leased).engine
        self._learned = _learned_in.setdefault(engine, {}).setdefault(owner, {})

    @property
    def tables(self) -> tuple[LeasedTable[Any], ...]:
        """The related tables that are known: declared, or learned when such rows were locked."""
        return (*self._declared, *self._learned.values())

    async def lock(
        self, item: PipelineItem[Any], model: type[ModelT], where: ColumnElement[bool], *, shared: bool
    ) -> list[ModelT]:
        """Lock all rows of `model` where `where` holds, and return them as they are now: `PipelineItem.lock_related`."""
        leased = self._table_of(model)
        owner = f"{self._owner}{OWNER_SEPARATOR}{item.id}" if shared else self._owner
        leased.check_owner(owner)
        if leased.table is self._leased.table:
            # Its own row is the item's anyway.
            where = where & (leased.attribute(leased.key_name) != item.id)
        held = item.held_rows()
        async with held.turn:
            if item.is_settled or not item.is_trusted():
                raise LeaseLost(pipeline=self._owner, row_id=item.id)
            async with excluding_takers(self._session_factory, leased, timeout=self._timeout) as in_lockset:

                async def work(
                    session: AsyncSession, connection: AsyncConnection
                ) -> tuple[tuple[Any, ...], list[ModelT]]:
                    expires_at = await self._need_main(connection, item)
                    token = leased.as_token(item.lock_token)
                    order = TakeOrder(leased, where, token, owner, expires_at)
                    keys = await take(connection, order, in_lockset)
                    held.may_hold(leased, keys)
                    return keys, await read_taken(session, leased, keys)

                keys, rows = await in_transaction(
                    self._session_factory, leased, work, purpose="lock related rows", timeout=self._timeout
                )
            held.holds(leased, keys)
            self._learn(leased)
        return rows

    async def _need_main(self, connection: AsyncConnection, item: PipelineItem[Any]) -> datetime:
        """Return until when the main row is ours, and keep it so until the commit: no claim may free its token meanwhile."""
        token, expires_at = self._leased.column("lock_token"), self._leased.column("lock_expires_at")
        statement = (
            select(type_coerce(expires_at, UtcDateTime))
            .where(self._leased.key == item.id, token == item.lock_token, expires_at > database_instant())
            .with_for_update(key_share=True)
        )
        until = await connection.scalar(statement)
        if until is None:
            raise LeaseLost(pipeline=self._owner, row_id=item.id)
        assert isinstance(until, datetime)
        return until

    def _learn(self, leased: LeasedTable[Any]) -> None:
        if leased in self.tables:
            return
        self._learned[leased.model] = leased
        logger.warning(
            "%s locks rows of a model that it did not declare; add it to `locks`: %s",
            self._owner,
            leased.name,
            extra={"pipeline": self._owner, "model": leased.name},
        )

    def _table_of(self, model: type[ModelT]) -> LeasedTable[ModelT]:
        for leased in self.tables:
            if leased.model is model:
                return leased
        leased = LeasedTable.of(model)
        session = self._session_factory()
        if bind_of(session, leased) is not bind_of(session, self._leased):
            raise PipelineError(
                f"{leased.name} lives in another database than {self._leased.name}; no transaction could free the rows of both"
            )
        return leased


_learned_in: WeakKeyDictionary[Engine, dict[str, dict[type, LeasedTable[Any]]]] = WeakKeyDictionary()
"""Related tables by pipeline name, for as long as the engine lives: a pipeline that is built anew still knows them."""


async def write_related(connection: AsyncConnection, item: PipelineItem[Any], writes: Sequence[RelatedWrite]) -> None:
    """Write to the related rows of `item` and free them, if all that it holds are still its own; joins the caller's transaction.

    Raises:
        LeaseLost: one of them is not; nothing may be committed of this transaction.
    """
    assert item.held is not None
    for leased, keys in item.held.known():
        token = leased.as_token(item.lock_token)
        ours = select(leased.key).where(held_under(leased, keys, token)).with_for_update(key_share=True)
        if len((await connection.scalars(ours)).all()) != len(keys):
            raise LeaseLost(pipeline=item.lock_owner, row_id=f"{item.id} for its rows of {leased.name}")
    groups: dict[object, list[RelatedWrite]] = {}
    for write in writes:
        groups.setdefault((write.leased.model, shape_of(write.values)), []).append(write)
    for group in groups.values():
        leased, values = group[0].leased, group[0].values
        statement = update(leased.table).where(leased.key == bindparam("rowlock_key", type_=leased.key.type))
        parameters = [{"rowlock_key": write.key, **parameters_of(write.values)} for write in group]
        await connection.execute(statement.values(set_clause(values)), parameters)


async def free_related(connection: AsyncConnection, item: PipelineItem[Any]) -> None:
    """Free every related row that still carries the item's token; joins the caller's transaction."""
    for leased, keys in item.held.perhaps() if item.held is not None else ():
        await unlock(connection, leased, keys, token=leased.as_token(item.lock_token))


async def renew_related(
    connection: AsyncConnection, items: Iterable[PipelineItem[Any]], *, lock_timeout: timedelta
) -> None:
    """Let the related rows of `items` be held as long as their main rows; joins the transaction that renewed those."""
    leases: dict[LeasedTable[Any], list[tuple[Any, Any]]] = {}
    for item in items:
        for leased, keys in item.held.known() if item.held is not None else ():
            token = leased.as_token(item.lock_token)
            leases.setdefault(leased, []).extend((key, token) for key in keys)
    for leased, pairs in leases.items():
        for start in range(0, len(pairs), LEASES_PER_STATEMENT_MAX):
            chunk = pairs[start : start + LEASES_PER_STATEMENT_MAX]
            await extend(connection, leased, chunk, lock_timeout=lock_timeout)
