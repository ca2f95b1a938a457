"""Guards of what is seen of a pipeline from outside, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

DURATIONS = "tests/pipelines/test_durations.py"
LATE = "tests/pipelines/test_late_loops.py"
HAND = "tests/pipelines/test_items_in_hand.py"
OBSERVERS = "tests/pipelines/test_hint_observers.py"
FETCHER = "pipelines/fetching/fetcher.py"
WORKER = "pipelines/processing/worker.py"

SEEN_BUGS = (
    Bug(
        "a value on a bound is counted above it",
        "pipelines/statistics.py",
        "Histogram.add",
        "bisect_left(self.bounds, value)",
        "sum(bound <= value for bound in self.bounds)",
        (
            f"{DURATIONS}::test_a_quantile_is_within_its_bucket",
            f"{DURATIONS}::test_each_value_is_counted_in_its_bucket",
        ),
    ),
    Bug(
        "the time in the queue counts as work",
        WORKER,
        "Worker._work",
        "item.ended_at - item.begun_at",
        "item.ended_at - item.queued_at",
        (f"{DURATIONS}::test_each_stage_of_a_row_is_measured",),
    ),
    Bug(
        "a wait is measured by the monotonic clock alone",
        WORKER,
        "Worker._record_start",
        "now + context.database_ahead_s - item.place",
        "now - item.place",
        (f"{DURATIONS}::test_a_start_says_how_long_the_row_was_due",),
    ),
    Bug(
        "the margin is read when leases were renewed",
        "pipelines/renewing/heartbeater.py",
        "Heartbeater.beat_once",
        "max(0.0, ends_at - began_at)",
        "max(0.0, min(item.trusted_until for item in due) - began_at)",
        (f"{DURATIONS}::test_a_renewal_says_how_near_the_end_it_was",),
    ),
    Bug(
        "a fetcher that waits for room is late",
        FETCHER,
        "Fetcher.run",
        "math.inf if seconds is None else monotonic() + seconds",
        "monotonic() + (seconds or 0)",
        (f"{LATE}::test_loops_that_rest_are_on_time",),
    ),
    Bug(
        "a hint that is not heard makes nothing late",
        FETCHER,
        "Fetcher.hint",
        "self._due_by = min(self._due_by, monotonic())",
        "pass",
        (f"{LATE}::test_a_fetcher_that_does_not_hear_a_hint_is_late",),
    ),
    Bug(
        "a statement that is under way makes a fetcher late",
        FETCHER,
        "Fetcher.run",
        "monotonic() + TRANSACTIONS_PER_FETCH_MAX * limit_s",
        "monotonic()",
        (f"{LATE}::test_an_outage_makes_no_loop_late",),
    ),
    Bug(
        "an idle heartbeater is late",
        "pipelines/renewing/heartbeater.py",
        "Heartbeater.beat",
        "self._beats_by = math.inf",
        "pass",
        (f"{LATE}::test_loops_that_rest_are_on_time",),
    ),
    Bug(
        "what is given back keeps its lease",
        "pipelines/run.py",
        "PipelineRun.return_queued",
        "self.heartbeater.untrack(item)",
        "pass",
        (f"{HAND}::test_what_is_queued_is_given_back",),
    ),
    Bug(
        "what is given back stays in the queue",
        "pipelines/run.py",
        "PipelineRun.return_queued",
        "self.context.queue.discard(items)",
        "pass",
        (f"{HAND}::test_what_is_queued_is_given_back",),
    ),
    Bug(
        "a hint that observers hear has reached somebody",
        "hints/hinter.py",
        "PipelineHinter.hint_fetch",
        "if not (wakes or relays or",
        "if not (wakes or told or",
        (f"{OBSERVERS}::test_an_observer_is_no_pipeline",),
    ),
)
