"""Releases rows that were claimed ahead and wait in the queue, so that another replica can begin
them.

Work that was short may become long from one row to the next. Then the queue is full of leased rows
that nobody will begin soon. Those that stand behind the queue's own size are released once they
have waited for `WAITS_S_MAX`, as if they had never been claimed: they are due as before, keep their
places in the order, and no attempt is counted.

Not here: how many rows are claimed ahead (``pipelines/ahead.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic

from rowlock.clock import monotonic
from rowlock.leases.item import PipelineItem
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.renewing.heartbeater import Heartbeater
from rowlock.pipelines.settling.release import release_items
from rowlock.rows.leased_table import ModelT

WAITS_S_MAX = 1.0
"""How long a row that was claimed ahead waits in the queue at most, in seconds."""


class Unstarted(Generic[ModelT]):
    """Watches the queue of one pipeline while it holds more than its size.

    Attributes:
        context: what the actors of the pipeline share.
    """

    def __init__(self, context: PipelineContext[ModelT], heartbeater: Heartbeater[ModelT]) -> None:
        self.context = context
        self._heartbeater = heartbeater
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Look again when the first of the rows that were claimed ahead has waited for
        `WAITS_S_MAX`; called behind each claim.
        """
        ahead = self.context.queue.ahead
        if ahead is None or self._timer is not None or len(self.context.queue) <= ahead.size:
            return
        first = min(item.queued_at for item in self.context.queue.waiting()[ahead.size :])
        self._timer = asyncio.get_running_loop().call_later(
            max(0.0, first + WAITS_S_MAX - monotonic()), self._look
        )

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        queue, ahead = self.context.queue, self.context.queue.ahead
        assert ahead is not None
        limit = monotonic() - WAITS_S_MAX
        late = [item for item in queue.waiting()[ahead.size :] if item.queued_at <= limit]
        if late:
            ahead.reset()
            # First, since a task factory of the host's may refuse it: then they stay where they
            # are.
            self.context.background.begin(
                self._release(late), purpose="release what was claimed ahead"
            )
            for item in late:
                self._heartbeater.untrack(item)
            queue.discard(late)
            # Their places go with them, or the hint behind this would claim one of them again.
            queue.capacity = max(ahead.size, len(queue))
        self.watch()

    async def _release(self, items: Sequence[PipelineItem[ModelT]]) -> None:
        context = self.context
        await release_items(context, items)
        # Also for this very pipeline, whose next claim would start behind them.
        if context.hinter.reaches(context.leased.model):
            context.hinter.hint_fetch(context.leased.model)
