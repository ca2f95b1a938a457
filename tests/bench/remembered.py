"""What a history costs a drain, and what spans cost it that no sampler wants: each beside the same
drain without.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from drain import drain_once
from host import Job
from measure import Figures, Place, Scale, beside
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from rowlock import events
from rowlock.insight import Observer, insight_tables
from rowlock.telemetry.tracing import Tracing

Drain: TypeAlias = Callable[[], Awaitable[Figures]]
TABLES = insight_tables(Job.metadata, replicas=False, controls=False, history=True)


async def with_history(place: Place, scale: Scale, *, workers: int) -> Figures:
    """Return how fast a backlog is worked off while each outcome has an entry."""
    observed = partial(Observer, tables=TABLES)
    with_it = partial(drain_once, place, rows=scale.rows, workers=workers, watch=observed)
    return await _ratio(place, scale, with_it, workers=workers)


async def with_listener(place: Place, scale: Scale, *, workers: int) -> Figures:
    """Return the same while somebody hears each event and does nothing."""

    async def with_it() -> Figures:
        unsubscribe = events.subscribe(lambda event: None)
        try:
            return await drain_once(place, rows=scale.rows, workers=workers)
        finally:
            unsubscribe()

    return await _ratio(place, scale, with_it, workers=workers)


async def with_spans(place: Place, scale: Scale, *, workers: int) -> Figures:
    """Return the same while each attempt has a span that no sampler wants."""

    async def with_it() -> Figures:
        provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
        tracing = Tracing(tracer_provider=provider)
        try:
            surround = [tracing.surround]
            return await drain_once(place, rows=scale.rows, workers=workers, surround=surround)
        finally:
            tracing.close()

    return await _ratio(place, scale, with_it, workers=workers)


async def _ratio(place: Place, scale: Scale, with_it: Drain, *, workers: int) -> Figures:
    without = partial(drain_once, place, rows=scale.rows, workers=workers)
    plain, figures = await beside(without, with_it, limit_first=scale.limit_first)
    return {
        "rows/s": figures["rows/s"],
        "without rows/s": plain["rows/s"],
        "with / without": figures["rows/s"] / plain["rows/s"],
        "client \N{MICRO SIGN}s/row": figures["client \N{MICRO SIGN}s/row"],
        "without client \N{MICRO SIGN}s/row": plain["client \N{MICRO SIGN}s/row"],
    }
