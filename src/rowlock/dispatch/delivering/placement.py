"""Finds a worker: asks one after the other, as the balancer orders them.

A refusal goes on to the next; a worker that is gone is left out for a while; anything else is not
ours to judge, but for what would end the event loop or pass for a cancellation of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rowlock.clock import monotonic
from rowlock.containment import as_host_code
from rowlock.dispatch.balancers import Balancer
from rowlock.dispatch.counters import DispatchCounters
from rowlock.dispatch.delivering.capacity import Capacity
from rowlock.dispatch.engine import Engine, Events, WorkerView
from rowlock.dispatch.task import Task
from rowlock.errors import NoWorkersAvailable, WorkerBusy, WorkerGone
from rowlock.logs import get_logger

logger = get_logger(__name__)

EVICTED_S = 30.0
"""How long a worker that was gone is not asked, in seconds."""


class Placement:
    """Places tasks with the workers of one engine.

    Attributes:
        capacity: what is known of workers that have fallen idle.
    """

    def __init__(
        self, engine: Engine, balancer: Balancer, counters: DispatchCounters | None = None
    ) -> None:
        self._engine = engine
        self._balancer = balancer
        self._counters = counters or DispatchCounters()
        self._evicted: dict[str, float] = {}
        self.capacity = Capacity()

    def workers(self) -> Mapping[str, WorkerView]:
        """Return who may be asked now."""
        now = monotonic()
        self._evicted = {worker: until for worker, until in self._evicted.items() if until > now}
        return {
            worker: view
            for worker, view in self._engine.workers().items()
            if worker not in self._evicted
        }

    async def place(self, task: Task[Any]) -> tuple[str, Events]:
        """Return who accepted `task`, and the events of it.

        Raises:
            NoWorkersAvailable: nobody did.
            HostCodeError: the engine raised what would end the event loop, or let a cancellation
                escape.
        """
        asked, freed_before, counters = 0, self.capacity.freed_ever, self._counters
        for worker in self._balancer.order(self.workers()):
            asked += 1
            try:
                events = await as_host_code(partial(self._engine.offer, worker, task))
            except WorkerBusy:
                counters.offers_refused += 1
            except WorkerGone as gone:
                counters.offers_gone += 1
                self._evict(worker, gone)
            else:
                counters.offers_accepted += 1
                self.capacity.occupied(task.id)
                return worker, events
        self.capacity.refused(task.id, since=freed_before)
        raise NoWorkersAvailable(asked=asked)

    def _evict(self, worker: str, gone: WorkerGone) -> None:
        self._evicted[worker] = monotonic() + EVICTED_S
        logger.warning(
            "A worker is gone and is not asked for a while",
            extra={"worker": worker, "why": gone.why},
        )
