"""In which order workers are asked.

`PriorityLoadBalancer` asks in the same order each time, so that load concentrates and workers that
are not needed fall idle and can end themselves. The others spread it. All are pure: they look at
what is known and ask nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Protocol

from rowlock.dispatch.engine import WorkerView


class Balancer(Protocol):
    """Says in which order workers are asked."""

    def order(self, workers: Mapping[str, WorkerView]) -> Sequence[str]:
        """Return ids of workers, the first to be asked first; those left out are not asked."""
        ...


class PriorityLoadBalancer:
    """By id, always: the first fill up first."""

    def order(self, workers: Mapping[str, WorkerView]) -> Sequence[str]:
        """Return the ids in their order."""
        return sorted(workers)


class RoundRobin:
    """Each time another one first."""

    def __init__(self) -> None:
        self._offers = count()

    def order(self, workers: Mapping[str, WorkerView]) -> Sequence[str]:
        """Return the ids in their order, begun one further each time."""
        ids = sorted(workers)
        first = next(self._offers) % len(ids) if ids else 0
        return ids[first:] + ids[:first]


class LeastBusy:
    """Who has the least in hand first, by id among equals."""

    def order(self, workers: Mapping[str, WorkerView]) -> Sequence[str]:
        """Return the ids by what is known to run there."""
        return sorted(workers, key=lambda worker: (workers[worker].active, worker))
