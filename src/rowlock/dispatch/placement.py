"""Finds a worker for a row; where there is none, brings the row forward when there is room, and
asks for more workers; and logs how rows find workers.

Workers are asked one after the other, as the balancer orders them. A refusal goes on to the next; a
worker that is gone is left out for a while; any other error is the engine's, but for what would end
the event loop or pass for a cancellation of ours.

`Capacity` makes waiting rows due before their interval is over: as many as there is room for,
those that were submitted first before the others. Room is remembered until a worker accepts: a row
that was refused a moment before a worker fell idle is not written as waiting yet, and is found at
the next look; until a row that was brought forward was offered here, no second row takes its place.

`Provisioner` asks after an overflow only, once for each key and within bounds. A machine takes
minutes to come, and the host's call may return when it was asked for: so what was asked for counts
as if it were there, until the engine shows a worker that was not there before.

An overflow is expected, and a line of INFO. One of a row that has waited for half of its time is a
WARNING: it comes before rows fail with ``capacity:``. That a thousand rows that wait are no flood
of lines is seen to by ``logs.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import database_now
from rowlock.clock import monotonic
from rowlock.dispatch.columns import CAPACITY, PENDING
from rowlock.dispatch.engine import Balancer, Engine, Events, Task, WorkerView
from rowlock.dispatch.settings import PROVISIONS_MAX
from rowlock.errors import NoWorkersAvailable, WorkerBusy, WorkerGone
from rowlock.logs import get_logger
from rowlock.spi import LeasedTable, is_free
from rowlock.tasks import as_host_code

logger = get_logger(__name__)


class DispatchLog:
    def __init__(self, name: str, *, deadline: timedelta) -> None:
        self._name = name
        self._deadline = deadline

    def offering(self, rows: int, *, workers: int) -> None:
        extra = {"pipeline": self._name, "rows": rows, "workers": workers}
        logger.info("%(pipeline)s: rows offered: %(rows)d, workers: %(workers)d", extra)

    def overflowed(
        self, row_id: object, refused: NoWorkersAvailable, *, waited: timedelta, rest: timedelta
    ) -> None:
        left, rest_s = max(self._deadline - waited, timedelta(0)), rest.total_seconds()
        log = logger.warning if left <= self._deadline / 2 else logger.info
        log(
            "%(pipeline)s: %(error)s for row %(row_id)s; it is offered again in %(rest_s).0f s"
            " or when there is room, and fails in %(left_s).0f s",
            {
                "pipeline": self._name,
                "row_id": row_id,
                "asked": refused.asked,
                "rest_s": rest_s,
                "error": refused.message,
                "left_s": left.total_seconds(),
            },
        )

    def expired(self, row_id: object) -> None:
        extra = {"pipeline": self._name, "row_id": row_id}
        logger.warning("%(pipeline)s: row %(row_id)s fails: no worker has done it in time", extra)


@dataclass(slots=True)
class DispatchCounters:
    """Totals since the pipeline was built, also in a process that only submits."""

    submissions_admitted: int = 0  # that made a row, whether the caller committed it or not
    submissions_attached: int = 0  # that were given the active row of their key
    submissions_rejected: int = 0
    submissions_draining: int = 0
    offers_accepted: int = 0
    offers_refused: int = 0
    offers_gone: int = 0


ROOM_MAX = 64
"""Most places that one look gives: no more rows are brought forward than one fetch leases, the
others at the next fetches. So many places are remembered, or one for each worker if there are
more of these.
"""
KEPT_S = 5.0
"""How long a place is kept for a row that was brought forward, in seconds: another replica may
have claimed it.
"""


class Capacity:
    """How many waiting rows may be brought forward, as far as this replica knows."""

    def __init__(self) -> None:
        self._places = 0
        self._freed = 0
        self._workers: frozenset[str] = frozenset()
        self._kept_until: dict[Any, float] = {}

    @property
    def freed_ever(self) -> int:
        """How many attempts have ended here."""
        return self._freed

    def look(self, workers: Iterable[str]) -> int:
        """Return how many places are not kept for a row, at most `ROOM_MAX`."""
        here = frozenset(workers)
        new = len(here - self._workers)
        self._workers = here
        self._add(new)
        now = monotonic()
        self._kept_until = {key: until for key, until in self._kept_until.items() if until > now}
        return min(ROOM_MAX, max(0, self._places - len(self._kept_until)))

    def freed(self) -> None:
        self._freed += 1
        self._add(1)

    def keep_for(self, keys: Iterable[Any]) -> None:
        """Keep a place for each row that was brought forward, until it was offered here."""
        self._kept_until |= dict.fromkeys(keys, monotonic() + KEPT_S)

    def occupied(self, key: Any) -> None:
        # One place for each acceptance, whether it was kept or not: counted at both, the worker
        # beside it would stay idle.
        self._kept_until.pop(key, None)
        self._places = max(0, self._places - 1)

    def refused(self, key: Any, *, since: int) -> None:
        """Note that no worker accepted: room is what was freed since `freed_ever` was `since`."""
        self._kept_until.pop(key, None)
        self._places = min(self._places, self._freed - since)

    def _add(self, places: int) -> None:
        self._places = min(max(ROOM_MAX, len(self._workers)), self._places + places)


async def bring_forward(
    connection: AsyncConnection, leased: LeasedTable, *, count: int
) -> frozenset[Any]:
    """Make up to `count` rows due that rest after an overflow, and return their keys."""
    model: Any = leased.model
    rests = select(leased.key).where(
        model.status == PENDING,
        model.due_at > database_now(),
        model.last_error.startswith(f"{CAPACITY}:"),
        model.parked_at.is_(None),
        is_free(leased),
    )
    # Rows that another transaction has locked are left to it.
    first = (
        rests.order_by(model.submitted_at, leased.key)
        .limit(count)
        .with_for_update(skip_locked=True)
    )
    moved = (
        update(leased.table)
        .where(leased.key.in_(first))
        .values({leased.column("due_at"): database_now()})
    )
    return frozenset((await connection.scalars(moved.returning(leased.key))).all())


EVICTED_S = 30.0
"""How long a worker that was gone is not asked, in seconds."""


class Placement:
    def __init__(
        self, engine: Engine, balancer: Balancer, counters: DispatchCounters | None = None
    ) -> None:
        self._engine = engine
        self._balancer = balancer
        self._counters = counters or DispatchCounters()
        self._evicted: dict[str, float] = {}
        self.capacity = Capacity()

    def workers(self) -> Mapping[str, WorkerView]:
        now = monotonic()
        self._evicted = {worker: until for worker, until in self._evicted.items() if until > now}
        return {
            worker: view
            for worker, view in self._engine.workers().items()
            if worker not in self._evicted
        }

    async def place(self, task: Task[Any]) -> tuple[str, Events]:
        asked, freed_before, counters = 0, self.capacity.freed_ever, self._counters
        for worker in self._balancer.order(self.workers()):
            asked += 1
            try:
                events = await as_host_code(partial(self._engine.offer, worker, task))
            except WorkerBusy:
                counters.offers_refused += 1
            except WorkerGone as gone:
                counters.offers_gone += 1
                self._evicted[worker] = monotonic() + EVICTED_S
                extra = {"worker": worker, "why": gone.why}
                logger.warning("A worker is gone and is not asked for a while", extra)
            else:
                counters.offers_accepted += 1
                self.capacity.occupied(task.id)
                return worker, events
        self.capacity.refused(task.id, since=freed_before)
        raise NoWorkersAvailable(asked=asked)


PROVISION_S_MAX = 300.0
"""Longest time for one call, in seconds."""
COMES_S_MAX = 300.0
"""How long a worker that was asked for is expected, in seconds; then it is asked for again."""
SEEN_MAX = 100_000
"""Most workers that are remembered, whether they are still there or not."""

Provision: TypeAlias = Callable[[str], Awaitable[None]]
"""The host's: starts one more worker, for the work of a `dedup_key`. Whether one comes, and
when, the engine will show.
"""


class Provisioner:
    """Calls the host's function, unless `fleet_cap` workers are there or expected; 0 is no cap."""

    def __init__(self, provision: Provision, *, engine: Engine, fleet_cap: int = 0) -> None:
        self._provision = provision
        self._engine = engine
        self._fleet_cap = fleet_cap
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        self._expected: dict[str, float] = {}
        self._seen: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._in_flight)

    def ask(self, key: str) -> bool:
        """Ask for a worker for `key`, in the background; return whether that was done."""
        # Not while one that was asked for `key` is still to come, which is when the engine shows
        # one more, or for `COMES_S_MAX`.
        here = self._engine.workers()
        arrived = [worker for worker in here if worker not in self._seen]
        # The oldest requests are taken for answered, whichever workers came.
        now = monotonic()
        left = [(key, until) for key, until in self._expected.items() if until > now]
        self._expected = dict(left[len(arrived) :])
        # One that was out of sight for a moment, and is back, is not the one that was asked for.
        self._seen.update(dict.fromkeys(arrived))
        for oldest in list(self._seen)[: max(0, len(self._seen) - SEEN_MAX)]:
            del self._seen[oldest]
        is_full = len(self._in_flight) >= PROVISIONS_MAX
        at_cap = 0 < self._fleet_cap <= len(here) + len(self._expected)
        if key in self._in_flight or key in self._expected or is_full or at_cap:
            return False
        self._expected[key] = now + PROVISION_S_MAX + COMES_S_MAX
        task = asyncio.create_task(self._call(key), name="rowlock: provision a worker")
        self._in_flight[key] = task
        task.add_done_callback(lambda _: self._in_flight.pop(key, None))
        return True

    async def _call(self, key: str) -> None:
        try:
            async with asyncio.timeout(PROVISION_S_MAX):
                await as_host_code(partial(self._provision, key))
        except Exception:
            self._expected.pop(key, None)
            logger.exception("A worker could not be provisioned")
        else:
            if key in self._expected:
                self._expected[key] = monotonic() + COMES_S_MAX

    async def stop(self, grace: timedelta) -> None:
        in_flight = dict(self._in_flight)
        for task in in_flight.values():
            task.cancel()
        if in_flight:
            await asyncio.wait(in_flight.values(), timeout=grace.total_seconds())
        for key, task in in_flight.items():
            if not task.done():
                text = "provision ignored its cancellation and was left behind with key %(key)s"
                logger.error(text, {"key": key})
