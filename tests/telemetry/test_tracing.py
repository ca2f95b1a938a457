"""Spans: what was fetched, worked on and written, joined by links; nothing of a row's values."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    StaticSampler,
)
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import (
    Apply,
    LockColumns,
    Outcome,
    Pipeline,
    PipelineHinter,
    PipelineItem,
    PipelineManager,
    Retry,
    events,
    pipeline_hinter,
)
from rowlock.insight import Observer
from rowlock.telemetry.logs import attempt_fields, surround_logs
from rowlock.telemetry.trace_column import TraceColumn, current_traceparent, read_traceparent
from rowlock.telemetry.tracing import HINTS_MAX, SETTLED_MAX, Tracing
from rowlock.testing import TemporaryDatabase

from ..host import HeardEvents, heard_events
from ..insight.test_history import TABLES, history_of, make_tables

pytestmark = pytest.mark.either_database

SECRET = "do-not-tell"


class Base(DeclarativeBase):
    """A host's mapped classes."""


class Order(LockColumns, TraceColumn, Base):
    """A row that carries the span that has written it."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="new")


class OrderPipeline(Pipeline[Order]):
    model = Order
    answer: Any = Apply({"status": "done"})

    def ready(self) -> Any:
        return Order.status == "new"

    async def process(self, item: PipelineItem[Order]) -> Outcome:
        self.fields = attempt_fields()
        answer = self.answer() if callable(self.answer) else self.answer
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]


class Traced:
    """A host that traces, and the spans of it."""

    def __init__(self, sampler: Any = ALWAYS_ON) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(tracer_provider=self.provider)
        self.tracer = self.provider.get_tracer("host")

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def manager(self, database: TemporaryDatabase, pipeline: Pipeline[Any]) -> PipelineManager:
        surround = [self.tracing.surround, surround_logs]
        return PipelineManager(database.session_factory, [pipeline], surround=surround)


@pytest.fixture
def traced() -> Iterator[Traced]:
    host = Traced()
    yield host
    host.tracing.close()


async def add_order(database: TemporaryDatabase, host: Traced, **values: Any) -> Any:
    """Write an order in a request, which hints; return the span of the request."""
    await database.create_tables(Base.metadata)
    with host.tracer.start_as_current_span("request") as span:
        async with database.session_factory.begin() as session:
            session.add(Order(**values))
        pipeline_hinter.hint_fetch(Order)
    return span.get_span_context()


def links_of(span: ReadableSpan) -> set[tuple[int, int]]:
    return {(link.context.trace_id, link.context.span_id) for link in span.links}


def named(context: Any) -> tuple[int, int]:
    return context.trace_id, context.span_id


async def applied(heard: HeardEvents, count: int = 1) -> None:
    await heard.wait_for(events.ItemApplied, count=count)


async def test_a_request_is_followed_to_its_write(
    database: TemporaryDatabase, traced: Traced
) -> None:
    """Nobody could say which request an attempt is about, or which attempts a write has settled;
    in another replica neither.
    """
    await database.create_tables(Base.metadata)
    await make_tables(database)
    pipeline = OrderPipeline(fetch_delays=(60,))
    with heard_events() as heard:
        manager = traced.manager(database, pipeline)
        async with Observer(manager, tables=TABLES), manager:
            await heard.wait_for(events.FetchEnded)
            request = await add_order(database, traced, id=7)
            await applied(heard)
    [fetch] = traced.spans("fetch OrderPipeline")
    [process] = traced.spans("process OrderPipeline")
    [write] = traced.spans("write OrderPipeline")
    assert (fetch.kind, process.kind, write.kind) == (
        SpanKind.CLIENT,
        SpanKind.CONSUMER,
        SpanKind.CLIENT,
    )
    assert {fetch.parent, process.parent, write.parent} == {None}
    assert links_of(fetch) == {named(request)}
    assert links_of(process) == {named(fetch.context), named(request)}
    assert links_of(write) == {named(process.context)}
    assert dict(process.attributes or {}) == {
        "messaging.system": "rowlock",
        "messaging.operation.type": "process",
        "messaging.destination.name": "OrderPipeline",
        "messaging.message.id": "7",
        "rowlock.attempt": 1,
        "rowlock.recovered": False,
    }
    assert (fetch.attributes or {})["messaging.batch.message_count"] == 1
    assert (fetch.start_time or 0) <= (fetch.end_time or 0)
    assert process.context is not None
    trace_id = format(process.context.trace_id, "032x")
    assert pipeline.fields["rowlock_trace_id"] == trace_id
    assert [entry.trace_id for entry in await history_of(database)] == [trace_id]
    assert trace.get_current_span().get_span_context().is_valid is False


async def test_a_span_names_an_error_and_no_value(
    database: TemporaryDatabase, traced: Traced
) -> None:
    """Whoever sees spans would see values of rows; or a failure would look like a success."""
    await add_order(database, traced, id=1)
    pipeline = OrderPipeline()
    pipeline.answer = ValueError(SECRET)
    with heard_events() as heard:
        async with traced.manager(database, pipeline):
            await applied(heard)
    [process] = traced.spans("process OrderPipeline")
    assert (process.attributes or {})["error.type"] == "ValueError"
    assert process.status.status_code is StatusCode.ERROR
    assert SECRET not in process.to_json()


async def test_an_outcome_that_is_raised_is_no_error(
    sqlite_database: TemporaryDatabase, traced: Traced
) -> None:
    """An alert would call somebody for what was planned."""
    await add_order(sqlite_database, traced, id=1)
    pipeline = OrderPipeline()
    pipeline.answer = Retry(error="later", after=60)
    with heard_events() as heard:
        async with traced.manager(sqlite_database, pipeline):
            await applied(heard)
    [process] = traced.spans("process OrderPipeline")
    assert process.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("decision", [Decision.DROP, Decision.RECORD_ONLY])
async def test_what_no_sampler_wants_is_not_remembered(
    database: TemporaryDatabase, decision: Decision
) -> None:
    """A host that traces one request in a thousand would pay for all of them."""
    host = Traced(StaticSampler(decision))
    try:
        await add_order(database, host, id=1)
        pipeline = OrderPipeline()
        remembered: list[str] = []

        def answer() -> Apply:
            remembered.append(repr(host.tracing))
            return Apply({"status": "done"})

        pipeline.answer = answer
        with heard_events() as heard:
            async with host.manager(database, pipeline):
                await applied(heard)
        assert host.exporter.get_finished_spans() == ()
        assert remembered == ["<Tracing 0 attempts>"]
        # What the host calls in the attempt belongs to it, and is not sampled either.
        assert pipeline.fields["rowlock_trace_id"] is not None
    finally:
        host.tracing.close()


class Roots(Sampler):
    """Wants no attempt, fetch or write, and each other span whose parent is wanted or none."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._others = ParentBased(ALWAYS_ON)

    def should_sample(  # type: ignore[override]
        self, parent_context: Any, trace_id: int, name: str, *rest: Any, **more: Any
    ) -> SamplingResult:
        if not name.endswith("OrderPipeline"):
            return self._others.should_sample(parent_context, trace_id, name, *rest, **more)
        self.asked.append((name.split(maxsplit=1)[0], dict(rest[1])))
        return SamplingResult(Decision.DROP)

    def get_description(self) -> str:
        return "Roots"


