"""Rehearses rows: `process` is run for each as if it were claimed, and nothing is written.

The one idea: the row is held as a service holds it, so that no pipeline works on it meanwhile. The
host's code gets an item like any other and is called as always; what it returns is decided upon as
always, and shown instead of written. Its sessions only read, on connections of their own, which are
set so at the begin of each transaction; related rows are read instead of locked. The host's pool is
refused to code in the context of a rehearsal alone: the host's requests go on.

Not here: what the host's code does to other systems. That cannot be taken back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic_core import to_jsonable_python
from sqlalchemy import Column, ColumnElement, Connection, Engine, Pool, event, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry

from rowlock import (
    NOW_PLACEHOLDER,
    Apply,
    Delete,
    HeldByService,
    Outcome,
    Park,
    Pipeline,
    PipelineHinter,
    PipelineItem,
    Reset,
    Retry,
    hold_rows,
)
from rowlock.clock import monotonic, utc_now
from rowlock.database.pools import SeparatePool
from rowlock.errors import ConfigurationError, PipelineError
from rowlock.insight.insight_dialect import INSIGHT
from rowlock.insight.shown import iso, shown
from rowlock.leases.claim import load_rows
from rowlock.pipelines.attempt import Ended
from rowlock.pipelines.outcomes import error_text, hint_targets
from rowlock.pipelines.planner import decide
from rowlock.spi import LeasedTable, PipelineContext, bind_of, column_of

# ---------------------------------------------------------------- the answer


SCHEMA: Final = "rowlock.rehearsal/1"
HIDDEN: Final = "(hidden)"
CHANGES_MAX: Final = 100  # most columns whose changes are listed


@dataclass(frozen=True, slots=True)
class ColumnChange:
    column: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class RowRehearsal:
    row_id: str
    outcome: str | None
    reason: str | None = None
    changes: tuple[ColumnChange, ...] = ()
    beside: tuple[str, ...] = ()
    took_s: float = 0.0

    def lines(self, model: str) -> Iterator[str]:
        name = f"{shown(model)} {shown(self.row_id)}"
        if self.outcome is None:
            yield f"{name}: there is no such row"
            return
        because = f": {shown(self.reason)}" if self.reason else ""
        yield f"{name}: {shown(self.outcome)}{because}, after {self.took_s:.1f} s"
        for one in self.changes:
            yield f"  {shown(one.column)}: {one.old} \N{RIGHTWARDS ARROW} {one.new}"
        for text in self.beside:
            yield f"  {text}"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    pipeline: str
    model: str
    rows: tuple[RowRehearsal, ...]

    @property
    def needs_person(self) -> bool:
        return any(row.outcome in {Retry.__name__, Park.__name__} for row in self.rows)

    @property
    def is_complete(self) -> bool:
        return all(row.outcome is not None for row in self.rows)

    def text(self, width: int = 0) -> str:
        title = f"{shown(self.pipeline)}, rehearsed: nothing was written"
        return "\n".join([title, *(line for row in self.rows for line in row.lines(self.model))])

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **to_jsonable_python(self)}


def reason_of(outcome: Outcome) -> str | None:
    if isinstance(outcome, Retry):
        return error_text(outcome.error)
    return outcome.reason if isinstance(outcome, Park) else None


def _changes(
    item: PipelineItem[Any],
    leased: LeasedTable,
    values: Mapping[Any, Any],
    *,
    hidden: Collection[Column[Any]],
) -> Iterator[ColumnChange]:
    for key, value in list(values.items())[:CHANGES_MAX]:
        column = column_of(leased, key)
        if column in hidden:
            yield ColumnChange(column.name, HIDDEN, HIDDEN)
        else:
            old = item.value_as_read(leased, column)
            yield ColumnChange(column.name, written_text(old), written_text(value))


def _beside(outcome: Outcome) -> Iterator[str]:
    if not isinstance(outcome, Apply | Delete):
        return
    if outcome.related:
        yield "related rows would be written, too"
    if outcome.also is not None:
        yield "also would be called in the same transaction; it was not"
    if targets := hint_targets(outcome.hint):
        names = (target if isinstance(target, str) else target.__name__ for target in targets)
        yield f"hints {shown(', '.join(names))}"


def written_text(value: Any) -> str:
    if value is None or value is NOW_PLACEHOLDER:
        return "null" if value is None else "now"
    if isinstance(value, datetime):
        return str(iso(value)) if value.tzinfo else shown(value)
    return shown(repr(value)) if isinstance(value, str | bytes) else shown(value)


# ---------------------------------------------------------------- sessions that only read


_READS: Final = "rowlock_reads_only"
_IS_REHEARSAL: Final[ContextVar[bool]] = ContextVar("rowlock_is_rehearsal", default=False)


class ReadOnlySessions(SeparatePool):
    """Makes sessions as the host does, on connections that write nothing."""

    def __call__(self) -> AsyncSession:
        session = super().__call__()
        event.listen(session.sync_session, "after_begin", _begin)
        return session

    def _clone_of_root(self, engine: Engine) -> Engine:
        clone = super()._clone_of_root(engine)
        event.listen(clone.pool, "connect", lambda _, record: record.info.update({_READS: True}))
        return clone


def _begin(session: object, _transaction: object, connection: Connection) -> None:
    INSIGHT.on(connection.dialect.name).begin_without_writing(connection)


@contextmanager
def refused_to_rehearsals(pools: Iterable[Pool]) -> Iterator[None]:
    """Refuse connections of `pools` to code in the context of a rehearsal, during the block."""

    # One that is copied from such a pool has its listeners, too.
    def refuse(_connection: object, record: ConnectionPoolEntry, _proxy: object) -> None:
        if _IS_REHEARSAL.get() and _READS not in record.info:
            raise PipelineError(
                "a rehearsal writes nothing, so it has no connection of the host's own: open"
                " sessions by item.session()"
            )

    with ExitStack() as stack:
        for pool in {*pools}:
            event.listen(pool, "checkout", refuse)
            stack.callback(event.remove, pool, "checkout", refuse)
        yield


# ---------------------------------------------------------------- the attempt


REHEARSAL_TIMEOUT: Final = timedelta(seconds=60)
FILE_WAIT: Final = timedelta(seconds=5)  # how long a session waits for a file that is locked
RELATED_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class ReadingLocker:
    """Reads related rows instead of locking them; an outcome may name them as if they were."""

    _context: PipelineContext[Any]

    async def lock(
        self, item: PipelineItem[Any], model: type[Any], where: ColumnElement[bool], *, shared: bool
    ) -> list[Any]:
        leased = self._context.locker.table_of(model)
        if item.leased is not None and leased.table is item.leased.table:
            where = where & (leased.attribute(leased.key_name) != item.id)
        async with item.session() as session:
            rows = await _rows(session, model, where)
        keys = [getattr(row, leased.key_name) for row in rows]
        item.held_rows().may_hold(leased, dict.fromkeys(keys))
        item.held_rows().holds(leased, {key: {} for key in keys})
        return rows


async def _rows(session: AsyncSession, model: type[Any], where: ColumnElement[bool]) -> list[Any]:
    found = await session.scalars(select(model).where(where).limit(RELATED_MAX))
    rows = list(found.unique())
    session.expunge_all()
    return rows


OWNER: Final = "plan"  # holds the rows meanwhile, for people who look at the table
IDS_MAX: Final = 100
HOLD_WAIT: Final = timedelta(seconds=5)


class PipelineRehearsal:
    """Runs `process` of a pipeline that need not run; the host's pools are refused to it."""

    def __init__(
        self,
        session_factory: async_sessionmaker[AsyncSession],
        pipeline: Pipeline[Any],
        *,
        hidden: Collection[Column[Any]] = (),
        redact: Callable[[str], str] = str,
    ) -> None:
        if not pipeline.rehearsable:
            raise ConfigurationError(
                f"{pipeline.name} is not to be rehearsed: what its process does to other systems"
                " is done, and only the database is kept as it is. Where that may be done, or where"
                " process asks item.is_rehearsal first, set rehearsable = True on the class"
            )
        self._session_factory, self._pipeline = session_factory, pipeline
        self._hidden, self._redact = hidden, redact
        self._sessions: Any = ReadOnlySessions(session_factory, file_wait=FILE_WAIT)
        # No hint is sent, and no actor is started.
        self._context = pipeline.build_run(session_factory, PipelineHinter()).context

    async def rehearse(self, keys: Sequence[Any]) -> tuple[RowRehearsal, ...]:
        tables = [self._pipeline.leased, *(lock.leased for lock in self._pipeline.declared_locks)]
        pools = {bind_of(self._session_factory(), table).engine.pool for table in tables}
        try:
            with refused_to_rehearsals(pools):
                return tuple([await self._row(key) for key in keys])
        finally:
            self._context.calls.close()
            await self._sessions.close()

    async def _row(self, key: Any) -> RowRehearsal:
        model = self._pipeline.model
        async with hold_rows(
            self._session_factory, model, [key], timeout=HOLD_WAIT, owner=OWNER
        ) as held:
            if not held.rows:
                return RowRehearsal(str(key), None)
            item = self._item(held)
            await self._load(item)
            decision = decide(self._context, item, await self._run(item))
            outcome = Reset() if isinstance(decision, Ended) else decision
            values: Any = outcome.values if isinstance(outcome, Apply | Retry) else {}
            reason = reason_of(outcome)
            return RowRehearsal(
                str(item.id),
                type(outcome).__name__,
                None if reason is None else self._redact(reason),
                tuple(_changes(item, self._pipeline.leased, values, hidden=self._hidden)),
                tuple(_beside(outcome)),
                item.process_s or 0.0,
            )

    async def _run(self, item: PipelineItem[Any]) -> Any:
        item.stop = self._context.stop
        calls, item.begun_at = self._context.calls, monotonic()
        attempt = calls.attempt(calls.call(self._context.pipeline.process, item))
        context = copy_context()
        context.run(_IS_REHEARSAL.set, True)
        task = asyncio.create_task(attempt.run(), name="rowlock: rehearsal", context=context)
        try:
            # The time is not left to a cancellation, which `process` may ignore.
            done, _ = await asyncio.wait({task}, timeout=REHEARSAL_TIMEOUT.total_seconds())
            return task.result() if done else Ended.TIMED_OUT
        finally:
            task.cancel()
            item.ended_at = monotonic()

    def _item(self, held: HeldByService[Any]) -> PipelineItem[Any]:
        leased, row = self._pipeline.leased, held.rows[0]
        return PipelineItem(
            id=held.keys[0],  # pyright: ignore[reportCallIssue]
            lock_token=held.lock_token,
            lock_owner=held.lock_owner,
            lock_expires_at=utc_now() + held.remaining,
            prev_lock_expired=False,
            attempt=row.attempts + 1 if leased.has_schedule else 1,
            place=float("-inf"),
            claimed_at=monotonic(),
            # The hold is renewed meanwhile, and says at its end whether it was lost.
            trusted_until=monotonic() + 2 * REHEARSAL_TIMEOUT.total_seconds(),
            session_factory=self._sessions,
            locker=ReadingLocker(self._context),
            leased=leased,
            is_rehearsal=True,
        )

    async def _load(self, item: PipelineItem[Any]) -> None:
        async with item.session() as session:
            [row] = await load_rows(
                session,
                self._context.leased,
                [item],
                options=self._pipeline.options(),
                compared=self._context.intent,
            )
        if row is None:
            raise item.lease_lost()
        item.row = row
