"""Writes outcomes, each call in one transaction: together with others, or one alone with `also` and
its related rows.

Each transaction asks for trust before it locks the rows, locks them, plans what each outcome
writes, writes it under the row's guard, and remembers the stamp until the COMMIT is answered.

After an error of the COMMIT it is unknown whether it was carried out: the guarded write is tried
again, and if the guard no longer matches, the row tells by its stamp whether an earlier try was
committed. What the database has refused was not committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic

from sqlalchemy import Column
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import events
from rowlock.clock import monotonic
from rowlock.database.faults import is_after_an_error, is_transient, may_be_of_a_value
from rowlock.errors import LeaseLost, OutcomeError, TransactionTimeout
from rowlock.leases.apply import (
    MADE,
    RowWrite,
    Written,
    apply_locked,
    cast_value,
    delete_locked,
    delete_written,
    deleted,
    is_unchanged,
    lock_for_apply,
    processed_at,
    time_of,
    write_free,
)
from rowlock.leases.item import PipelineItem
from rowlock.leases.related import release_related, write_related
from rowlock.logs import get_logger
from rowlock.pipelines.attempt import contained
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.outcomes import (
    SUCCESSES,
    Also,
    Apply,
    Delete,
    Outcome,
    Reset,
    Retry,
    related_items,
)
from rowlock.pipelines.planner import Planner
from rowlock.pipelines.settings import PipelineSettings
from rowlock.rows.assignments import is_sql
from rowlock.rows.leased_table import LeasedTable, ModelT
from rowlock.rows.updates import (
    NAMES_SHOWN_MAX,
    Values,
    checked_values,
    column_values,
    resolve_now_placeholders,
)

logger = get_logger(__name__)

RENEWED_WITHIN_BEATS = 3
"""In so many beats of the heartbeater a renewal gets in while no transaction has the row locked."""
ENDED_BY_ALSO = (
    "also ended the transaction that it is part of; it must neither commit nor roll back"
)


@dataclass(eq=False, slots=True)
class PendingOutcome(Generic[ModelT]):
    """One outcome on its way.

    Attributes:
        stamps: the `last_processed_at` that each transaction with an unanswered COMMIT wrote, with
            the result if it was committed.
        if_not_held: the result if the row is no longer held and has none of the `stamps`: that of
            the last try that wrote no outcome.
        row_is_locked: whether its own transaction has locked the row, so that it waits for no other
            transaction.
    """

    item: PipelineItem[ModelT]
    outcome: Outcome
    stamps: dict[datetime, Written] = field(default_factory=dict)
    if_not_held: Written = Written.STALE
    row_is_locked: bool = False

    @property
    def also(self) -> Also | None:
        return self.outcome.also if isinstance(self.outcome, SUCCESSES) else None

    def is_overrun(self, error: Exception) -> bool:
        """Whether the outcome itself took longer than its transaction may; not an outage, nor a
        COMMIT whose answer was lost.
        """
        return isinstance(error, TransactionTimeout) and self.row_is_locked and not self.stamps

    def remember(self, written: Written, stamp: datetime) -> None:
        """Remember what was written: until the COMMIT is answered, it may not have happened."""
        if written.is_made:
            self.stamps[stamp] = written
        else:
            self.if_not_held = written


class Writer(Generic[ModelT]):
    def __init__(self, context: PipelineContext[ModelT]) -> None:
        self.context = context

    async def write_together(
        self, batch: Sequence[PendingOutcome[ModelT]], *, begun: Callable[[], None]
    ) -> list[Written | None]:
        """Write outcomes in one transaction, once `begun` was called in it, and return what became
        of each; None of one that has to be written alone.
        """

        async def work(session: AsyncSession, connection: AsyncConnection) -> list[Written | None]:
            begun()
            leased = self.context.leased
            written = await self._write_free(connection, batch)
            left = [i for i, one in enumerate(written) if one is None]
            if not left:
                return written
            items = [pending.item for pending in batch]
            now, stamps = await self._lock_trusted(connection, [items[i] for i in left])
            missing = [batch[i] for i in left if items[i].lock_token not in stamps]
            earlier = await self._earlier_tries(connection, missing)
            for i in left:
                end = earlier.get(batch[i])
                # PostgreSQL may still be carrying out the COMMIT of what does not look committed:
                # that is waited for alone.
                written[i] = None if end is Written.STALE else end
            if now is None:
                return written
            planner = self._planner(connection, now)
            writes: dict[int, RowWrite] = {}
            deletes: list[int] = []
            for i in [i for i in left if items[i].lock_token in stamps]:
                stamp = stamps[items[i].lock_token]
                of_this = planner if stamp == now else self._planner(connection, now, stamp)
                write = of_this.plan(items[i], batch[i].outcome)
                if write.deletes:
                    deletes.append(i)
                else:
                    writes[i] = write
            gone = await delete_locked(connection, leased, [items[i] for i in deletes])
            for i in deletes:
                if items[i].id in gone:
                    written[i] = Written.APPLIED
                    batch[i].remember(Written.APPLIED, now)
            of_items = [(items[i], write) for i, write in writes.items()]
            results = await apply_locked(connection, leased, of_items)
            for i, result in zip(writes, results, strict=True):
                written[i] = result
                batch[i].remember(result, stamps[items[i].lock_token])
            return written

        began_at = monotonic()
        written = await self.context.transact(work, purpose="write outcomes")
        self._record(began_at, batch, written)
        return written

    async def _write_free(
        self, connection: AsyncConnection, batch: Sequence[PendingOutcome[ModelT]]
    ) -> list[Written | None]:
        """Write what is values alone, by one statement for each set of columns; return the result
        of each, and None for those whose row has to be locked first.
        """
        written: list[Written | None] = [None] * len(batch)
        leased, at = self.context.leased, monotonic()
        if leased.version_generator is not None or not leased.has_places:
            return written
        now = await time_of(connection)
        planner, numbers, writes = self._planner(connection, now), [], []
        for number, pending in enumerate(batch):
            if isinstance(pending.outcome, Delete) or at >= pending.item.trusted_until:
                continue
            write, item = planner.plan(pending.item, pending.outcome), pending.item
            numbers.append((number, write.once_written))
            writes.append(((item.id, item.lock_token), write.values, write.unless_changed))
        for place in await write_free(connection, leased, writes):
            number, made = numbers[place]
            written[number] = made
            batch[number].remember(made, now)
        return written

    async def write_alone(self, pending: PendingOutcome[ModelT]) -> Written:
        """Write an outcome in a transaction of its own, with `also` and its related rows."""

        async def work(session: AsyncSession, connection: AsyncConnection) -> Written:
            leased, item, outcome = self.context.leased, pending.item, pending.outcome
            now, stamps = await self._lock_trusted(connection, [item], waits=True)
            pending.row_is_locked = now is not None
            written, write = Written.STALE, RowWrite({})
            if now is not None:
                planner = self._planner(connection, now, stamps[item.lock_token])
                write = planner.plan(item, outcome)
                [written] = await apply_locked(connection, leased, [(item, write)])
            # Before the related rows, as everywhere: two that lock them in different orders would
            # wait for each other.
            earlier = (
                await self._earlier_try(connection, pending) if written is Written.STALE else None
            )
            if written.is_made and isinstance(outcome, SUCCESSES) and item.held:
                await write_related(connection, item, write.related)
            else:
                await release_related(connection, item)
            if earlier is not None:
                return earlier
            assert now is not None
            stamp = stamps[item.lock_token]
            if written.is_made and pending.also is not None:
                await self._within(session, connection, pending, now=now, stamp=stamp)
            if written.is_made and write.deletes:
                await delete_written(connection, leased, item)
            pending.remember(written, stamp)
            return written

        time, began_at = time_for(pending.item, self.context.settings), monotonic()
        try:
            written = await self.context.transact(work, purpose="write an outcome", timeout=time)
        except LeaseLost:
            # Of a related row: what was computed while it was held may no longer be true.
            pending.stamps, pending.if_not_held = {}, Written.RELATED_LOST
            reset = await self.write_alone(PendingOutcome(pending.item, Reset()))
            return Written.RELATED_LOST if reset.is_made else reset
        self._record(began_at, [pending], [written])
        return written

    def _record(
        self,
        began_at: float,
        batch: Sequence[PendingOutcome[ModelT]],
        written: Sequence[Written | None],
    ) -> None:
        context, seconds = self.context, monotonic() - began_at
        made = [pending for pending, one in zip(batch, written, strict=True) if one in MADE]
        context.histograms.write.add(seconds)
        context.histograms.write_rows.add(len(made))
        if events.has_listeners(events.OutcomesWritten):
            tokens = tuple([pending.item.lock_token for pending in made])
            events.emit(events.OutcomesWritten(context.name, len(made), seconds, tokens))

    async def _lock_trusted(
        self,
        connection: AsyncConnection,
        items: Sequence[PipelineItem[ModelT]],
        *,
        waits: bool = False,
    ) -> tuple[datetime | None, dict[Any, datetime]]:
        """Lock those rows of `items` that may still be written, as `lock_for_apply` does.

        Trust is asked here again, since the outcome may have waited for the transaction; and before
        the rows are locked: a token that is found then proves by itself that no other holder has
        taken the row, however long the answer took.
        """
        at = monotonic()
        trusted = [item for item in items if at < item.trusted_until]
        return await lock_for_apply(connection, self.context.leased, trusted, waits=waits)

    async def find_refused(
        self, item: PipelineItem[ModelT], outcome: Outcome, error: Exception
    ) -> str | None:
        """Return the table and column whose value was refused with `error`, or None. Drivers do not
        name it, so the database is asked to cast one value after the other.
        """
        maps: list[tuple[LeasedTable, Values]] = []
        if may_be_of_a_value(error) and isinstance(outcome, Apply | Retry):
            maps.append((self.context.leased, outcome.values))
        if may_be_of_a_value(error) and isinstance(outcome, SUCCESSES):
            related = related_items(outcome.related)
            maps += [(item.held_rows().find(named)[0], values) for named, values in related]
        for leased, values in maps:
            # Any time will do.
            resolved = resolve_now_placeholders(values, item.lock_expires_at)
            for column, value in list(column_values(leased, resolved).items())[:NAMES_SHOWN_MAX]:
                if not is_sql(value) and await self._is_refused(column, value, error):
                    return f"{leased.table.name}.{column.name}"
        return None

    async def _is_refused(self, column: Column[Any], value: Any, error: Exception) -> bool:
        try:
            await self.context.transact(
                lambda _session, connection: cast_value(connection, column, value),
                purpose="find a refused value",
                writes=False,
            )
        except Exception as raised:
            if is_transient(raised):
                raise
            return _kind_of(raised) == _kind_of(error)
        return False

    async def find_earlier(self, pending: PendingOutcome[ModelT]) -> Written:
        """Return how an earlier try without an answer has ended; waits for one that still runs."""
        return await self.context.transact(
            lambda _session, connection: self._earlier_try(connection, pending),
            purpose="look up an unanswered COMMIT",
        )

    async def _earlier_try(
        self, connection: AsyncConnection, pending: PendingOutcome[ModelT]
    ) -> Written:
        """As `find_earlier`, in the caller's transaction; stale if there was no earlier try."""
        tries = await self._earlier_tries(connection, [pending], waits=True)
        return tries.get(pending, pending.if_not_held)

    async def _earlier_tries(
        self,
        connection: AsyncConnection,
        batch: Sequence[PendingOutcome[ModelT]],
        *,
        waits: bool = False,
    ) -> dict[PendingOutcome[ModelT], Written]:
        """Return how earlier tries have ended whose COMMIT was not answered."""
        alike: dict[tuple[frozenset[datetime], bool], list[PendingOutcome[ModelT]]] = {}
        for pending in batch:
            if pending.stamps:
                key = frozenset(pending.stamps), isinstance(pending.outcome, Delete)
                alike.setdefault(key, []).append(pending)
        ends: dict[PendingOutcome[ModelT], Written] = {}
        for (stamps, deletes), members in alike.items():
            items, leased = [pending.item for pending in members], self.context.leased
            there = (
                await deleted(connection, leased, items, waits=waits)
                if deletes
                else await processed_at(connection, leased, items, stamps=stamps, waits=waits)
            )
            for pending in members:
                end = there[pending.item.id]
                # An earlier try that was committed would have left no token for a later one.
                made = [*pending.stamps.values()][-1]
                ends[pending] = made if end is Written.APPLIED else end
        return ends

    async def _within(
        self,
        session: AsyncSession,
        connection: AsyncConnection,
        pending: PendingOutcome[ModelT],
        *,
        now: datetime,
        stamp: datetime,
    ) -> None:
        """Run `also`, and check that the transaction can still be committed: PostgreSQL answers a
        COMMIT after an error that was swallowed as if all were well, and rolls back.
        """
        transaction, failure, is_rolled_back = session.sync_session.get_transaction(), None, False
        assert pending.also is not None
        try:
            await contained(pending.also, session, now)
            if session.sync_session.get_transaction() is transaction:
                await contained(session.flush)
                is_rolled_back = await is_unchanged(
                    connection, self.context.leased, pending.item, values={}
                )
        except Exception as error:  # noqa: BLE001 - raised again below
            failure = error
        if session.sync_session.get_transaction() is not transaction:
            # The outcome is committed with it, or rolled back: the row tells.
            pending.remember(Written.APPLIED, stamp)
            raise failure or OutcomeError(ENDED_BY_ALSO)
        if failure is not None and is_after_an_error(failure):
            raise OutcomeError(
                "also swallowed a database error, so nothing of its transaction can be committed;"
                " let the error out, or run what may fail within session.begin_nested()"
            ) from failure
        if failure is not None:
            raise failure
        if is_rolled_back:
            raise OutcomeError(ENDED_BY_ALSO)

    def _planner(
        self, connection: AsyncConnection, now: datetime, stamp: datetime | None = None
    ) -> Planner:
        values_of = partial(checked_values, dialect=connection.dialect)
        return Planner(self.context, now, stamp=stamp, values_of=values_of)


def _kind_of(error: Exception) -> tuple[object, ...]:
    of_driver = getattr(error, "orig", None)
    return type(error), type(of_driver), getattr(of_driver, "sqlstate", None)


def time_for(item: PipelineItem[Any], settings: PipelineSettings) -> timedelta:
    """Return how long a transaction may have the row locked: trust must last until a renewal gets
    in behind it.

    The trap this closes: a renewal skips a row that is locked, and a transaction that writes an
    outcome has it locked. Tried again and again, a slow outcome would lose its own lease.
    """
    most_s = settings.database_timeout.total_seconds()
    left_s = item.remaining.total_seconds() - renewed_within_s(settings)
    return timedelta(seconds=min(most_s, max(left_s, most_s / 2)))


def renewed_within_s(settings: PipelineSettings) -> float:
    return RENEWED_WITHIN_BEATS * settings.heartbeat_interval.total_seconds()
