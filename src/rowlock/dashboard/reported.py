"""Numbers of replicas' reports as texts. A report was written by another process, maybe of another
version, so nothing in it is taken for granted. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rowlock.dashboard.rendering import NOTHING
from rowlock.insight.counting.status import Status


def queues_of(status: Status) -> dict[str, str]:
    """Return for each pipeline how many rows wait for a worker, and how many may: of all replicas
    that live.
    """
    live = status.replicas.live
    return {
        one.pipeline: queue_text(
            replica.pipelines[one.pipeline] for replica in live if one.pipeline in replica.pipelines
        )
        for one in status.pipelines
    }


def queue_text(reports: Iterable[object]) -> str:
    """Return the queues of some reports of pipelines, taken together."""
    told = [one for one in reports if isinstance(one, Mapping)]
    queued, capacity = (_sum(told, name) for name in ("queued", "capacity"))
    return NOTHING if queued is None else f"{queued:,}/{'?' if capacity is None else capacity}"


def _sum(reports: Iterable[Mapping[str, Any]], name: str) -> int | None:
    numbers = [one[name] for one in reports if isinstance(one.get(name), int)]
    return sum(numbers) if numbers else None
