"""A worker takes an item, has it processed, and decides what comes of it; the settler sees to that.

Every way in which an attempt can end leads to a decision. No session is open while the host's code runs.
"""

from __future__ import annotations

from functools import partial
from typing import Generic

from rowlock import events
from rowlock.leases.item import PipelineItem
from rowlock.pipelines.attempt import Ended, Result
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.decisions import Decision, decide
from rowlock.pipelines.failures import note_failure, note_unreadable
from rowlock.pipelines.heartbeater import Heartbeater
from rowlock.pipelines.loader import Loader
from rowlock.pipelines.outcomes import Park
from rowlock.pipelines.settler import Settler
from rowlock.rows.leased_table import ModelT


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
            # Before `work`, which may be a host's own and begin with something else.
            self.context.in_hand.add(item)
            try:
                await self.work(item)
            finally:
                self.context.in_hand.discard(item)
            if self._settler.is_full:
                await self._settler.wait_for_room()

    async def work(self, item: PipelineItem[ModelT]) -> None:
        """Process `item` and hand what comes of it over to the settler; if that cannot be, the item is given back."""
        self.context.in_hand.add(item)
        try:
            self._settler.hand_over(item, await self._decide(item))
        except GeneratorExit:
            # Its event loop is gone, and with it all that could give a row back.
            raise
        except BaseException:
            # Somebody cancelled this very worker, or there is a bug: the row must not wait for its lease to expire.
            self._settler.hand_over(item, Ended.INTERRUPTED)
            raise
        finally:
            self.context.in_hand.discard(item)

    async def _decide(self, item: PipelineItem[ModelT]) -> Decision:
        if item.unreadable is not None:
            return note_unreadable(self.context, item, item.unreadable)
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
        return decide(self.context, item, await self._attempt(item))

    async def _attempt(self, item: PipelineItem[ModelT]) -> Result:
        attempt = self.context.new_attempt(self.context.hooks.process, item)
        self._heartbeater.when_lost(item, partial(attempt.end, Ended.LEASE_LOST))
        self.context.counters.started += 1
        if events.is_heard():
            events.emit(events.ItemStarted(self.context.name, item.id, item.lock_token, item.attempt))
        self.context.running[item.lock_token] = attempt
        result = await attempt.run()
        if result is not Ended.ABANDONED:
            # One that still runs stays there until the settler has taken note of it.
            del self.context.running[item.lock_token]
        return result
