"""Settles decisions after `process` has ended, so that a worker can go on with the next row: has
the outcome written and records it, or has the row released.

No worker waits for a COMMIT: the item stays tracked and its lease renewed until the outcome is
settled, and what waits is bounded. The common case, an outcome that was written with others, takes
no task of its own.

Outcomes gather while a transaction is under way. One that brings its own statements or has related
rows to free, or whose row another transaction has locked, gets a transaction of its own, so that it
holds up no others. An error that passes is waited out, by each outcome for itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Generic

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import events
from rowlock.clock import sleep
from rowlock.database.batcher import BATCH_MAX, Batcher, Retries
from rowlock.database.faults import is_transient, may_be_of_the_size
from rowlock.errors import HOST_ERRORS, LockWaitTimeout, TransactionTimeout
from rowlock.leases.acquire import LEASES_PER_STATEMENT_MAX, in_pieces
from rowlock.leases.apply import Written
from rowlock.leases.item import PipelineItem
from rowlock.leases.related import release_unlocked_related
from rowlock.leases.release import release
from rowlock.logs import get_logger
from rowlock.pipelines.attempt import Attempt, Ended, Raised, Result, Returned
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.heartbeater import Heartbeater
from rowlock.pipelines.outcomes import (
    SUCCESSES,
    Apply,
    Delete,
    Outcome,
    Park,
    Reset,
    Retry,
    copied,
    error_text,
    hint_targets,
)
from rowlock.pipelines.planner import (
    Decision,
    checked,
    decide,
    raised_by_also,
    reason_parked,
    record_failure,
)
from rowlock.pipelines.writer import PendingOutcome, Writer, renewed_within_s
from rowlock.redaction import name_column
from rowlock.rows.assignments import PLAIN, is_like_no_other
from rowlock.rows.leased_table import ModelT, is_referenced

logger = get_logger(__name__)

PENDING_MAX = 2 * BATCH_MAX
"""No new work begins while this many decisions are settled; each worker may add one more."""
CLEANUP_S_MAX = 3600.0
"""Longest time for one `on_stale` where `process` has no limit, in seconds."""
OVERRUNS_MAX = 3
"""An outcome that overran its own transaction so often has failed: it would need too long again."""
LOCK_TIMEOUTS_MAX = 10
"""So many times `lock_timeout` an outcome is tried whose errors pass, while it is trusted."""


async def release_items(
    context: PipelineContext[Any], items: Sequence[PipelineItem[Any]], *, waits: bool = False
) -> None:
    """Release `items`. If the database does not take it, at the second try either, their leases end
    by themselves. Of several, those that another transaction has locked are waited for in the
    background, or with `waits` here.
    """
    locked: list[PipelineItem[Any]] = []
    waits = waits or len(items) == 1
    chunks = deque(in_pieces(items, LEASES_PER_STATEMENT_MAX))
    while chunks:
        chunk = chunks.popleft()
        try:
            released = await _release(context, chunk, waits=waits)
        except Exception as error:
            if len(chunk) > 1 and not is_transient(error):
                half = len(chunk) // 2
                chunks.extendleft((chunk[half:], chunk[:half]))
                continue
            text = "%(pipeline)s: %(rows)s rows were not released and stay leased until they expire"
            logger.warning(text, {"pipeline": context.name, "rows": len(chunk)}, exc_info=error)
            continue
        context.counters.released += len(released)
        for item in chunk:
            item.lose()
            if item.id in released:
                context.emit_for(events.ItemReleased, item)
            elif not waits:
                locked.append(item)
    if locked:
        context.background.begin(
            release_items(context, locked, waits=True), purpose="release locked rows"
        )


async def release_related_of(context: PipelineContext[Any], *items: PipelineItem[Any]) -> None:
    """Release related rows of lost items, and hint."""
    for chunk in in_pieces([item for item in items if item.held], LEASES_PER_STATEMENT_MAX):
        try:
            await _release(context, chunk, only_related=True)
        except Exception as error:
            text = (
                "%(pipeline)s: related rows of row %(row_id)s were not freed and stay leased until"
                " they expire"
            )
            for item in chunk:
                logger.warning(text, context.of(item, rows=len(item.held or ())), exc_info=error)


async def _release(
    context: PipelineContext[Any],
    items: Sequence[PipelineItem[Any]],
    *,
    waits: bool = False,
    only_related: bool = False,
) -> set[Any]:
    # Collected over both tries: if only the first COMMIT's answer was lost, the second one finds
    # nothing to release.
    released: set[Any] = set()

    async def work(session: AsyncSession, connection: AsyncConnection) -> None:
        if not only_related:
            released.update(await release(connection, context.leased, items, waits=waits))
        await release_unlocked_related(connection, items)

    purpose = "free related rows" if only_related else "release rows"
    try:
        await context.transact(work, purpose=purpose)
    except Exception as error:
        # What took all its time is not tried again: a shutdown must end.
        if not is_transient(error) or isinstance(error, TransactionTimeout | LockWaitTimeout):
            raise
        # A pool may hold connections that died long ago, in an outage that is over: the first use
        # of one only finds that out.
        await context.transact(work, purpose=purpose)
    _hint_related(context, items)
    return released


def _hint_related(context: PipelineContext[Any], items: Sequence[PipelineItem[Any]]) -> None:
    # Pipelines of these rows passed them over as long as they were held.
    tables = [table for item in items if item.held is not None for table, _ in item.held.perhaps()]
    for model in dict.fromkeys(table.model for table in tables):
        if context.hinter.reaches(model):
            context.hinter.hint_fetch(model)


class Settler(Generic[ModelT]):
    """`on_room` is called when it is no longer full, and `wake_after` has the fetcher look for rows
    again after a while.
    """

    def __init__(self, context: PipelineContext[ModelT], heartbeater: Heartbeater[ModelT]) -> None:
        self.context = context
        self.on_room: Callable[[], None] = lambda: None
        self.wake_after: Callable[[timedelta], None] = lambda _delay: None
        self._heartbeater = heartbeater
        self._writer = Writer(context)
        self._batcher: Batcher[PendingOutcome[ModelT], Written | None] = Batcher(
            lambda batch: self._writer.write_together(batch, begun=self._batcher.begun),
            name=f"{context.name} writes outcomes",
            timeout=context.settings.database_timeout,
            answered=self._on_batch_done,
            statements_of=self._statements_of,
            is_grace_over=lambda: context.grace_over,
        )
        # Each batch is bounded by its own statements, and what fails in it is handled there.
        self._releases: Batcher[tuple[PipelineItem[ModelT], bool], None] = Batcher(
            self._release_together, name=f"{context.name} releases rows", timeout=timedelta.max
        )
        # What refers to the row may be locked, and compared columns need statements of their own.
        self._deletes_alone = bool(context.intent) or is_referenced(context.leased)
        self._pending: set[PipelineItem[ModelT]] = set()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, item: object) -> bool:
        return item in self._pending

    @property
    def is_full(self) -> bool:
        return len(self._pending) >= PENDING_MAX

    async def wait_until_idle(self) -> None:
        while self._pending:
            self._changed.clear()
            await self._changed.wait()
        # A settlement that was cancelled from outside may have left its batch with a session.
        await self._batcher.wait_until_idle()

    def settle_later(self, item: PipelineItem[ModelT], decision: Decision) -> None:
        self._pending.add(item)
        attempt = None
        try:
            if isinstance(decision, Ended):
                attempt = self.context.running.get(item.lock_token)
            # Nothing is to be waited for: an item that locks related rows has to stop that first.
            elif item.held is None:
                item.is_settling = True
                pending = PendingOutcome(item, decision)
                # Trust is asked for the time at which its attempt ended, a moment ago.
                if item.is_trusted(item.ended_at or None) and self._goes_together(pending):
                    self._batcher.submit_nowait(pending)
                    return
        except Exception:
            # A bug: it is untracked, so that its lease ends.
            self._finish([item])
            raise
        self._in_a_task(item, self._settle(item, decision, attempt))
        if decision is Ended.ABANDONED and attempt is not None:
            # Noted at once: a task that is cancelled before its first step notes nothing.
            self._abandon(item, attempt)

    def _in_a_task(self, item: PipelineItem[ModelT], work: Coroutine[Any, Any, None]) -> None:
        # Whatever ends it, the item is untracked behind it: then its lease ends at the latest.
        task = self.context.background.begin(work, purpose="settle an outcome")
        task.add_done_callback(lambda _task: self._finish([item]))

    def _finish(self, items: Sequence[PipelineItem[ModelT]]) -> None:
        before, context = len(self._pending), self.context
        self._heartbeater.untrack(items)
        self._pending.difference_update(items)
        if context.tried is not None and context.tried in items:
            context.tried = None
            context.trial.release()
        if len(self._pending) < PENDING_MAX <= before:
            self.on_room()
        self._changed.set()
        for item in items:
            if (act := item.after_settling) is not None:
                item.after_settling = None
                context.background.begin(act(), purpose="run what follows a settled outcome")

    async def _settle(
        self, item: PipelineItem[ModelT], decision: Decision, attempt: Attempt | None
    ) -> None:
        await item.stop_locking()
        match decision:
            case Ended.ABANDONED:
                pass
            case Ended.INTERRUPTED:
                if attempt is None or await attempt.ends_within_grace(Ended.INTERRUPTED):
                    await self._releases.submit((item, False))
                else:
                    self._abandon(item, attempt)
            case Ended():
                self._record_stale(item, "lost")
                await self._release_related(item)
                self.wake_after(timedelta(0))
            case outcome:
                await self._carry_out(PendingOutcome(item, outcome))

    async def _release_together(
        self, batch: Sequence[tuple[PipelineItem[ModelT], bool]]
    ) -> list[None]:
        items = [item for item, only_related in batch if not only_related]
        await release_items(self.context, items)
        holders = [item for item, only_related in batch if only_related]
        await release_related_of(self.context, *holders)
        return [None] * len(batch)

    async def _release_related(self, item: PipelineItem[ModelT]) -> None:
        if item.held:
            await self._releases.submit((item, True))

    def _abandon(self, item: PipelineItem[ModelT], attempt: Attempt) -> None:
        # The row stays leased, until the lease expires: another attempt must not begin beside it.
        self.context.counters.abandoned += 1
        self.context.calls.abandon(attempt)
        attempt.on_late_result(lambda result: self._clean_up_late(item, result))
        text = (
            "%(pipeline)s: process ignored its cancellation and was left behind with row %(row_id)s"
        )
        logger.error(text, self.context.of(item))
        self.context.emit_for(events.ItemAbandoned, item)

    def _clean_up_late(self, item: PipelineItem[ModelT], result: Result) -> None:
        outcome = decide(self.context, item, result)
        if isinstance(outcome, SUCCESSES):
            work = self.clean_up(item, outcome)
            self.context.background.begin(work, purpose="clean up after a late result")

    async def _carry_out(
        self,
        pending: PendingOutcome[ModelT],
        written: Written | None = None,
        *,
        by_itself: bool = False,
    ) -> None:
        """Write an outcome unless it is `written`, and do what follows from the result."""
        item, outcome = pending.item, pending.outcome
        if written is None:
            try:
                written = await self.write(pending, by_itself=by_itself)
            except Exception as error:  # noqa: BLE001 - the database refused what the host computed
                await self._write_failure(item, outcome, error)
                return
        cleans_up = self._record_any(item, outcome, written)
        if written is Written.RELATED_LOST:
            self.wake_after(self.context.settings.retry_delay)
        # A stale outcome may have had no transaction that could release them: trust had ended
        # before.
        if written in {Written.STALE, Written.UNKNOWN}:
            await self._release_related(item)
        else:
            _hint_related(self.context, [item])
        if cleans_up:
            await self.clean_up(item, outcome)

    async def _write_failure(
        self, item: PipelineItem[ModelT], outcome: Outcome, error: Exception
    ) -> None:
        """Write instead of `outcome` what `also` raised, what `on_refused` gives, or a failure."""
        raised = raised_by_also(self.context, item, error)
        if raised is not None:
            instead = [raised]
        else:
            try:
                name_column(error, await self._writer.find_refused(item, outcome, error))
            # The database is away, or host objects raise: the error says what it says.
            except Exception as raised_by_search:
                text = "%(pipeline)s: the column of a refused value was not found"
                logger.debug(text, self.context.of(item), exc_info=raised_by_search)
            usual = record_failure(self.context, item, error)
            of_host = self._refused_outcome(item, error)
            instead = [usual] if of_host in (None, usual) else [of_host, usual]
        for failure in instead:
            try:
                written = await self.write(PendingOutcome(item, failure))
            except Exception as again:
                is_last = failure is instead[-1] or is_transient(again)
                whose = "the failure of" if is_last else "on_refused's outcome for"
                ends = "; it is free when its lease expires" if is_last else ""
                text = f"%(pipeline)s: {whose} row %(row_id)s could not be written{ends}"
                logger.exception(text, self.context.of(item))
                if is_last:
                    break
            else:
                self._record_any(item, failure if written.is_made else outcome, written)
                break
        await self._release_related(item)
        await self.clean_up(item, outcome)

    def _record_any(self, item: PipelineItem[ModelT], outcome: Outcome, written: Written) -> bool:
        """Record the result of a write; return whether the host is to clean up."""
        if written.is_made:
            self._record(item, outcome, written)
            return False
        # It may have been applied if that is unknown: cleaning up would take away what the row now
        # points to.
        cleans_up, reason = written is not Written.UNKNOWN, written.value
        ends = "called" if cleans_up else "not called, since it may have been applied"
        text = (
            "%(pipeline)s: %(outcome)s of row %(row_id)s was not written (%(reason)s); look for"
            f" side effects of this attempt: on_stale is {ends}"
        )
        logger.warning(text, self.context.of(item, reason=reason, outcome=type(outcome).__name__))
        self._record_stale(item, reason)
        return cleans_up

    def _refused_outcome(self, item: PipelineItem[ModelT], error: Exception) -> Outcome | None:
        try:
            outcome = copied(self.context.pipeline.on_refused(item, error))
            return checked(self.context, item, outcome, hook="on_refused")
        except HOST_ERRORS:
            text = "%(pipeline)s: on_refused failed for row %(row_id)s"
            logger.exception(text, self.context.of(item))
            return None

    async def clean_up(self, item: PipelineItem[ModelT], outcome: Outcome) -> None:
        """Have the host clean up after a result that was not applied."""
        context, calls = self.context, self.context.calls
        call = calls.call(context.pipeline.on_stale, item, outcome)
        attempt = calls.attempt(call, timeout_s=CLEANUP_S_MAX)
        context.running[attempt] = attempt
        try:
            result = await attempt.run()
        finally:
            del context.running[attempt]
        if not isinstance(result, Returned):
            error = result.error if isinstance(result, Raised) else TimeoutError(result.value)
            text = "%(pipeline)s: on_stale failed for row %(row_id)s"
            logger.error(text, context.of(item), exc_info=error)

    async def write(self, pending: PendingOutcome[ModelT], *, by_itself: bool = False) -> Written:
        """Write an outcome under the guard; return how that ended, once the COMMIT was answered.

        What was too much for one transaction with others is written `by_itself`. A transient error
        is waited out as long as the lease is trusted, for `LOCK_TIMEOUTS_MAX` at most; one that is
        itself too slow for its transaction is tried `OVERRUNS_MAX` times. The last error is raised.
        """
        context, item, overruns = self.context, pending.item, 0
        if item.is_deleted:
            return Written.APPLIED
        wait_s = LOCK_TIMEOUTS_MAX * context.settings.lock_timeout.total_seconds()
        retries = Retries(lambda failed_at: failed_at + wait_s)
        while True:
            if by_itself and not pending.stamps:
                await self._let_a_renewal_in(item)
            # A COMMIT without an answer is looked up in the row, even after the lease has ended.
            if not (pending.stamps or item.is_trusted()):
                return Written.STALE
            pending.row_is_locked = False
            try:
                if not by_itself and self._goes_together(pending):
                    together = await self._batcher.submit(pending)
                    if together is not None:
                        return together
                return await self._writer.write_alone(pending)
            except Exception as error:
                retries.failed()
                overruns += pending.is_overrun(error)
                by_itself = by_itself or may_be_of_the_size(error)
                is_late = retries.are_over or overruns >= OVERRUNS_MAX
                if not is_transient(error) or is_late or context.grace_over:
                    return await self._result_of_try(pending, error)
                text = "%(pipeline)s: writing the outcome of row %(row_id)s is tried again"
                logger.warning(text, context.of(item, tries=retries.count), exc_info=error)
            # Each rests for itself: those of a batch that failed for one of them meet in others.
            await retries.rest()

    def _goes_together(self, pending: PendingOutcome[ModelT]) -> bool:
        """Whether it is written together with others; a deletion only if it locks nothing else."""
        item, outcome = pending.item, pending.outcome
        if item.held or item.is_deleted or pending.also is not None:
            return False
        return not isinstance(outcome, Delete) or not (
            self._deletes_alone or outcome.unless_changed
        )

    def _statements_of(self, pending: PendingOutcome[ModelT]) -> int:
        """Return how many statements an outcome may need for itself: under its own guard, or with
        SQL like no other.
        """
        outcome = pending.outcome
        if self.context.intent or (isinstance(outcome, Apply) and outcome.unless_changed):
            return 1
        values = outcome.values.values() if isinstance(outcome, Apply | Retry) else ()
        return int(not PLAIN.issuperset(map(type, values)) and any(map(is_like_no_other, values)))

    def _on_batch_done(
        self,
        batch: Sequence[PendingOutcome[ModelT]],
        results: Sequence[Written | None] | None,
        error: Exception | None,
    ) -> None:
        """Settle here and now what a batch has written; all else takes its time."""
        by_itself, made = error is not None and may_be_of_the_size(error), []
        for pending, written in zip(batch, results or [None] * len(batch), strict=True):
            item = pending.item
            if written is None or not written.is_made:
                self._in_a_task(item, self._carry_out(pending, written, by_itself=by_itself))
                continue
            made.append(item)
            try:
                self._record(item, pending.outcome, written)
            except Exception:
                text = "%(pipeline)s: recording row %(row_id)s failed"
                logger.exception(text, self.context.of(item))
        self._finish(made)

    async def _let_a_renewal_in(self, item: PipelineItem[ModelT]) -> None:
        # Before the row is locked for long again, if trust does not last until that is over.
        rest_s = renewed_within_s(self.context.settings)
        most_s = self.context.settings.database_timeout.total_seconds()
        if item.remaining.total_seconds() < most_s + rest_s:
            await sleep(rest_s)

    async def _result_of_try(self, pending: PendingOutcome[ModelT], error: Exception) -> Written:
        """Return the result of the try that failed with `error`; raise it if none was written."""
        if not pending.stamps:
            raise error
        try:
            written = await self._writer.find_earlier(pending)
        except Exception:
            text = "%(pipeline)s: it is unknown whether the outcome of row %(row_id)s was committed"
            logger.warning(text, self.context.of(pending.item), exc_info=error)
            return Written.UNKNOWN
        if written is Written.STALE:
            pending.stamps = {}
            raise error
        if written.is_made and pending.also is not None and not is_transient(error):
            text = (
                "%(pipeline)s: also committed by itself, and the outcome of row %(row_id)s with it;"
                " it must neither commit nor roll back"
            )
            logger.error(text, self.context.of(pending.item), exc_info=error)
        return written

    def _record(self, item: PipelineItem[ModelT], outcome: Outcome, written: Written) -> None:
        context, counters, name = self.context, self.context.counters, type(outcome).__name__
        is_heard, error = events.has_listeners(events.ItemApplied), None
        match outcome:
            case _ if written is Written.PARKED or isinstance(outcome, Park):
                counters.parked += 1
                name, error = Park.__name__, reason_parked(item, outcome, context.settings)
                logger.warning(
                    "%(pipeline)s: row %(row_id)s is parked, and nothing works on it until it is"
                    " unparked: %(reason)s",
                    context.of(item, reason=error),
                )
                events.emit(events.ItemParked(context.name, item.id, item.lock_token, error))
            case Apply() | Delete():
                if isinstance(outcome, Apply):
                    counters.applied += 1
                else:
                    counters.deleted += 1
                for model in hint_targets(outcome.hint) if outcome.hint else ():
                    context.hinter.hint_fetch(model)
            case Retry():
                counters.retried += 1
                error = error_text(outcome.error) if is_heard else None
            case Reset():
                counters.reset += 1
                self.wake_after(context.settings.retry_delay)
        if is_heard:
            context.emit_for(
                events.ItemApplied,
                item,
                outcome=name,
                process_s=item.process_s,
                columns=_columns_of(outcome),
                error=error,
            )

    def _record_stale(self, item: PipelineItem[ModelT], reason: str) -> None:
        context = self.context
        if reason == Written.CHANGED.value:
            context.counters.changed += 1
        else:
            context.counters.stale += 1
            context.counters.never_begun += not item.begun_at
        context.emit_for(events.ItemStale, item, reason=reason, process_s=item.process_s)


def _columns_of(outcome: Outcome) -> tuple[str, ...]:
    values = outcome.values if isinstance(outcome, Apply | Retry) else ()
    return tuple(key if isinstance(key, str) else str(getattr(key, "key", key)) for key in values)
