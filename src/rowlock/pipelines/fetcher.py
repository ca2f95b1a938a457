"""Fetches: claims rows while workers have room for them, and rests when there is nothing to do.

What can end a rest: a hint, a place freed below the low watermark, the end of the delay. A hint is
taken down just before the claim is sent, so one that arrives while a fetch runs, or while the queue
is full, is not forgotten.

A claim changes nothing that the index looks at, so from the head it walks past all rows that are
leased. While claims follow one another, the next one starts where the last one ended. Older rows
that became claimable meanwhile (a dead holder's, a request whose hint was lost) are found by looks
at the head, which are never further apart than a fetch delay or `lock_timeout`. A hint, and a claim
that brought less than was asked for, have the next claim look at the head.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Generic

from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import events
from rowlock.clock import JITTER, fetch_delay, jittered, monotonic, rest
from rowlock.database.declared_rows import DeclaredRow, ensure_rows, mark_of, not_ready
from rowlock.database.faults import is_of_the_schema, is_outage
from rowlock.database.pools import claim_slot
from rowlock.database.transaction import bind_of
from rowlock.dialects.contract import ROWS
from rowlock.errors import ModelError, PipelineError, TransactionTimeout, describe
from rowlock.leases.claim import claim
from rowlock.leases.claim_request import ClaimRequest, OwnRows, Position
from rowlock.leases.item import PipelineItem
from rowlock.leases.release import mend_stamps, sweep
from rowlock.leases.table_looks import check_table
from rowlock.logs import get_logger
from rowlock.pipelines.attempt import ready_condition
from rowlock.pipelines.context import FRESH_S, FRESH_S_MAX, PipelineContext
from rowlock.pipelines.heartbeater import Heartbeater
from rowlock.pipelines.schedules import Periodic, checked_time
from rowlock.pipelines.settler import release_items
from rowlock.pipelines.statistics import LOADER
from rowlock.rows.eligibility import EligibleParts, LockingPipeline, eligible_parts, oldest_first
from rowlock.rows.expressions import fingerprint_of, is_same, of_no_row
from rowlock.rows.leased_table import ModelT
from rowlock.tasks import finish

logger = get_logger(__name__)


class ClaimCursor:
    """Remembers where the last claim ended, and until when claims may resume there."""

    def __init__(self, fetch_delays_s: Sequence[float], lock_timeout_s: float) -> None:
        self.position: Position | None = None
        self.resumes_until = float("-inf")
        self._resumes_for_s = min(*fetch_delays_s, lock_timeout_s)

    def start(self, now: float, *, hinted: bool) -> Position | None:
        """Return the position behind which a claim starts `now`; None is the head of the order."""
        if hinted:
            self.resumes_until = float("-inf")
        return self.position if now < self.resumes_until else None

    def ended(
        self, start: Position | None, *, began_at: float, reached: Position | None, is_full: bool
    ) -> None:
        self.position = reached or self.position
        if not is_full:
            # Rows may have become claimable before the position.
            self.resumes_until = float("-inf")
        elif start is None:
            self.resumes_until = began_at + self._resumes_for_s

    def failed(self) -> None:
        self.position = None


UNREADABLE_S = 60.0
"""How long claims do without rows after one that could not be read, in seconds."""


def claim_parts(
    pipeline: Any,
    *,
    ready: ColumnElement[bool],
    locking_pipelines: Sequence[LockingPipeline],
    gates: Sequence[ColumnElement[bool]],
) -> EligibleParts:
    return eligible_parts(
        pipeline.leased,
        ready=ready,
        owner=pipeline.name,
        min_processing_interval=pipeline.settings.min_processing_interval,
        reset_interval=pipeline.settings.retry_delay,
        locking_pipelines=locking_pipelines,
        gates=gates,
    )


class ClaimBuilder(Generic[ModelT]):
    """Builds what the next claim asks for.

    As long as the host's and the other pipelines' conditions say the same, the request stays, and
    with it the statement that was made for it: to build one takes longer than to execute it.
    """

    def __init__(
        self, context: PipelineContext[ModelT], own_rows: Callable[[], OwnRows] = OwnRows
    ) -> None:
        self.context = context
        self._own_rows = own_rows
        self._last: tuple[list[object], ClaimRequest] | None = None
        self._with_rows_from = float("-inf")

    def do_without_rows(self) -> None:
        self._with_rows_from = monotonic() + UNREADABLE_S

    def next(self, limit: int, *, after: Position | None = None) -> ClaimRequest:
        context, leased = self.context, self.context.leased
        ready = ready_condition(context.name, leased, context.pipeline.ready)
        locking_pipelines = context.lock_graph.locking_pipelines_of(leased, but=context.name)
        # `on` and the times are the class's.
        fingerprints: list[object] = [fingerprint_of(ready)]
        for locking in locking_pipelines:
            fingerprints += (locking.owner, locking.leased), fingerprint_of(locking.ready)
        if self._last is None or not is_same(fingerprints, self._last[0]):
            self._last = (fingerprints, self._new(ready, locking_pipelines))
        with_rows = (
            context.claims_rows
            # Only rows that are read by themselves show that a failure is over.
            and LOADER not in context.failures.errors
            and context.queue.starts_soon
            and monotonic() >= self._with_rows_from
        )
        return replace(
            self._last[1],
            limit=limit,
            related=context.locker.tables,
            after=after,
            with_rows=with_rows,
            left_out=context.left_out.keys(monotonic()),
        )

    def _new(
        self, ready: ColumnElement[bool], locking_pipelines: Sequence[LockingPipeline]
    ) -> ClaimRequest:
        context, settings = self.context, self.context.settings
        parts = claim_parts(
            context.pipeline,
            ready=ready,
            locking_pipelines=locking_pipelines,
            gates=context.seams.conditions(context.leased, context.name),
        )
        return ClaimRequest(
            context.leased,
            eligible=parts.whole,
            oldest_first=oldest_first(context.leased),
            owner=context.name,
            lock_timeout=settings.lock_timeout,
            limit=0,
            gates=of_no_row(context.leased, parts.gates),
            lockers=frozenset(locking.owner for locking in locking_pipelines),
            own_rows=self._own_rows,
            max_deaths=settings.max_deaths if context.leased.has_schedule else None,
        )


class PeriodicRows(Generic[ModelT]):
    def __init__(self, context: PipelineContext[ModelT]) -> None:
        self.context = context
        schedules = context.schedules
        self._rows: dict[Any, Periodic] = {} if schedules is None else dict(schedules.periodic)
        self.looks_at = monotonic() if self._rows else float("inf")

    async def ensure(self) -> None:
        """Insert missing rows. A refusal is logged, others need not wait; an outage is raised."""
        name, unready = self.context.name, list[Any]()
        for is_last in (False, True):
            try:
                unready = await self.context.transact(self._work, purpose="insert periodic rows")
                break
            # Another replica may have inserted them at the same time; other errors come again.
            except Exception as error:
                if is_outage(error):
                    raise
                if is_last:
                    extra = {"pipeline": name, "rows": len(self._rows)}
                    logger.exception("%(pipeline)s: periodic rows could not be inserted", extra)
        if unready:
            logger.warning(
                "%(pipeline)s: periodic rows are not ready and are never claimed: %(keys)s;"
                " change their values, or ready()",
                {"pipeline": name, "keys": unready},
            )
        self.looks_at = monotonic() + _sweep_period_s(self.context)

    async def _work(self, session: AsyncSession, connection: AsyncConnection) -> list[Any]:
        context = self.context
        rows = {
            key: DeclaredRow(partial(_next_after, row), mark_of(row.schedule), row.values)
            for key, row in self._rows.items()
        }
        await ensure_rows(connection, context.leased, rows)
        ready = ready_condition(context.name, context.leased, context.pipeline.ready)
        return await not_ready(connection, context.leased, list(rows), ready=ready)


def _next_after(row: Periodic, now: Any) -> Any:
    assert row.schedule is not None
    return checked_time(row.schedule.next_after(now))


def _sweep_period_s(context: PipelineContext[Any]) -> float:
    return jittered(context.settings.orphaned_after.total_seconds())


WAITS_S_MAX = 1.0
"""How long a row that was claimed ahead waits in the queue at most, in seconds."""

TRANSACTIONS_PER_FETCH_MAX = 5
"""Most transactions of one fetch: periodic rows, claim, claim without rows, release, sweep."""


def plan_fetch(
    *, room: int, is_low: bool, hinted: bool, delay_left_s: float
) -> tuple[int, float | None]:
    """Return how many rows to fetch now, and for how long to rest if there are none: in seconds,
    None until woken.

    A hint is followed as soon as there is any place; without one, a fetch waits for the low
    watermark and for the delay that followed the last fetch which found less than it asked for.
    """
    if room <= 0:
        return 0, None
    if hinted:
        return room, None
    if delay_left_s > 0:
        return 0, delay_left_s
    return room if is_low else 0, None


class Fetcher(Generic[ModelT]):
    """Claims rows into the queue.

    Attributes:
        heartbeaters: gives those of all pipelines of the replica; set by the manager.
    """

    def __init__(self, context: PipelineContext[ModelT], heartbeater: Heartbeater[ModelT]) -> None:
        self.context = context
        self._heartbeater = heartbeater
        self.heartbeaters: Callable[[], Sequence[Heartbeater[Any]]] = lambda: (heartbeater,)
        self._claim_builder = ClaimBuilder(context, self._own_rows)
        self._periodic = PeriodicRows(context)
        self._woken = asyncio.Event()
        self._hinted = self._is_hinted = self._is_fetching = False
        self._stopped = False
        self._engine = bind_of(context.session_factory(), context.leased).engine
        self._checks_times = ROWS.on(self._engine.dialect.name).keeps_zones
        self._cursor = ClaimCursor(
            context.settings.fetch_delays_s, context.settings.lock_timeout.total_seconds()
        )
        self._start: Position | None = None
        self._reached: Position | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0
        self._fetches_in_vain = 0
        self._rests_until = self._due_by = monotonic()
        self._sweeps_at = monotonic() + _sweep_period_s(context)

    def hint(self) -> None:
        """Fetch as soon as there is a place in the queue."""
        counters = self.context.counters
        counters.hints += 1
        counters.hints_coalesced += self._hinted
        self._hinted = True
        if not self._is_fetching:
            # A fetch under way has its own limit, which an outage uses up.
            self._due_by = min(self._due_by, monotonic())
        self._woken.set()

    def late_s(self) -> float:
        """Return by how much it is behind its own plan, in seconds."""
        return max(0.0, monotonic() - self._due_by)

    def wake_after(self, delay: timedelta) -> None:
        """Fetch, as if hinted, once rows that were reset now have come back from their rest of
        `delay`.
        """
        self._wakes_at = monotonic() + delay.total_seconds() * (1 + JITTER)
        # One for all: many rows that are reset in a row ask for one look at the end, not for each.
        if self._alarm is None and not self._stopped:
            self._set_alarm()

    def _set_alarm(self) -> None:
        delay_s = max(0.0, self._wakes_at - monotonic())
        self._alarm = asyncio.get_running_loop().call_later(delay_s, self._alarmed)

    def _alarmed(self) -> None:
        self._alarm = None
        self.hint()
        if self._wakes_at > monotonic():
            self._set_alarm()

    def wake_for_room(self) -> None:
        """Look again: a place in the queue was freed."""
        if self._hinted or self.context.queue.is_low:
            self._woken.set()

    def stop(self) -> None:
        """Fetch no more. What a claim that is under way gets is released."""
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._woken.set()

    async def run(self) -> None:
        """Fetch and rest until stopped."""
        while not self._stopped:
            queue = self.context.queue
            queue.look_ahead()
            delay_left_s = self._rests_until - monotonic()
            # While fetches fail, hints do not shorten the rest, or a busy service would hammer an
            # ailing database; but once it is over, the next fetch waits for nothing else.
            failing = "fetcher" in self.context.failures.errors
            hinted = self._hinted and not (failing and delay_left_s > 0)
            limit, rest_s = plan_fetch(
                room=queue.room,
                is_low=queue.is_low or failing,
                hinted=hinted,
                delay_left_s=delay_left_s,
            )
            if limit:
                limit_s = self.context.settings.database_timeout.total_seconds()
                self._due_by = monotonic() + TRANSACTIONS_PER_FETCH_MAX * limit_s
                self._is_fetching = True
                await self._fetch(limit)
                self._is_fetching = False
            else:
                self._due_by = math.inf if rest_s is None else monotonic() + rest_s
                await rest(self._woken, rest_s)

    async def fetch_once(self, limit: int) -> int:
        """Claim up to `limit` rows, as far as there is room for them, track them, then queue them;
        return how many there were.

        Shielded as a whole: a cancellation between the claim and the queue would leave rows leased
        that nobody works on.
        """
        for each in self.heartbeaters():
            # Others may hold rows of this table as related ones.
            related = (one.table for one in each.context.locker.tables)
            if each is self._heartbeater or self.context.leased.table in related:
                await each.renew_if_slept()
        if self._periodic.looks_at <= monotonic():
            await self._periodic.ensure()
        limit = min(limit, self.context.queue.places)
        if limit == 0:
            return 0
        request = self._claim_builder.next(limit, after=self._start)
        try:
            return await finish(self._claim_and_queue(request), purpose="fetch")
        except Exception as error:
            # A row of which a column is missing is missing it in every row: without rows all of
            # them would be claimed, and fail.
            if not request.with_rows or is_outage(error) or is_of_the_schema(error):
                raise
            # Perhaps one of the rows cannot be read. Without them each is claimed, and fails by
            # itself.
            self._claim_builder.do_without_rows()
            logger.warning(
                "%(pipeline)s: the answer to a claim could not be read; its rows were released,"
                " and for %(seconds).0f s claims read no rows: each row is read by itself when"
                " its turn comes",
                {"pipeline": self.context.name, "seconds": UNREADABLE_S},
                exc_info=error,
            )
            request = replace(request, with_rows=False)
            return await finish(self._claim_and_queue(request), purpose="fetch")

    async def _fetch(self, limit: int) -> None:
        # While no row can be read, two are claimed now and then to see whether that has changed, or
        # concerns one of them alone.
        unreadable = self.context.failures.errors.get(LOADER)
        limit = limit if unreadable is None else min(limit, 2)
        hinted, self._hinted = self._hinted, False
        self._reached, self._is_hinted = None, hinted
        try:
            if self._checks_times:
                await self._check_times()
            began_at = monotonic()
            start = self._start = self._cursor.start(began_at, hinted=hinted)
            claimed = await self.fetch_once(limit)
            self._cursor.ended(
                start, began_at=began_at, reached=self._reached, is_full=claimed >= limit
            )
            self.context.counters.hints_useful += hinted and claimed > 0
            if monotonic() >= self._sweeps_at:
                self._sweeps_at = monotonic() + _sweep_period_s(self.context)
                await self.sweep_once()
        except Exception as error:  # noqa: BLE001 - ready() is host code and may raise anything
            self._record_failure(error)
            return
        finally:
            self._start = None
        if unreadable is not None:
            self._record_failure(PipelineError(f"no row can be read: {unreadable}"))
            return
        self.context.failures.succeeded("fetcher")
        self.context.queue.claimed(is_full=claimed >= limit)
        self._rests_until = now = monotonic()
        if start is not None and claimed < limit:
            # Nothing is known yet of what stands before: that is looked at first.
            return
        self._fetches_in_vain = 0 if claimed else self._fetches_in_vain + 1
        delay_s = 0.0 if claimed >= limit else self._delay_s()
        self._rests_until = min(now + delay_s, self.context.left_out.next_at(now))

    async def _check_times(self) -> None:
        async def work(session: AsyncSession, connection: AsyncConnection) -> None:
            for leased in (self.context.leased, *self.context.locker.tables):
                await check_table(connection, leased)

        try:
            # A crowd of pipelines that starts leaves connections to the host, as with claims.
            wait_s = self.context.settings.database_timeout.total_seconds() / 2
            async with claim_slot(self._engine, wait_s=wait_s):
                await self.context.transact(work, purpose="check time columns", writes=False)
        except ModelError as error:
            if self.context.failures.errors.get("fetcher") != describe(error):
                extra = {"pipeline": self.context.name, "error": str(error)}
                logger.error("%(pipeline)s: %(error)s", extra)
            raise
        self._checks_times = False

    def _delay_s(self) -> float:
        return fetch_delay(self.context.settings.fetch_delays_s, self._fetches_in_vain)

    async def _claim_and_queue(self, request: ClaimRequest) -> int:
        context, settings = self.context, self.context.settings
        began_at, spoilt = monotonic(), context.leased.spoilt_keys
        known = len(spoilt)
        context.counters.fetches += 1
        items = await claim(
            context.session_factory,
            request,
            lease_margin=settings.lease_margin,
            timeout=settings.database_timeout,
            locker=context.locker,
            reached=partial(setattr, self, "_reached"),
        )
        context.counters.unreadable += len(spoilt) - known
        context.counters.claimed += len(items)
        context.counters.fetches_empty += not items
        context.counters.recovered += sum(item.prev_lock_expired for item in items)
        self._record_fetch(items, request, seconds=monotonic() - began_at)
        # An answer that came too late brings nothing to work on; left leased, its rows would count
        # as those of a holder that died. All of one claim are trusted from one moment on.
        is_late = bool(items) and not items[0].is_trusted(monotonic())
        if self._stopped or is_late:
            await release_items(context, items)
            if is_late and not self._stopped:
                # A failed fetch: otherwise no log line would say that claims always come too late.
                raise TransactionTimeout(purpose="claim rows", timeout_s=monotonic() - began_at)
        elif items:
            # Tracked before they are queued: from then on a worker may settle them, and what is
            # settled must not be tracked again.
            self._heartbeater.track(items)
            context.queue.put(items)
            if context.queue.grows and len(context.queue) > context.queue.size:
                loop = asyncio.get_running_loop()
                loop.call_later(WAITS_S_MAX, self._release_waiting, monotonic())
            events.emit(events.RowsClaimed(context.name, len(items), monotonic() - began_at))
        return len(items)

    def _own_rows(self) -> OwnRows:
        running = frozenset([item.id for item in self.context.in_progress])
        return OwnRows(
            running,
            frozenset([item.id for item in self._heartbeater.tracked()]) - running,
            total=sum(map(len, self.heartbeaters())),
            is_trying=self.context.trial.locked(),
        )

    def _record_fetch(
        self, items: Sequence[PipelineItem[ModelT]], request: ClaimRequest, *, seconds: float
    ) -> None:
        context, database_time = self.context, None
        context.queue.fresh_s = max(FRESH_S, min(3 * seconds, FRESH_S_MAX))
        context.histograms.fetch.add(seconds)
        context.histograms.fetch_rows.add(len(items))
        if items:
            # Of all rows of one claim it is the same moment.
            item = items[0]
            ends_at, lock_timeout = item.lock_expires_at, context.settings.lock_timeout
            database_time = (ends_at - lock_timeout).timestamp()
            context.database_ahead_s = database_time - item.claimed_at
        if events.has_listeners(events.FetchEnded):
            events.emit(
                events.FetchEnded(
                    context.name,
                    len(items),
                    asked=request.limit,
                    hinted=self._is_hinted,
                    seconds=seconds,
                    database_time=database_time,
                    model=context.leased.name,
                    claimed_at_s=items[0].claimed_at if items else None,
                )
            )

    def _release_waiting(self, queued_by: float) -> None:
        # Work may become long from one row to the next: what was claimed ahead is released, so that
        # another replica can begin it.
        queue = self.context.queue
        late = [item for item in queue.waiting()[queue.size :] if item.queued_at <= queued_by]
        if late:
            self._heartbeater.untrack(late)
            queue.shrink(late)
            self.context.background.begin(
                self._release_late(late), purpose="release what was claimed ahead"
            )

    async def _release_late(self, items: Sequence[PipelineItem[ModelT]]) -> None:
        context = self.context
        await release_items(context, items)
        # Also for this very pipeline, whose next claim would start behind them.
        if context.hinter.reaches(context.leased.model):
            context.hinter.hint_fetch(context.leased.model)

    async def sweep_once(self) -> int:
        """Clear lock columns that were left behind long ago, and return of how many rows."""

        async def work(session: AsyncSession, connection: AsyncConnection) -> int:
            context, age = self.context, self.context.settings.orphaned_after
            swept = await sweep(connection, context.leased, older_than=age)
            if not context.leased.has_schedule:  # stamps that no clock wrote
                await mend_stamps(connection, context.leased)
            for related in context.locker.tables:
                # Others' rows of these tables are others' to sweep, when their own time is over.
                swept += await sweep(connection, related, older_than=age, owner=context.name)
            return swept

        swept = await self.context.transact(work, purpose="clear orphaned locks")
        self.context.counters.swept += swept
        return swept

    def _record_failure(self, error: Exception) -> None:
        self._cursor.failed()
        self.context.queue.claimed(is_full=False)
        text = describe(error)
        self.context.counters.fetches_failed += 1
        self.context.failures.failed("fetcher", text)
        self._fetches_in_vain += 1
        self._rests_until = monotonic() + self._delay_s()
        extra = {"pipeline": self.context.name}
        logger.warning("%(pipeline)s: a fetch failed", extra, exc_info=error)
        events.emit(events.FetchFailed(self.context.name, text))
