"""What a history costs a drain, and what spans cost it that no sampler wants: each beside the same
drain without.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import TypeAlias

from drain import drain_once
from host import Job
from measure import Figures, Place, Scale, beside
from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, set_span_in_context

from rowlock import events
from rowlock.insight import Observer, insight_tables
from rowlock.telemetry.tracing import Tracing

Drain: TypeAlias = Callable[[], Awaitable[Figures]]
CLIENT = "client \N{MICRO SIGN}s/row"
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
        tracing = Tracing(tracer_provider=_unwanted())
        try:
            surround = [tracing.surround]
            return await drain_once(place, rows=scale.rows, workers=workers, surround=surround)
        finally:
            tracing.close()

    return await _ratio(place, scale, with_it, workers=workers)


async def with_nothing_around(place: Place, scale: Scale, *, workers: int) -> Figures:
    """Return the same while each attempt is surrounded by what does nothing."""

    async def with_it() -> Figures:
        surround = [lambda item: nullcontext()]
        return await drain_once(place, rows=scale.rows, workers=workers, surround=surround)

    return await _ratio(place, scale, with_it, workers=workers)


async def with_the_sdk_alone(place: Place, scale: Scale, *, workers: int) -> Figures:
    """Return the same while each attempt makes the calls of OpenTelemetry that a span needs, and
    nothing else: what is left of the cost of spans if all else were free.
    """
    tracer, root = _unwanted().get_tracer("bench"), Context()

    class Around:
        __slots__ = ("_token",)

        def __init__(self, item: object) -> None:
            pass

        def __enter__(self) -> None:
            span = tracer.start_span("process", root, SpanKind.CONSUMER)
            self._token = otel_context.attach(set_span_in_context(span))

        def __exit__(self, *error: object) -> None:
            otel_context.detach(self._token)

    async def with_it() -> Figures:
        return await drain_once(place, rows=scale.rows, workers=workers, surround=[Around])

    return await _ratio(place, scale, with_it, workers=workers)


def _unwanted() -> TracerProvider:
    return TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)


async def _ratio(place: Place, scale: Scale, with_it: Drain, *, workers: int) -> Figures:
    without = partial(drain_once, place, rows=scale.rows, workers=workers)
    plain, figures = await beside(without, with_it, limit_first=scale.limit_first)
    return {
        "rows/s": figures["rows/s"],
        "without rows/s": plain["rows/s"],
        "with / without": figures["rows/s"] / plain["rows/s"],
        CLIENT: figures[CLIENT],
        f"without {CLIENT}": plain[CLIENT],
        # Does not move with what else the machine does, as rows a second do.
        "without / with client cpu": plain[CLIENT] / figures[CLIENT],
    }