async def test_what_an_attempt_calls_shares_its_fate(database: TemporaryDatabase) -> None:
    """Of an attempt that is not sampled the host's own calls would be traced, each as a trace of
    its own; and a sampler could not tell one attempt from another.
    """
    sampler = Roots()
    host = Traced(sampler)
    try:
        await add_order(database, host, id=1)
        pipeline = OrderPipeline()

        def answer() -> Apply:
            with host.tracer.start_as_current_span("call"):
                return Apply({"status": "done"})

        pipeline.answer = answer
        with heard_events() as heard:
            async with host.manager(database, pipeline):
                await applied(heard)
        assert [span.name for span in host.exporter.get_finished_spans()] == ["request"]
        assert {name for name, _ in sampler.asked} == {"fetch", "process", "write"}
        asked = dict(sampler.asked)
        operations = {name: one["messaging.operation.type"] for name, one in asked.items()}
        assert operations == {"fetch": "receive", "process": "process", "write": "settle"}
        assert asked["process"]["messaging.destination.name"] == "OrderPipeline"
        assert asked["process"]["rowlock.attempt"] == 1
        assert asked["process"]["rowlock.recovered"] is False
    finally:
        host.tracing.close()


def test_what_no_sampler_wants_costs_little(caplog: pytest.LogCaptureFixture) -> None:
    """A host that traces one request in a thousand would slow down all of them."""

    class Key:
        def __str__(self) -> str:
            raise AssertionError

    host = Traced(ALWAYS_OFF)
    try:
        item: Any = SimpleNamespace(
            lock_owner="P",
            lock_token=object(),
            id=Key(),
            attempt=1,
            prev_lock_expired=False,
            claimed_at=0.0,
            leased=None,
        )
        with host.tracing.surround(item):
            pass
        assert not events.has_listeners(events.ItemStarted)
        assert not events.has_listeners(events.ItemApplied)
        # What has no hash would raise if it were looked for.
        events.emit(events.OutcomesWritten("P", 1, 0.1, ([],)))
        assert not caplog.records
    finally:
        host.tracing.close()


