"""Guards of metrics, probes and log fields, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

PROMETHEUS = "tests/telemetry/test_prometheus.py"
HEALTH = "tests/telemetry/test_health.py"
LOGS = "tests/telemetry/test_logs.py"

TELEMETRY_BUGS = (
    Bug(
        "each pipeline has series of its own",
        "telemetry/metrics.py",
        "_snapshots",
        "[:PIPELINES_MAX]",
        "",
        (f"{PROMETHEUS}::test_pipelines_beyond_the_limit_share_a_name",),
    ),
    Bug(
        "a bucket counts its own values alone",
        "telemetry/prometheus.py",
        "_cumulative",
        "accumulate(buckets.counts)",
        "buckets.counts",
        (f"{PROMETHEUS}::test_buckets_are_cumulative",),
    ),
    Bug(
        "an error is a label",
        "telemetry/metrics.py",
        "_late",
        "{(loop,): late_s for",
        "{(f'{loop} {now.health.last_error}',): late_s for",
        (f"{PROMETHEUS}::test_labels_are_of_closed_sets",),
    ),
    Bug(
        "a collector is registered in multi-process mode",
        "telemetry/prometheus.py",
        "register",
        "any(name in os.environ for name in MULTIPROCESS)",
        "False",
        (f"{PROMETHEUS}::test_a_registration_that_cannot_work_is_refused",),
    ),
    Bug(
        "pipelines of one name are shown twice",
        "telemetry/metrics.py",
        "_read",
        "_merged(metric, values[key], value) if key in values else value",
        "value",
        (f"{PROMETHEUS}::test_values_of_one_name_are_summed",),
    ),
    Bug(
        "an outage ends liveness",
        "telemetry/health.py",
        "why_not_live",
        "for text in _late(health, longer_than_s=DEAD_AFTER_S)",
        "for text in _unready(health)",
        (f"{HEALTH}::test_an_outage_restarts_nothing",),
    ),
    Bug(
        "a loop that stands still is ready",
        "telemetry/health.py",
        "_unready",
        "yield from _late(health, longer_than_s=LATE_S_MAX)",
        "pass",
        (f"{HEALTH}::test_each_loop_that_stands_still_is_named",),
    ),
    Bug(
        "a probe tells the error",
        "telemetry/health.py",
        "_unready",
        "fetches in a row failed",
        "fetches in a row failed: {health.last_error}",
        (f"{HEALTH}::test_an_outage_restarts_nothing",),
    ),
    Bug(
        "a mounted probe is not found",
        "telemetry/health.py",
        "_answer",
        '.removeprefix(scope.get("root_path", "").rstrip("/"))',
        "",
        (f"{HEALTH}::test_a_replica_is_ready_while_it_works",),
    ),
    Bug(
        "a field that is set is replaced",
        "telemetry/logs.py",
        "AttemptFields.filter",
        "if not hasattr(record, name):",
        "if True:",
        (f"{LOGS}::test_fields_that_are_set_stay",),
    ),
    Bug(
        "kinds of lines are remembered for ever",
        "telemetry/logs.py",
        "RepeatLimit.filter",
        "len(self._kinds) > KINDS_MAX",
        "False",
        (f"{LOGS}::test_kinds_are_bounded",),
    ),
    Bug(
        "what was held back is told to all handlers",
        "telemetry/logs.py",
        "_told",
        "copy.copy(record)",
        "record",
        (f"{LOGS}::test_a_line_that_repeats_is_held_back",),
    ),
    Bug(
        "a manager is read once more beside its observer",
        "telemetry/metrics.py",
        "MetricSources.of",
        "tuple(dict.fromkeys([*observed, *managers]))",
        "(*observed, *managers)",
        (f"{PROMETHEUS}::test_an_observer_shows_its_managers_and_what_it_alone_knows",),
    ),
    Bug(
        "each value is recorded",
        "telemetry/otel.py",
        "Thinning.passes",
        "self._skipped < self._stride",
        "False",
        ("tests/telemetry/test_otel.py::test_distributions_are_thinned_evenly",),
    ),
    Bug(
        "values are recorded until there are enough",
        "telemetry/otel.py",
        "Thinning.passes",
        "max(1, -(-self._seen // RECORDS_PER_S_MAX))",
        "1",
        ("tests/telemetry/test_otel.py::test_distributions_are_thinned_evenly",),
    ),
    Bug(
        "each pipeline has distributions of its own",
        "telemetry/otel.py",
        "Recording._attributes_of",
        "if len(self._attributes) >= PIPELINES_MAX:",
        "if False:",
        ("tests/telemetry/test_otel.py::test_pipelines_beyond_the_limit_share_a_name",),
    ),
)
