"""A worker takes an item, has it processed, and sees to its outcome.

Every way in which an attempt can end leads to a decision, and `_settle` is the one switch over decisions. No session is open while
the host's code runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Generic

from rowlock import events
from rowlock.errors import RelatedLockUnavailable, describe
from rowlock.leases.apply import Written
from rowlock.leases.item import PipelineItem
from rowlock.pipelines.attempt import Attempt, Ended, Raised, Result, Returned, host_call
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.give_back import free_held, give_back
from rowlock.pipelines.heartbeater import Heartbeater
from rowlock.pipelines.loader import Loader
from rowlock.pipelines.outcomes import Apply, Outcome, Park, Reset, Retry, as_outcome, check_outcome, hint_targets
from rowlock.pipelines.related_values import check_related
from rowlock.pipelines.writer import Writer
from rowlock.rows.leased_table import ModelT

logger = logging.getLogger(__name__)

Decision = Outcome | Ended


class Worker(Generic[ModelT]):
    """Works on one item at a time.

    Attributes:
        context: what the actors of the pipeline share.
    """

    def __init__(
        self,
        context: PipelineContext[ModelT],
        heartbeater: Heartbeater[ModelT],
        *,
        loader: Loader[ModelT],
        writer: Writer[ModelT],
    ) -> None:
        self.context = context
        self._heartbeater = heartbeater
        self._loader = loader
        self._writer = writer

    async def run(self) -> None:
        """Work until the queue is closed."""
        while (item := await self.context.queue.take()) is not None:
            await self.work(item)

    async def work(self, item: PipelineItem[ModelT]) -> None:
        """Process `item` and settle its outcome."""
        try:
            await self._settle(item, await self._decide(item))
        except asyncio.CancelledError:
            # Somebody cancelled this very worker: the row must not wait for its lease to expire.
            self.context.in_background(self._give_back_once_ended(item), purpose="release a row")
            raise
        finally:
            self._heartbeater.untrack(item)

    async def _decide(self, item: PipelineItem[ModelT]) -> Decision:
        try:
            if not await self._loader.load(item):
                return Ended.LEASE_LOST
        except Exception as error:  # noqa: BLE001 - options() is host code, and the row may not be readable
            return self._failed(item, error)
        if self.context.leased.has_schedule and item.attempt > self.context.settings.max_attempts:
            return Park(f"gave up after {item.attempt - 1} attempts: the last holder died")
        return self._decision(item, await self._attempt(item))

    async def _attempt(self, item: PipelineItem[ModelT]) -> Result:
        attempt = self._new_attempt(self.context.hooks.process, item)
        self._heartbeater.when_lost(item, lambda: attempt.end(Ended.LEASE_LOST))
        self.context.counters.started += 1
        events.emit(events.ItemStarted(self.context.name, item.id, item.lock_token, item.attempt))
        self.context.running[item.lock_token] = attempt
        result = await attempt.run()
        del self.context.running[item.lock_token]
        if result is Ended.ABANDONED:
            self._abandon(item, attempt)
        return result

    async def _give_back_once_ended(self, item: PipelineItem[ModelT]) -> None:
        attempt = self.context.running.pop(item.lock_token, None)
        await item.settle()
        # Never under the hands of an attempt that still runs: then the lease ends by itself.
        if attempt is None or await attempt.wait_for_end():
            await give_back(self.context, [item])
        else:
            self._abandon(item, attempt)

    def _decision(self, item: PipelineItem[ModelT], result: Result) -> Decision:
        match result:
            case Returned(value):
                try:
                    return self._checked(item, value)
                except Exception as error:  # noqa: BLE001 - keys and values are the host's objects and may raise anything
                    return self._failed(item, error)
            case Raised(error) if _is_unavailable(error):
                return Reset()
            case Raised(error):
                return self._failed(item, error)
            case Ended.TIMED_OUT:
                return self._failed(item, TimeoutError(result.value))
            case Ended():
                return result

    def _checked(self, item: PipelineItem[ModelT], value: object) -> Outcome:
        outcome = as_outcome(value)
        check_outcome(self.context.leased, outcome)
        if isinstance(outcome, Apply):
            check_related(item, outcome.related)
        return outcome

    def _failed(self, item: PipelineItem[ModelT], error: BaseException) -> Retry:
        logger.error(
            "%s: processing row %s failed",
            self.context.name,
            item.id,
            extra={"pipeline": self.context.name, "row_id": item.id},
            exc_info=error,
        )
        events.emit(events.ItemFailed(self.context.name, item.id, item.lock_token, describe(error)))
        return Retry(error=error)

    async def _settle(self, item: PipelineItem[ModelT], decision: Decision) -> None:
        await item.settle()
        match decision:
            case Ended.ABANDONED:
                # It may still be at work, so nobody else may have the row yet: the lease is left to end by itself.
                pass
            case Ended.INTERRUPTED:
                await give_back(self.context, [item])
            case Ended():
                self._note_stale(item, "lost")
                await free_held(self.context, item)
            case Apply() | Retry() | Reset() | Park():
                await self._write(item, decision)
                self._hint_related(item)

    async def _write(self, item: PipelineItem[ModelT], outcome: Outcome) -> None:
        try:
            written = await self._writer.write(item, outcome)
        except Exception as error:  # noqa: BLE001 - the database refused what the host computed
            await self._write_failure(item, outcome, error)
            return
        match written:
            case Written.APPLIED:
                self._note_applied(item, outcome)
            case Written.PARKED:
                self._note_applied(item, Park(""))
            case Written.STALE | Written.CHANGED | Written.ROBBED:
                self._note_stale(item, written.value)
                if written is Written.ROBBED:
                    self.context.look_again_in(self.context.settings.retry_delay)
                await free_held(self.context, item)
                await self._clean_up(item, outcome)
            case Written.UNKNOWN:
                # It may have been applied: cleaning up would take away what the row now points to.
                self._note_stale(item, written.value)
                await free_held(self.context, item)

    async def _write_failure(self, item: PipelineItem[ModelT], outcome: Outcome, error: Exception) -> None:
        failure = self._failed(item, error)
        try:
            written = await self._writer.write(item, failure)
        except Exception as again:
            logger.error(
                "%s: the failure of row %s could not be written; it is free when its lease expires",
                self.context.name,
                item.id,
                extra={"pipeline": self.context.name, "row_id": item.id},
                exc_info=again,
            )
        else:
            if written.is_made:
                self._note_applied(item, Park("") if written is Written.PARKED else failure)
        await free_held(self.context, item)
        await self._clean_up(item, outcome)

    async def _clean_up(self, item: PipelineItem[ModelT], outcome: Outcome) -> None:
        attempt = self._new_attempt(self.context.hooks.on_stale, item, outcome)
        self.context.cleaning.add(attempt)
        try:
            result = await attempt.run()
        finally:
            self.context.cleaning.discard(attempt)
        if not isinstance(result, Returned):
            error = result.error if isinstance(result, Raised) else TimeoutError(result.value)
            logger.error(
                "%s: on_stale failed for row %s",
                self.context.name,
                item.id,
                extra={"pipeline": self.context.name, "row_id": item.id},
                exc_info=error,
            )

    def _new_attempt(self, function: Callable[..., Any], *args: object) -> Attempt:
        settings = self.context.settings
        return Attempt(
            host_call(function, *args, threads=self.context.threads),
            timeout_s=settings.process_timeout.total_seconds(),
            grace_s=settings.cancel_grace.total_seconds(),
        )

    def _abandon(self, item: PipelineItem[ModelT], attempt: Attempt) -> None:
        self.context.counters.abandoned += 1
        self.context.abandon(attempt)
        attempt.when_over(lambda result: self._clean_up_late(item, result))
        logger.error(
            "%s: process ignored its cancellation and was left behind with row %s",
            self.context.name,
            item.id,
            extra={"pipeline": self.context.name, "row_id": item.id},
        )
        events.emit(events.ItemAbandoned(self.context.name, item.id, item.lock_token))

    def _clean_up_late(self, item: PipelineItem[ModelT], result: Result) -> None:
        match self._decision(item, result):
            case Apply() as outcome:
                self.context.in_background(self._clean_up(item, outcome), purpose="clean up after a late result")
            case _:
                pass

    def _hint_related(self, item: PipelineItem[ModelT]) -> None:
        # Whoever works on these rows passed them over as long as they were held.
        for leased, _ in item.held.known() if item.held is not None else ():
            if self.context.hinter.reaches(leased.model):
                self.context.hinter.hint_fetch(leased.model)

    def _note_applied(self, item: PipelineItem[ModelT], outcome: Outcome) -> None:
        counters = self.context.counters
        match outcome:
            case Apply():
                counters.applied += 1
                for model in hint_targets(outcome.hint):
                    self.context.hinter.hint_fetch(model)
            case Retry():
                counters.retried += 1
            case Reset():
                counters.reset += 1
                self.context.look_again_in(self.context.settings.retry_delay)
            case Park():
                counters.parked += 1
        events.emit(events.ItemApplied(self.context.name, item.id, item.lock_token, type(outcome).__name__))

    def _note_stale(self, item: PipelineItem[ModelT], reason: str) -> None:
        if reason == Written.CHANGED.value:
            self.context.counters.changed += 1
        else:
            self.context.counters.stale += 1
        events.emit(events.ItemStale(self.context.name, item.id, item.lock_token, reason))


def _is_unavailable(error: BaseException) -> bool:
    """Whether nothing but related locks were not to be had, also where a task group wrapped what its tasks raised."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(RelatedLockUnavailable)[1] is None
    return isinstance(error, RelatedLockUnavailable)
