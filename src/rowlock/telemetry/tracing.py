"""Spans of fetches, attempts and writes, for OpenTelemetry.

The one idea: one request may be many attempts, and one claim many requests, so spans are joined by
links and not by parents. A fetch links the spans that have hinted; an attempt its fetch, and the
span that has written its row; a write the attempts whose outcomes it has committed.

No secret leaks: a span names the type of an error and never its text, which has values of rows. Not
here: sampling and exporting, which are the host's.

Source: OpenTelemetry, "Semantic conventions for messaging spans".
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Token
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from rowlock import Outcome, PipelineHinter, PipelineItem, events, pipeline_hinter
from rowlock.clock import utc_now
from rowlock.insight.recorder import TRACE_IDS
from rowlock.insight.shown import shown
from rowlock.telemetry.trace_column import TraceColumn, read_traceparent

HINTS_MAX: Final = 8
SETTLED_MAX: Final = 64  # most attempts that a write links
MODELS_MAX: Final = 1_000
FETCHES_MAX: Final = 16  # remembered fetches of a pipeline, for the attempts of their rows
ATTEMPTS_MAX: Final = 20_000  # remembered attempts, for the write of their outcomes
KEY_CHARS_MAX: Final = 255  # longest key of a row in a span, in characters
KINDS_MAX: Final = 1_000
"""Most kinds of attempts, by pipeline and number, whose attributes are kept."""
_ROOT: Final = Context()
_NANOSECONDS: Final = 1_000_000_000


class _Fetch(NamedTuple):
    claimed_at_s: float
    context: SpanContext


class Tracing:
    """Makes spans of what the pipelines of a process do, from now on.

        tracing = Tracing()
        manager = PipelineManager(sessions, pipelines, surround=[tracing.surround])

    Put it in front of `surround_logs`, so that log lines have the trace. A span of which no sampler
    wants to know costs some microseconds.

    Args:
        tracer_provider: the host's; by default the one that is set for the process.
        hinter: whose hints are linked; by default that of the process.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        hinter: PipelineHinter = pipeline_hinter,
    ) -> None:
        self._tracer: Tracer = get_tracer("rowlock", tracer_provider=tracer_provider)
        self._hints: dict[str, deque[SpanContext]] = {}
        self._fetches: dict[str, deque[_Fetch]] = {}
        self._attempts: OrderedDict[object, SpanContext] = OrderedDict()
        self._hinter = hinter
        hinter.attach_observer(self._hinted)
        self._unsubscribe: Callable[[], None] = events.subscribe(
            self._hear, events.FetchEnded, events.OutcomesWritten
        )

    def __repr__(self) -> str:
        return f"<Tracing {len(self._attempts)} attempts>"

    def close(self) -> None:
        """Make no more spans of fetches and writes, and listen to no hints."""
        self._unsubscribe()
        self._hinter.detach_observer(self._hinted)

    def surround(self, item: PipelineItem[Any]) -> SurroundingSpan:
        """Return the span of an attempt, for the `surround` of a manager."""
        return SurroundingSpan(self, item)

    def begin_attempt(self, item: PipelineItem[Any]) -> Span:
        """Return a new span for an attempt; it is not made the current one."""
        # A span that no sampler wants is paid for with each row: what only a recorded one needs is
        # behind the question, and what many share is built once.
        name, attributes = _attempt(item.lock_owner, item.attempt, item.prev_lock_expired)
        span = self._tracer.start_span(
            name, _ROOT, SpanKind.CONSUMER, attributes, self._links_of(item)
        )
        if span.is_recording():
            span.set_attribute("messaging.message.id", shown(item.id, KEY_CHARS_MAX))
            context = span.get_span_context()
            if context.trace_flags.sampled:
                TRACE_IDS.remember(item.lock_token, format(context.trace_id, "032x"))
                self._attempts[item.lock_token] = context
                if len(self._attempts) > ATTEMPTS_MAX:
                    self._attempts.popitem(last=False)
        return span

    def _links_of(self, item: PipelineItem[Any]) -> Sequence[Link]:
        fetches, writer = self._fetches.get(item.lock_owner), _writer_of(item)
        if fetches is None and writer is None:
            return ()
        found = [one.context for one in fetches or () if one.claimed_at_s == item.claimed_at]
        return [Link(one) for one in (*found, *(() if writer is None else (writer,)))]

    def _hinted(self, model: str) -> None:
        context = get_current_span().get_span_context()
        if not (context.is_valid and context.trace_flags.sampled):
            return
        hints = self._hints.get(model)
        if hints is None:
            if len(self._hints) >= MODELS_MAX:
                return
            hints = self._hints[model] = deque(maxlen=HINTS_MAX)
        hints.append(context)

    def _hear(self, event: events.Event) -> None:
        if isinstance(event, events.FetchEnded):
            self._fetched(event)
        elif isinstance(event, events.OutcomesWritten) and event.count:
            self._wrote(event)

    def _fetched(self, event: events.FetchEnded) -> None:
        # Whatever a fetch has found, it was the one for which they hinted.
        hints = self._hints.pop(event.model, ())
        if not event.count:
            return
        context = self._span_of("fetch", "receive", event, links=hints)
        if context is not None and event.claimed_at_s is not None:
            fetches = self._fetches.setdefault(event.pipeline, deque(maxlen=FETCHES_MAX))
            fetches.append(_Fetch(event.claimed_at_s, context))

    def _wrote(self, event: events.OutcomesWritten) -> None:
        tokens = event.lock_tokens if self._attempts else ()
        known = [self._attempts.pop(token, None) for token in tokens]
        settled = [context for context in known if context is not None][:SETTLED_MAX]
        self._span_of("write", "settle", event, links=settled)

    def _span_of(
        self,
        name: str,
        operation: str,
        event: events.FetchEnded | events.OutcomesWritten,
        *,
        links: Iterable[SpanContext],
    ) -> SpanContext | None:
        """Make a span that ends now; return its context if it is sampled."""
        ended_ns = int(utc_now().timestamp() * _NANOSECONDS)
        span = self._tracer.start_span(
            f"{name} {event.pipeline}",
            context=_ROOT,
            kind=SpanKind.CLIENT,
            attributes={
                **_attributes(operation, event.pipeline),
                "messaging.batch.message_count": event.count,
            },
            links=[Link(one) for one in links],
            start_time=ended_ns - int(event.seconds * _NANOSECONDS),
        )
        span.end(ended_ns)
        context = span.get_span_context()
        return context if context.trace_flags.sampled else None


