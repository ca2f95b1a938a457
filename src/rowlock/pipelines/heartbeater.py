"""Keeps the leases of all items of a pipeline, and of their related rows, alive, in bulk, and ends
the work of those that were lost.

Two loops, since one must not wait for the other. `beat` renews what is near its end, in a thread of
its own where there is one. `watch` never touches the database: on the host's loop it cancels work
the moment its holder's trust is over, before another holder can take the row, also while the
database is unreachable.

What both sides write is guarded by one lock: which items are tracked, and until when they are
trusted. All else that `beat` finds, it has done on the host's loop.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Generic

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import events
from rowlock.clock import ahead_of_monotonic, jittered, monotonic, sleep
from rowlock.database.faults import is_of_the_schema, is_transient
from rowlock.database.transaction import in_transaction
from rowlock.errors import PipelineError, describe
from rowlock.leases.acquire import LEASES_PER_STATEMENT_MAX, in_pieces
from rowlock.leases.item import PipelineItem
from rowlock.leases.related import renew_related
from rowlock.leases.release import release
from rowlock.leases.renew import renew, tokens_still_held
from rowlock.logs import get_logger
from rowlock.pipelines.attempt import Ended
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.heartbeat_thread import HeartbeatThread
from rowlock.rows.leased_table import ModelT
from rowlock.tasks import log_in_thread

logger = get_logger(__name__)

TRANSACTIONS_PER_RENEWAL_MAX = 2
"""Most transactions of one round for so many leases as go into one statement."""


class Heartbeater(Generic[ModelT]):
    """Tracks items from the moment they are claimed until their outcome is settled.

    Attributes:
        thread: where `beat` and what it calls run; None is here, on the host's loop and over its
            connections.
        before_renewal: called on the host's loop before each round of renewals; set by the run.
    """

    def __init__(self, context: PipelineContext[ModelT]) -> None:
        self.context = context
        self.thread: HeartbeatThread | None = None
        self.before_renewal: Callable[[], None] = lambda: None
        self._tracked: dict[Any, PipelineItem[ModelT]] = {}
        self._settings = context.settings
        self._lock = threading.Lock()
        self._rest: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._beats_by = self._watches_by = math.inf
        self._clocks_ahead = ahead_of_monotonic()
        self._has_given_up_leases = self._must_fall_back = self._is_check_on_its_way = False

    def __len__(self) -> int:
        return len(self._tracked)

    def track(self, items: Iterable[PipelineItem[ModelT]]) -> None:
        """Keep the leases of `items` alive from now on. Comes before they are queued, so that
        none is ever without.
        """
        with self._lock:
            self._tracked.update((item.lock_token, item) for item in items)
            resting, self._rest = self._rest, []
        for loop, something in resting:
            # One that has ended renews nothing more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(something.set)

    def untrack(self, items: Iterable[PipelineItem[ModelT]]) -> None:
        """Stop renewing the leases of `items`."""
        with self._lock:
            for item in items:
                self._tracked.pop(item.lock_token, None)

    def tracked(self) -> list[PipelineItem[ModelT]]:
        """Return the items whose leases are kept alive."""
        with self._lock:
            return list(self._tracked.values())

    def has_lost(self, item: PipelineItem[ModelT], now: float) -> bool:
        """Whether trust in the lease of `item` has ended; from then on it has ended for good."""
        if item.is_trusted(now):
            return False
        self._lose_all([item])
        return True

    async def run(self) -> None:
        """Renew, again and again, where leases are renewed."""
        if self.thread is not None:
            await self.thread.run(self.beat)
            self.thread = None  # it cannot be done there
        await self.beat()

    async def beat(self) -> None:
        """Renew, again and again, the leases that are near their end."""
        while self.thread is None or not self._must_fall_back:
            self._beats_by = math.inf
            await self._until_something_is_tracked()
            rest_s = jittered(self._settings.heartbeat_interval.total_seconds())
            self._beats_by = monotonic() + rest_s
            await sleep(rest_s)
            if not self._is_stalled():
                chunks = 1 + len(self) // LEASES_PER_STATEMENT_MAX
                round_max = TRANSACTIONS_PER_RENEWAL_MAX * chunks * self._settings.renew_timeout
                self._beats_by = monotonic() + round_max.total_seconds()
                await self.beat_once()

    def late_s(self) -> tuple[float, float]:
        """Return by how much `beat` and `watch` are behind their own plans, in seconds."""
        now = monotonic()
        return max(0.0, now - self._beats_by), max(0.0, now - self._watches_by)

    async def beat_once(self) -> int:
        """Renew what is near its end now, and return how many leases were renewed."""
        if self._tracked and not self._is_check_on_its_way:
            # One is enough while the host's loop stands still, and renewals do not wait for it.
            self._is_check_on_its_way = True
            self._on_host(self._check)
        began_at, clocks_ahead = monotonic(), ahead_of_monotonic()
        has_slept = self._has_slept(clocks_ahead)
        due = self.tracked() if has_slept else self.due_for_renewal()
        renewed, failures = 0, list[Exception]()
        # Read before they are renewed.
        ends_at = min((item.trusted_until for item in due), default=0.0)
        for chunk in in_pieces(due, LEASES_PER_STATEMENT_MAX):
            try:
                renewed += await self._renew(chunk, has_slept=has_slept)
            # Whatever went wrong, the next beat tries again while trust lasts.
            except Exception as error:  # noqa: BLE001
                failures.append(error)
        if due:
            event = events.LeasesRenewed(
                self.context.name,
                len(due),
                renewed,
                seconds=monotonic() - began_at,
                margin_s=max(0.0, ends_at - began_at),
            )
            self._on_host(partial(self._record_round, event, failures))
        if has_slept and not failures:
            self._clocks_ahead = clocks_ahead
        for failure in failures:
            # Its connections may be bound to a loop or a thread.
            if not (self.thread is None or is_transient(failure) or is_of_the_schema(failure)):
                self._must_fall_back = True
                text = (
                    "%(pipeline)s: leases cannot be renewed in a thread of their own here, and are"
                    " from now on renewed on the event loop; pass heartbeat_thread=False to the"
                    " manager"
                )
                extra = {"pipeline": self.context.name}
                self._on_host(partial(logger.warning, text, extra, exc_info=failure))
        return renewed

    async def renew_if_slept(self) -> None:
        """If the machine may have slept, renew all leases, or lose those that have ended, before
        anything is claimed: in the meantime trust, on the monotonic clock, stood still.

        Raises:
            PipelineError: the database did not answer, so what was lost is not known yet.
        """
        if not self._has_slept(ahead_of_monotonic()):
            return
        before = self._clocks_ahead
        await (self.beat_once() if self.thread is None else self.thread.run(self.beat_once))
        if self._clocks_ahead is before:
            raise PipelineError(
                "the machine slept, or its clock was set, and the leases could not be renewed since"
            )

    def _has_slept(self, clocks_ahead: Sequence[float]) -> bool:
        """Whether the clocks have parted by more than the margin since all leases were renewed."""
        margin_s = self._settings.lease_margin.total_seconds()
        return any(
            abs(now - before) > margin_s
            for before, now in zip(self._clocks_ahead, clocks_ahead, strict=False)
        )

    def _record_round(self, event: events.LeasesRenewed, failures: Sequence[Exception]) -> None:
        if not failures:
            self.context.failures.succeeded("heartbeater")
        self.context.histograms.lease_margin.add(event.margin_s)
        events.emit(event)
        for error in failures:
            text = describe(error)
            self.context.counters.renewals_failed += 1
            self.context.failures.failed("heartbeater", text)
            extra = {"pipeline": self.context.name}
            logger.warning("%(pipeline)s: a renewal failed", extra, exc_info=error)
            events.emit(events.RenewalFailed(self.context.name, text))

    def due_for_renewal(self) -> list[PipelineItem[ModelT]]:
        """Return the items of which less than `heartbeat_trigger` is left."""
        left = self._settings.heartbeat_trigger - self._settings.lease_margin
        trusted_until_max = monotonic() + left.total_seconds()
        return [item for item in self.tracked() if item.trusted_until <= trusted_until_max]

    async def watch(self) -> None:
        """End, again and again, the work of items whose trust is over."""
        while True:
            self._watches_by = math.inf
            await self._until_something_is_tracked()
            rest_s = self._until_next_end()
            self._watches_by = monotonic() + rest_s
            await sleep(rest_s)
            self.lose_expired()

    async def _until_something_is_tracked(self) -> None:
        """Rest without a timer while nothing is tracked: idle pipelines would keep a core busy."""
        something = asyncio.Event()
        with self._lock:
            if self._tracked:
                return
            self._rest.append((asyncio.get_running_loop(), something))
        await something.wait()

    def lose_expired(self) -> None:
        """End the work of items whose trust is over now."""
        now = monotonic()
        self._lose_all([item for item in self._tracked.values() if not item.is_trusted(now)])

    def _until_next_end(self) -> float:
        # Anything claimed or renewed during the rest is trusted for longer than one beat, so
        # looking once per beat misses none.
        beat_s = self._settings.heartbeat_interval.total_seconds()
        soonest = min((item.trusted_until for item in self._tracked.values()), default=float("inf"))
        return min(beat_s, max(0.0, soonest - monotonic()))

    async def _renew(self, items: Sequence[PipelineItem[ModelT]], *, has_slept: bool) -> int:
        sent_at = monotonic()

        async def work(
            session: AsyncSession, connection: AsyncConnection
        ) -> tuple[dict[Any, datetime], frozenset[Any]]:
            timeout = self._settings.lock_timeout
            confirmed = await renew(connection, self.context.leased, items, lock_timeout=timeout)
            holders = [item for item in items if item.held and item.lock_token in confirmed]
            return confirmed, await renew_related(connection, holders, lock_timeout=timeout)

        confirmed, lagging = await self._transact(work, purpose="renew leases")
        trusted_s = (self._settings.lock_timeout - self._settings.lease_margin).total_seconds()
        with self._lock:
            self.context.counters.renewals += len(confirmed)
            # An item that was lost or released meanwhile stays so.
            kept = [item for item in items if item.lock_token in self._tracked and not item.is_lost]
            missing = [item for item in kept if item.lock_token not in confirmed]
            for item in kept:
                # One of which a related row lags behind is tried again at the next beat, while the
                # trust lasts that it has.
                if item.lock_token in confirmed and item.lock_token not in lagging:
                    item.trusted_until = sent_at + trusted_s
                    item.lock_expires_at = confirmed[item.lock_token]
        if missing:
            await self._lose_unless_held(missing, releases=has_slept)
        return len(confirmed)

    async def _lose_unless_held(
        self, items: Sequence[PipelineItem[ModelT]], *, releases: bool
    ) -> None:
        async def work(
            session: AsyncSession, connection: AsyncConnection
        ) -> list[PipelineItem[ModelT]]:
            held = await tokens_still_held(connection, self.context.leased, items)
            # An outcome may have been committed meanwhile that is not noted yet: about such items
            # the guard has decided.
            lost = [item for item in items if item.lock_token not in held and not item.is_settling]
            # What ended in a sleep has a holder that lives: no death is counted.
            if lost and releases:
                await release(connection, self.context.leased, lost, waits=False)
            return lost

        purpose = "look which leases are still held"
        lost = await self._transact(work, purpose=purpose, writes=releases)
        self._on_host(partial(self._lose_all, lost))

    async def _transact(self, work: Any, *, purpose: str, writes: bool = True) -> Any:
        thread = self.thread
        return await in_transaction(
            self.context.session_factory if thread is None else thread.sessions,
            self.context.leased,
            work,
            purpose=purpose,
            timeout=self._settings.renew_timeout,
            writes=writes,
        )

    def _check(self) -> None:
        self._is_check_on_its_way = False
        self.before_renewal()

    def _on_host(self, act: Callable[[], None]) -> None:
        if self.thread is None:
            act()
        else:
            self.thread.monitor.do(act)

    def _is_stalled(self) -> bool:
        """Whether the host's loop has been stalled for `stall_limit`, and may never recover."""
        stalled_s = 0.0 if self.thread is None else self.thread.monitor.stalled_s
        is_stalled = stalled_s > self._settings.stall_limit.total_seconds()
        if is_stalled and not self._has_given_up_leases:
            text = (
                "%(pipeline)s: the event loop has been stalled for %(stalled_s).0f s, so its leases"
                " are no longer renewed"
            )
            extra = {"pipeline": self.context.name, "stalled_s": stalled_s, "leases": len(self)}
            log_in_thread(logger.error, text, extra)
        self._has_given_up_leases = is_stalled
        return is_stalled

    def _lose_all(self, items: Iterable[PipelineItem[ModelT]]) -> None:
        """End trust in `items` and their work, and then log it: logging runs the host's code."""
        with self._lock:
            lost = [item for item in items if self._tracked.pop(item.lock_token, None) is not None]
            for item in lost:
                item.lose()
        if not lost:
            return
        self.context.queue.discard(lost)
        for item in lost:
            attempt = self.context.running.get(item.lock_token)
            if attempt is not None:
                attempt.end(Ended.LEASE_LOST)
        # An outcome that is on its way tells how it ended: it may be committed, and not answered.
        told = [item for item in lost if not item.is_settling]
        self.context.counters.leases_lost += len(told)
        for item in told:
            text = "%(pipeline)s: the lease of row %(row_id)s was lost"
            logger.warning(text, self.context.of(item))
            self.context.emit_for(events.LeaseExpired, item)