async def test_hostile_traceparents_are_no_links(
    database: TemporaryDatabase, traced: Traced
) -> None:
    """What somebody has written into a row would break the attempt."""
    zeros = f"00-{'0' * 32}-{'0' * 16}-01"
    # The SDK of these tests leaves such a link out by itself; others need not.
    assert read_traceparent(zeros) is None
    for number, text in enumerate(("", "x" * 55, zeros), start=1):
        await add_order(database, traced, id=number, traceparent=text)
    with heard_events() as heard:
        async with traced.manager(database, OrderPipeline()):
            await applied(heard, 3)
    [fetch] = traced.spans("fetch OrderPipeline")
    spans = traced.spans("process OrderPipeline")
    assert len(spans) == 3
    assert {link for span in spans for link in links_of(span)} == {named(fetch.context)}


async def test_the_column_is_written_with_the_row(
    database: TemporaryDatabase, traced: Traced
) -> None:
    """A row would name the span of somebody else, or of nobody."""
    request = await add_order(database, traced, id=1)
    async with database.session_factory.begin() as session:
        session.add(Order(id=2))
    async with database.session_factory() as session:
        found = (await session.scalars(select(Order.traceparent).order_by(Order.id))).all()
    assert (read_traceparent(found[0]) or ())[:2] == named(request)
    assert found[1] is None
    assert current_traceparent() is None


def test_links_are_bounded(traced: Traced) -> None:
    """A thousand requests that hint would be a thousand links, of one span."""
    hinter = PipelineHinter()
    tracing = Tracing(tracer_provider=traced.provider, hinter=hinter)
    traced.tracing.close()
    try:
        contexts = []
        for _ in range(HINTS_MAX + 3):
            with traced.tracer.start_as_current_span("request") as span:
                contexts.append(span.get_span_context())
                hinter.hint_fetch("stream:orders")
        ended = events.FetchEnded("P", 1, 1, hinted=True, seconds=0.1, database_time=None)
        events.emit(events.FetchEnded("P", 0, 1, hinted=False, seconds=0.1, database_time=None))
        for model in ("stream:orders", "stream:orders"):
            events.emit(_of_model(ended, model))
        first, second = traced.spans("fetch P")
        assert links_of(first) == {named(context) for context in contexts[-HINTS_MAX:]}
        assert links_of(second) == set()
        tokens = tuple(object() for _ in range(SETTLED_MAX + 5))
        for token in tokens:
            item: Any = SimpleNamespace(
                lock_owner="P",
                lock_token=token,
                id=1,
                attempt=1,
                prev_lock_expired=False,
                claimed_at=0.0,
                leased=None,
            )
            with tracing.surround(item):
                pass
        events.emit(events.OutcomesWritten("P", len(tokens), 0.1, tokens))
        [write] = traced.spans("write P")
        assert len(links_of(write)) == SETTLED_MAX
        assert repr(tracing) == "<Tracing 0 attempts>"
    finally:
        tracing.close()


def _of_model(event: events.FetchEnded, model: str) -> events.FetchEnded:
    return events.FetchEnded(
        event.pipeline,
        event.count,
        event.asked,
        hinted=event.hinted,
        seconds=event.seconds,
        database_time=event.database_time,
        model=model,
    )