class SurroundingSpan:
    __slots__ = ("_item", "_span", "_token", "_tracing")

    def __init__(self, tracing: Tracing, item: PipelineItem[Any]) -> None:
        self._tracing, self._item = tracing, item
        self._span: Span
        self._token: Token[Context]

    def __enter__(self) -> Span:
        span = self._span = self._tracing.begin_attempt(self._item)
        # One that is not recorded, too: it keeps what is called in it from being traced alone.
        self._token = otel_context.attach(set_span_in_context(span))
        return span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        otel_context.detach(self._token)
        span = self._span
        # An outcome that is raised is no error.
        if kind is not None and not isinstance(error, Outcome) and span.is_recording():
            span.set_attribute("error.type", kind.__qualname__)
            span.set_status(Status(StatusCode.ERROR))
        span.end()


def _attributes(operation: str, pipeline: str) -> dict[str, str]:
    return {
        "messaging.system": "rowlock",
        "messaging.operation.type": operation,
        "messaging.destination.name": pipeline,
    }


@lru_cache(KINDS_MAX)
def _attempt(
    pipeline: str, attempt: int, is_recovered: bool
) -> tuple[str, Mapping[str, AttributeValue]]:
    """Return the name and the attributes of an attempt's span: read-only, since they are shared."""
    attributes: dict[str, AttributeValue] = {
        **_attributes("process", pipeline),
        "rowlock.attempt": attempt,
        "rowlock.recovered": is_recovered,
    }
    return f"process {pipeline}", MappingProxyType(attributes)


def _writer_of(item: PipelineItem[Any]) -> SpanContext | None:
    leased = item.leased
    if leased is None or not issubclass(leased.model, TraceColumn):
        return None
    found = read_traceparent(item.value_as_read(leased, leased.column("traceparent")))
    if found is None:
        return None
    trace_id, span_id, flags = found
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
