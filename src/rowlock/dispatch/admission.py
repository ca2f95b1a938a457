"""Submit: one row for each piece of work, within the ceiling, in the caller's transaction.

The one idea: the database decides. A partial unique index lets one active row have a key, so fifty
who submit it at once make one row; and the count of active rows reads a partial index that settled
rows are not in, so it costs the same in a table of any size.

The ceiling is looked at before the row is written, and no submission waits for another: it may be
exceeded by as many as submit at once, and never by more. Where a database has one writer at a time,
the submissions of one process go one after the other, each behind the transaction of the one
before, since connections that wait for such a database have no order; there the ceiling is exact.

Source: PostgreSQL, "INSERT ... ON CONFLICT" and "Partial Indexes"; SQLite, "UPSERT".
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Generic

from sqlalchemy import (
    ColumnElement,
    Engine,
    Executable,
    and_,
    false,
    func,
    not_,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession

from rowlock import database_now
from rowlock.dialects.contract import LOCKS, LockDialect
from rowlock.dispatch.columns import (
    ACTIVE_SQL,
    CANCELLED,
    DEDUP_KEY_CHARS_MAX,
    FAILED,
    PENDING,
    RUNNING,
    STALE,
    error_of,
    is_active,
    is_storable,
    refuse_own_columns,
    shows_anew,
)
from rowlock.dispatch.settings import DispatchSettings
from rowlock.errors import AdmissionRejected, PipelineError
from rowlock.execution import execute
from rowlock.logs import get_logger
from rowlock.spi import ROWS, LeasedTable, ModelT, bind_of, database_time_after, is_free

SUBMIT_WAIT_S_MAX = 30.0
"""How long a submission waits for its lock, and then for a database that others write to, in
seconds.
"""

logger = get_logger(__name__)

SUBMIT_TRIES_MAX = 3
"""How often a key is tried whose active row comes and goes meanwhile."""


class Admission(Generic[ModelT]):
    def __init__(
        self, leased: LeasedTable, settings: DispatchSettings, *, stale_after: timedelta
    ) -> None:
        self._leased = leased
        self._model: Any = leased.model
        self._settings = settings
        self._stale_after = stale_after
        self._lock_name = f"submissions to {leased.table.name}"

    async def submit(
        self, session: AsyncSession, *, dedup_key: str, values: Mapping[str, Any]
    ) -> tuple[ModelT, bool]:
        bind_of(session, self._leased)  # refuses a session that is not async
        _check_key(dedup_key)
        # The key may be given here, and in no outcome.
        others = {name: value for name, value in values.items() if name != self._leased.key_name}
        refuse_own_columns(self._leased, others)
        made = False
        holds_lock = await self._lock(session, unless=partial(self._attaches, session, dedup_key))
        try:
            row, made = await self._submit(session, dedup_key, values)
        finally:
            if holds_lock and not made:
                # Nothing was written, so no submission need wait for the end of the transaction.
                self._release(session)
        return row, made

    async def cancel(self, session: AsyncSession, *, dedup_key: str, reason: str) -> ModelT | None:
        bind_of(session, self._leased)  # refuses a session that is not async
        _check_key(dedup_key)
        row: ModelT | None = None
        holds_lock = await self._lock(session, unless=_never)
        try:
            row = await self._fail_active(session, dedup_key, reason)
        finally:
            if holds_lock and row is None:
                self._release(session)
        return row

    async def _lock(self, session: AsyncSession, *, unless: Callable[[], Awaitable[bool]]) -> bool:
        """Lock the table's submissions until the transaction ends; return whether done here."""
        # `unless` tells whether nothing will be written; it is asked where the lock would keep
        # others from it.
        # A session with an engine for each class has no one transaction whose end would be known.
        is_bound = session.bind is not None and isinstance(session.get_bind(), Engine)
        return is_bound and await self._locks(session).queue_to_write(
            session, self._lock_name, unless=unless, timeout_s=SUBMIT_WAIT_S_MAX
        )

    def _release(self, session: AsyncSession) -> None:
        """Release the lock before the transaction has ended; only where nothing was written."""
        self._locks(session).leave_queue(session, self._lock_name)

    def _locks(self, session: AsyncSession) -> LockDialect:
        return LOCKS.on(bind_of(session, self._leased).dialect.name)

    async def _fail_active(
        self, session: AsyncSession, dedup_key: str, reason: str
    ) -> ModelT | None:
        # Every write of an attempt is guarded by the status it left, so none is asked: the
        # replica that holds the row finds the new status at its next update, closes the attempt and
        # writes nothing more. The lease is left to it.
        failed = update(self._model).where(self._has_key(dedup_key))
        cancelled = failed.values(_failure(CANCELLED, reason)).returning(self._model)
        # What the session has of the row is shown as it is now.
        fresh = cancelled.execution_options(
            populate_existing=shows_anew(session, self._model), synchronize_session=False
        )
        row: ModelT | None = (await self._execute(session, fresh)).scalars().one_or_none()
        return row

    async def _submit(
        self, session: AsyncSession, dedup_key: str, values: Mapping[str, Any]
    ) -> tuple[ModelT, bool]:
        for _ in range(SUBMIT_TRIES_MAX):
            row, is_stale = await self._find(session, dedup_key)
            if row is not None and not is_stale and self._settings.attach_at_ceiling:
                return row, False
            await self._admit(session, gives_way=is_stale)
            if row is not None and not is_stale:
                return row, False
            if row is not None and not await self._fail_stale(session, row):
                continue
            made = await self._insert(session, dedup_key, values)
            if made is not None:
                if row is not None:
                    await self._supersede(session, row, made)
                return made, True
        raise PipelineError(
            f"the active row of {dedup_key!r} came and went {SUBMIT_TRIES_MAX} times; try again"
        )

    async def count_active(self, session: AsyncSession) -> int:
        few = (
            select(self._leased.key)
            .where(is_active(self._leased))
            .limit(self._settings.max_active)
            .subquery()
        )
        counted = select(func.count()).select_from(few)
        return int((await self._execute(session, counted)).scalar_one())

    async def _admit(self, session: AsyncSession, *, gives_way: bool) -> None:
        active, ceiling = await self.count_active(session), self._settings.max_active
        if active - gives_way >= ceiling:
            # Clients that are refused in one second would come back in one second.
            wait = self._settings.retry_interval + random.random() * self._settings.jitter
            raise AdmissionRejected(
                active=active, ceiling=ceiling, retry_after_s=wait.total_seconds()
            )

    async def _attaches(self, session: AsyncSession, dedup_key: str) -> bool:
        """Whether the key has a row to attach to; nothing is flushed for the question."""
        if not self._settings.attach_at_ceiling:
            return False
        has_row = select(self._leased.key).where(self._has_key(dedup_key), not_(self._is_stale()))
        with session.no_autoflush:
            return (await self._execute(session, has_row)).first() is not None

    async def _find(self, session: AsyncSession, dedup_key: str) -> tuple[ModelT | None, bool]:
        mine = select(self._model, self._is_stale()).where(self._has_key(dedup_key))
        found = mine.execution_options(populate_existing=shows_anew(session, self._model))
        first = (await self._execute(session, found)).first()
        return (None, False) if first is None else (first[0], bool(first[1]))

    def _has_key(self, dedup_key: str) -> ColumnElement[bool]:
        return and_(self._model.dedup_key == dedup_key, is_active(self._leased))

    def _is_stale(self) -> Any:
        """The row has no holder, and will have none."""
        # Its holder died, or released it, and no replica took over for `stale_after`; or its
        # deadline is over for as long; or it was parked.
        model, long_ago = self._model, database_time_after(-self._stale_after)
        # Who released it has cleared the lease, and may have worked for hours: `started_at` alone
        # does not show that.
        touched = (model.due_at, model.last_processed_at, model.started_at)
        released = and_(*(func.coalesce(at, model.submitted_at) <= long_ago for at in touched))
        expires_at = model.lock_expires_at
        left = or_(expires_at <= long_ago, and_(expires_at.is_(None), released))
        orphaned = and_(model.status == RUNNING, left)
        overdue = and_(
            model.status == PENDING,
            model.submitted_at
            <= database_time_after(-self._settings.dispatch_deadline - self._stale_after),
        )
        parked = model.parked_at.is_not(None)
        return func.coalesce(and_(is_free(self._leased), or_(orphaned, overdue, parked)), false())

    async def _fail_stale(self, session: AsyncSession, row: ModelT) -> bool:
        name = self._leased.key_name
        key, reason = getattr(row, name), "no replica was working on it when it was submitted again"
        still = (self._leased.attribute(name) == key, is_active(self._leased), self._is_stale())
        # The lease, long expired, is left to the sweep; a holder that thaws finds another status
        # than it left.
        failed = update(self._model).where(*still).values(_failure(STALE, reason))
        is_failed = bool((await self._execute(session, failed)).rowcount)
        if is_failed:
            logger.warning("A stale row gave way to a new submission", {"row_id": key})
        return is_failed

    async def _supersede(self, session: AsyncSession, old: ModelT, new: ModelT) -> None:
        name = self._leased.key_name
        is_old = self._leased.attribute(name) == getattr(old, name)
        await self._execute(
            session, update(self._model).where(is_old).values(superseded_by=str(getattr(new, name)))
        )

    async def _insert(
        self, session: AsyncSession, dedup_key: str, values: Mapping[str, Any]
    ) -> ModelT | None:
        dialect = ROWS.on(bind_of(session, self._leased).dialect.name)
        # By one statement: a failed flush would end the caller's transaction.
        new = dialect.insert_unless_there(self._model, ["dedup_key"], text(ACTIVE_SQL))
        new = new.values({"dedup_key": dedup_key, **values}).returning(self._model)
        row: ModelT | None = (await self._execute(session, new)).scalar_one_or_none()
        return row

    async def _execute(self, session: AsyncSession, statement: Executable) -> Any:
        # Where rows are written, also in a session that sends reads to a replica.
        return await execute(
            session, statement, bind_arguments={"bind": bind_of(session, self._leased)}
        )


def _failure(kind: str, reason: str) -> dict[str, Any]:
    return {"status": FAILED, "error": error_of(kind, reason), "finished_at": database_now()}


def _check_key(dedup_key: object) -> None:
    # Before the first statement: on PostgreSQL, a text that the server refuses aborts the caller's
    # transaction.
    is_text = isinstance(dedup_key, str) and 0 < len(dedup_key) <= DEDUP_KEY_CHARS_MAX
    if not is_text or not is_storable(str(dedup_key)):
        raise PipelineError(
            f"dedup_key must be a text of 1 to {DEDUP_KEY_CHARS_MAX} characters, without NUL and"
            f" lone surrogates, not {dedup_key!r:.100}"
        )


async def _never() -> bool:
    return False
