"""One run of a pipeline, from its start to its last drained item.

The order of ending: the fetcher stops, what was queued is released, running work gets its grace and
then is interrupted, and the heartbeater goes last, since it keeps the leases of all that still
runs.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Generic

from rowlock import events
from rowlock.clock import monotonic, utc_now
from rowlock.database.pools import claim_slot
from rowlock.database.transaction import bind_of
from rowlock.leases.claim_request import ClaimRequest
from rowlock.leases.item import PipelineItem
from rowlock.leases.table_looks import Problem, claim_problems
from rowlock.logs import get_logger
from rowlock.pipelines.attempt import Ended
from rowlock.pipelines.context import BackgroundTasks, PipelineContext
from rowlock.pipelines.fetcher import ClaimBuilder, Fetcher
from rowlock.pipelines.heartbeater import Heartbeater
from rowlock.pipelines.settler import Settler, release_items
from rowlock.pipelines.statistics import ItemView, PipelineHealth, PipelineStatistics
from rowlock.pipelines.worker import Loader, Pool, Worker
from rowlock.rows.leased_table import ModelT
from rowlock.tasks import Supervisor, finish

logger = get_logger(__name__)

LOOK_AFTER_S = 3.0
"""How long after the start the indexes are looked at, in seconds: the first claims come first."""


async def log_indexes(context: PipelineContext[Any], request: ClaimRequest) -> list[Problem] | None:
    """Look at the indexes of the table, and log what to change; None if that was not possible."""
    timeout, name = context.settings.database_timeout, context.name
    try:
        engine = bind_of(context.session_factory(), context.leased).engine
        # A crowd that started together looks together.
        async with claim_slot(engine, wait_s=timeout.total_seconds()):
            problems = await context.transact(
                lambda _session, connection: claim_problems(connection, name, request),
                purpose="look at indexes",
                writes=False,
            )
    except Exception as error:
        extra = {"pipeline": name}
        logger.debug("%(pipeline)s: the indexes could not be looked at", extra, exc_info=error)
        return None
    for what, remedy in problems:
        extra = {"pipeline": name, "problem": f"{what}; {remedy}"}
        logger.warning("%(pipeline)s: %(problem)s", extra)
    return problems


FETCHER, BEAT, WATCH = "fetcher", "heartbeater", "lease watch"


class PipelineRun(Generic[ModelT]):
    def __init__(self, context: PipelineContext[ModelT]) -> None:
        self.context, pipeline = context, context.pipeline
        self.heartbeater: Heartbeater[ModelT] = pipeline.heartbeater_class(context)
        self.fetcher: Fetcher[ModelT] = pipeline.fetcher_class(context, self.heartbeater)
        context.queue.on_room = self.fetcher.wake_for_room
        self.settler = Settler(context, self.heartbeater)
        self.settler.wake_after = self.fetcher.wake_after
        self.heartbeater.before_renewal = self.release_strays
        loader = Loader(context)
        self.workers: list[Worker[ModelT]] = [
            pipeline.worker_class(context, self.heartbeater, loader=loader, settler=self.settler)
            for _ in range(context.settings.workers_num)
        ]
        self._supervisor = Supervisor(context.name)
        self.pool = Pool(context, self.workers, settler=self.settler, supervisor=self._supervisor)
        context.check_ending = self._close_pool_if_ending
        context.background = BackgroundTasks(context.name, check_ending=context.check_ending)
        self._loop = asyncio.get_running_loop()
        self._hint_is_on_its_way = False
        self._index_timer: asyncio.TimerHandle | None = None
        self.state = "running"  # then "stopping", and "stopped"

    def start(self) -> None:
        self._supervisor.keep(BEAT, self.heartbeater.run)
        self._supervisor.keep(WATCH, self.heartbeater.watch)
        self.pool.start()
        self._supervisor.keep(FETCHER, self.fetcher.run)
        self._log_state(f"workers: {len(self.workers)}")

    def _log_state(self, more: str = "") -> None:
        text = f"%(pipeline)s is %(state)s{', ' if more else ''}{more}"
        logger.info(text, {"pipeline": self.context.name, "state": self.state})

    def look_at_indexes_soon(self) -> None:
        async def look() -> None:
            await log_indexes(self.context, ClaimBuilder(self.context).next(1))

        begin = self.context.background.begin
        self._index_timer = self._loop.call_later(
            LOOK_AFTER_S, lambda: begin(look(), purpose="look at indexes")
        )

    def _close_pool_if_ending(self) -> bool:
        # At the end of the event loop no row is begun: nothing waits for it. Where workers alone
        # run, as in steps of a test, all of them may have been cancelled for their leases.
        is_ending = self._supervisor.is_ending and BEAT in self._supervisor.alive()
        self.pool.is_open = self.pool.is_open and not is_ending
        return is_ending

    def hint(self) -> None:
        """Have the fetcher look as soon as it has room; may be called from any thread."""
        # Not the thread: after a fork, or under another loop of the thread, it would be the same.
        if asyncio._get_running_loop() is self._loop:
            self.fetcher.hint()
        elif not self._hint_is_on_its_way:
            # One is enough however many threads hint; a closed loop fetches nothing more.
            self._hint_is_on_its_way = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._pass_on_hint)

    def _pass_on_hint(self) -> None:
        self._hint_is_on_its_way = False
        self.fetcher.hint()

    def release_strays(self) -> None:
        """Release each tracked item that is not queued, in progress or being settled: a bug lost
        it, and its lease would be renewed for ever. None is in transit between two steps of the
        loop.
        """
        queued, in_progress = frozenset(self.context.queue.waiting()), self.context.in_progress
        placed = (queued, in_progress, self.settler)
        tracked = self.heartbeater.tracked()
        strays = [item for item in tracked if not any(item in one for one in placed)]
        self.context.counters.strays += len(strays)
        for item in strays:
            self.settler.settle_later(item, Ended.INTERRUPTED)
        for item in strays:
            logger.error(
                "%(pipeline)s: row %(row_id)s was leased but neither queued, running nor settling;"
                " it is released. This is a bug in rowlock: report it with the log before it",
                self.context.of(item),
            )
            events.emit(events.StrayFound(self.context.name, item.id, item.lock_token))

    def shutdown(self) -> None:
        """Start nothing more and release what was not started; what runs goes on until it is
        drained.

        May be called from any thread, and from a signal handler, which may have interrupted the
        queue. So nothing is done now, but in the next iteration of the loop.
        """
        if self.state != "running":
            return
        self.state, self.pool.is_open = "stopping", False
        with suppress(RuntimeError):  # a closed loop has nothing left to stop
            self._loop.call_soon_threadsafe(self._stop_fetching)

    def _stop_fetching(self) -> None:
        is_first = not self.context.stop.is_set()
        self.fetcher.stop()
        self.context.stop.set()
        if self._index_timer is not None:
            self._index_timer.cancel()
        unstarted = self.context.queue.close()
        if is_first:
            self._log_state(f"running: {len(self._begun())}, released: {len(unstarted)}")
        if unstarted:
            self.heartbeater.untrack(unstarted)
            releasing = release_items(self.context, unstarted)
            self.context.background.begin(releasing, purpose="release what was not started")

    async def drain(self, grace_s: float) -> None:
        """Wait for running work, interrupt it after `grace_s`, and end every loop."""
        self.shutdown()
        self._stop_fetching()
        ends_at = monotonic() + grace_s
        if not await self._work_ends(ends_at):
            self.context.grace_over = True
            self._interrupt()
            # Each wait behind this is bounded: by the cancel grace, then by the writes' own limits.
            if not await self._work_ends(monotonic() + self._last_wait_s()):
                # What was interrupted may have been cleaned up after since, by code that does not
                # end.
                self._interrupt()
        await self._supervisor.wait(FETCHER, timeout_s=self._last_wait_s())
        self.pool.is_over = True
        await self._supervisor.stop(timeout_s=self._last_wait_s())
        self.release_strays()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._last_wait_s()):
                # Outcomes that are written with others have no task of their own.
                await self.settler.wait_until_idle()
                # What ends may begin more: an outcome that is settled, what waited for it.
                while self.context.background:
                    await self.context.background.wait_for_one()
        self.context.calls.close()
        if self.state != "stopped":
            self.state = "stopped"
            self._log_state()

    def _interrupt(self) -> None:
        for attempt in self.context.running.values():
            attempt.end(Ended.INTERRUPTED)

    async def _work_ends(self, ends_at: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, ends_at - monotonic())):
                await self.pool.wait_until_idle()
                await self.settler.wait_until_idle()
                return True
        return False

    def statistics(self) -> PipelineStatistics:
        ahead_s, begun = self.context.database_ahead_s, self._begun()
        self.context.counters.loops_replaced = self._supervisor.restarts
        return PipelineStatistics(
            self.context.name,
            queued=len(self.context.queue),
            running=len(begun),
            tracked=len(self.heartbeater),
            counters=asdict(self.context.counters),
            buckets=self.context.histograms.snapshot(),
            capacity=self.context.queue.capacity,
            workers=len(self.workers),
            settling=len(self.settler),
            abandoned=len(self.context.calls.abandoned()),
            longest_running_s=monotonic() - min(begun) if begun else 0.0,
            clock_skew_s=None if ahead_s is None else utc_now().timestamp() - monotonic() - ahead_s,
        )

    def items(self, limit: int) -> list[ItemView]:
        in_progress = tuple(self.context.in_progress)
        running = [self._view(item, "running", item.begun_at) for item in in_progress]
        settling = [
            self._view(item, "settling", item.ended_at)
            for item in self.heartbeater.tracked()
            if item in self.settler
        ]
        queued = self.context.queue.waiting()[:limit]
        return [
            *sorted([*running, *settling], key=lambda view: -view.since_s),
            *(self._view(item, "queued", item.queued_at, place=n) for n, item in enumerate(queued)),
        ][:limit]

    def _begun(self) -> list[float]:
        # Since when each row is processed, on the monotonic clock.
        # Copied at once, since another thread may ask.
        return [item.begun_at for item in tuple(self.context.in_progress) if item.begun_at]

    def _view(
        self, item: PipelineItem[ModelT], state: str, since: float, *, place: int | None = None
    ) -> ItemView:
        since_s = monotonic() - (since or item.queued_at or item.claimed_at)
        return ItemView(
            self.context.name, item.id, state, place, since_s, item.attempt, item.lock_token
        )

    async def return_queued(self) -> int:
        items = self.context.queue.waiting()
        self.heartbeater.untrack(items)
        self.context.queue.discard(items)
        if items:
            await finish(release_items(self.context, items), purpose="release what is queued")
        return len(items)

    def health(self) -> PipelineHealth:
        context, late_s = self.context, {}
        if self.state == "running":
            beat_s, watch_s = self.heartbeater.late_s()
            late_s = {FETCHER: self.fetcher.late_s(), BEAT: beat_s, WATCH: watch_s}
        return PipelineHealth(
            context.name,
            state=self.state,
            loops_alive=self._supervisor.alive(),
            fetch_failures=context.failures.in_a_row.get("fetcher", 0),
            renewal_failures=context.failures.in_a_row.get("heartbeater", 0),
            last_error=context.failures.last_error,
            abandoned=len(context.calls.abandoned()),
            parked=context.counters.parked,
            unreadable=context.counters.unreadable,
            never_begun=context.counters.never_begun,
            late_s=late_s,
        )

    def _last_wait_s(self) -> float:
        settings = self.context.settings
        return (settings.cancel_grace + 2 * settings.database_timeout).total_seconds()
