"""Guards of what it costs to be watched, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

EVENTS = "events.py"
HEARD = "tests/ground/test_events.py"
STATISTICS = "pipelines/statistics.py"
COUNTED = "tests/pipelines/test_statistics.py"
OTEL = "telemetry/otel.py"
EXPORTED = "tests/telemetry/test_otel.py"
TRACING = "telemetry/tracing.py"
TRACED = "tests/telemetry/test_tracing.py"
CHEAP = f"{TRACED}::test_what_no_sampler_wants_costs_little"
FATE = f"{TRACED}::test_what_an_attempt_calls_shares_its_fate"
NAMED = f"{HEARD}::test_only_the_kinds_that_were_named_are_heard"
ENDED_ALONE = f"{COUNTED}::test_each_subscription_to_values_ends_alone"
ENDED_MEANWHILE = f"{COUNTED}::test_one_subscription_begins_while_another_thread_ends_its_own"
BUILT = "tests/pipelines/test_emitted.py::test_what_nobody_wants_is_not_built"

SPANS_BUGS = (
    Bug(
        "a subscription is looked for while others end",
        EVENTS,
        "subscribe",
        "_subscriptions.pop(token, None)",
        "number = list(_subscriptions).index(token)\n"
        "        _subscriptions.pop(list(_subscriptions)[number], None)",
        (f"{HEARD}::test_one_ends_while_another_thread_ends_its_own",),
    ),
    Bug(
        "a class of events passes for a listener",
        EVENTS,
        "subscribe",
        " or _is_kind(listener) or ",
        " or ",
        (f"{HEARD}::test_what_cannot_listen_is_refused",),
    ),
    Bug(
        "events are told to a function that is never awaited",
        EVENTS,
        "subscribe",
        " or iscoroutinefunction(listener):",
        ":",
        (f"{HEARD}::test_what_cannot_listen_is_refused",),
    ),
    Bug(
        "a listener hears every kind of event",
        EVENTS,
        "_listeners_of",
        "if issubclass(kind, kinds)",
        "if True",
        (NAMED,),
    ),
    Bug(
        "a listener misses the subclasses of a kind",
        EVENTS,
        "_listeners_of",
        "issubclass(kind, kinds)",
        "kind in kinds or Event in kinds",
        (NAMED,),
    ),
    Bug(
        "who listens is not looked up again",
        EVENTS,
        "_forget_kinds",
        "_listeners_by_kind = {}",
        "_listeners_by_kind = _listeners_by_kind",
        (NAMED,),
    ),
    Bug(
        "a listener may name what is no kind of event",
        EVENTS,
        "subscribe",
        "not all(map(_is_kind, kinds))",
        "False",
        (f"{HEARD}::test_what_is_no_kind_is_refused",),
    ),
    Bug(
        "a start is built for nobody",
        "pipelines/processing/worker.py",
        "Worker._record_start",
        "events.has_listeners(events.ItemStarted)",
        "events.has_listeners()",
        (BUILT,),
    ),
    Bug(
        "an outcome is built for nobody",
        "pipelines/settling/recorder.py",
        "Recorder.written",
        "if events.has_listeners(events.ItemApplied):",
        "if events.has_listeners():",
        (BUILT,),
    ),
    Bug(
        "a write is built for nobody",
        "pipelines/settling/writer.py",
        "Writer._record_write",
        "events.has_listeners(events.OutcomesWritten)",
        "events.has_listeners()",
        (BUILT,),
    ),
    Bug(
        "a fetch is built for nobody",
        "pipelines/fetching/fetcher.py",
        "Fetcher._record_fetch",
        "events.has_listeners(events.FetchEnded)",
        "events.has_listeners()",
        (BUILT,),
    ),
    Bug(
        "who hears values fails what is counted",
        STATISTICS,
        "_tell",
        "except BaseException:",
        "except ZeroDivisionError:",
        (f"{COUNTED}::test_each_value_is_told_to_whoever_wants_it",),
    ),
    Bug(
        "values are recorded after the end",
        STATISTICS,
        "subscribe_to_values",
        "_value_subscriptions.pop(token, None)",
        "pass",
        (
            f"{COUNTED}::test_each_value_is_told_to_whoever_wants_it",
            f"{EXPORTED}::test_an_end_ends_the_recording",
        ),
    ),
    Bug(
        "whoever ends one recording ends another one of its function",
        STATISTICS,
        "subscribe_to_values",
        "token = object()",
        "token = listener",
        (ENDED_ALONE,),
    ),
    Bug(
        "a recording that another thread ends stays",
        STATISTICS,
        "subscribe_to_values",
        "_value_subscriptions[token] = listener",
        "known = {**_value_subscriptions, token: listener}\n    _value_subscriptions.update(known)",
        (ENDED_MEANWHILE,),
    ),
    Bug(
        "values are told to a function that is never awaited",
        STATISTICS,
        "subscribe_to_values",
        " or iscoroutinefunction(listener):",
        ":",
        (f"{COUNTED}::test_what_cannot_hear_values_is_refused",),
    ),
    Bug(
        "the clock is read for each value that is left out",
        OTEL,
        "Thinning.passes",
        "self._skipped += 1",
        "self._skipped += bool(monotonic() + 1)",
        (f"{EXPORTED}::test_the_clock_is_read_for_what_may_pass",),
    ),
    Bug(
        "a span that nobody wants has the key of its row",
        TRACING,
        "Tracing.begin_attempt",
        "if span.is_recording():",
        "if True:",
        (CHEAP,),
    ),
    Bug(
        "attempts that nobody wants are looked for",
        TRACING,
        "Tracing._wrote",
        "event.lock_tokens if self._attempts else ()",
        "event.lock_tokens",
        (CHEAP,),
    ),
    Bug(
        "spans hear the events of each row",
        TRACING,
        "Tracing.__init__",
        "self._hear, events.FetchEnded, events.OutcomesWritten",
        "self._hear",
        (CHEAP,),
    ),
    Bug(
        "an attempt that is not sampled is not the parent of what it calls",
        TRACING,
        "SurroundingSpan.__enter__",
        "otel_context.attach(set_span_in_context(span))",
        "otel_context.attach(set_span_in_context(span)) if span.is_recording() else None",
        (FATE,),
    ),
    Bug(
        "a sampler is not told which pipeline it is",
        TRACING,
        "_attempt",
        '**_attributes("process", pipeline),',
        "",
        (FATE,),
    ),
)
