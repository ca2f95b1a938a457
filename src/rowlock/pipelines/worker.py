"""A worker takes an item, has it processed, and decides what comes of it; the settler sees to that.

Every way in which an attempt can end leads to a decision. No session is open while the host's code runs.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Generic

from rowlock import events
from rowlock.errors import RelatedLockUnavailable
from rowlock.leases.item import PipelineItem
from rowlock.logs import get_logger
from rowlock.pipelines.attempt import Attempt, Ended, Raised, Result, Returned
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.failures import note_failure
from rowlock.pipelines.give_back import give_back
from rowlock.pipelines.heartbeater import Heartbeater
from rowlock.pipelines.loader import Loader
from rowlock.pipelines.outcomes import Apply, Outcome, Park, Reset, as_outcome, check_outcome
from rowlock.pipelines.related_values import check_related
from rowlock.pipelines.settler import Decision, Settler
from rowlock.rows.leased_table import ModelT

logger = get_logger(__name__)


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
        settler: Settler[ModelT],
    ) -> None:
        self.context = context
        self._heartbeater = heartbeater
        self._loader = loader
        self._settler = settler

    async def run(self) -> None:
        """Work until the queue is closed."""
        while (item := await self.context.queue.take()) is not None:
            await self.work(item)
            if self._settler.is_full:
                await self._settler.wait_for_room()

    async def work(self, item: PipelineItem[ModelT]) -> None:
        """Process `item` and hand what comes of it over to the settler."""
        try:
            decision = await self._decide(item)
        except asyncio.CancelledError:
            # Somebody cancelled this very worker: the row must not wait for its lease to expire.
            self.context.in_background(self._give_back_once_ended(item), purpose="release a row")
            raise
        self._settler.hand_over(item, decision)

    async def _decide(self, item: PipelineItem[ModelT]) -> Decision:
        try:
            if not await self._loader.load(item):
                return Ended.LEASE_LOST
        except Exception as error:  # noqa: BLE001 - options() is host code, and the row may not be readable
            # Where no row can be read, it is not this one's failure: it is given back, and the fetcher knows.
            return (
                Ended.INTERRUPTED if self._loader.concerns_all_rows(error) else note_failure(self.context, item, error)
            )
        if self.context.leased.has_schedule and item.attempt > self.context.settings.max_attempts:
            return Park(f"gave up after {item.attempt - 1} attempts: the last holder died")
        return self._decision(item, await self._attempt(item))

    async def _attempt(self, item: PipelineItem[ModelT]) -> Result:
        attempt = self.context.new_attempt(self.context.hooks.process, item)
        self._heartbeater.when_lost(item, partial(attempt.end, Ended.LEASE_LOST))
        self.context.counters.started += 1
        if events.is_heard():
            events.emit(events.ItemStarted(self.context.name, item.id, item.lock_token, item.attempt))
        self.context.running[item.lock_token] = attempt
        result = await attempt.run()
        del self.context.running[item.lock_token]
        if result is Ended.ABANDONED:
            self._abandon(item, attempt)
        return result

    async def _give_back_once_ended(self, item: PipelineItem[ModelT]) -> None:
        try:
            attempt = self.context.running.pop(item.lock_token, None)
            await item.settle()
            # Never under the hands of an attempt that still runs: then the lease ends by itself.
            if attempt is None or await attempt.wait_for_end():
                await give_back(self.context, [item])
            else:
                self._abandon(item, attempt)
        finally:
            self._heartbeater.untrack(item)
            self.context.tell_settled(item)

    def _decision(self, item: PipelineItem[ModelT], result: Result) -> Decision:
        match result:
            case Returned(value):
                try:
                    return self._checked(item, value)
                except Exception as error:  # noqa: BLE001 - keys and values are the host's objects and may raise anything
                    return note_failure(self.context, item, error)
            case Raised(error) if _is_unavailable(error):
                return Reset()
            case Raised(error):
                return note_failure(self.context, item, error)
            case Ended.TIMED_OUT:
                return note_failure(self.context, item, TimeoutError(result.value))
            case Ended():
                return result

    def _checked(self, item: PipelineItem[ModelT], value: object) -> Outcome:
        outcome = as_outcome(value)
        check_outcome(self.context.leased, outcome)
        if isinstance(outcome, Apply):
            check_related(item, outcome.related)
        return outcome

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
                self.context.in_background(
                    self._settler.clean_up(item, outcome), purpose="clean up after a late result"
                )
            case _:
                pass


def _is_unavailable(error: BaseException) -> bool:
    """Whether nothing but related locks were not to be had, also where a task group wrapped what its tasks raised."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(RelatedLockUnavailable)[1] is None
    return isinstance(error, RelatedLockUnavailable)
