"""The table of measures: by name, in the order in which they are run."""

from __future__ import annotations

from functools import partial

from bare_loop import bare_loop
from bloat import bloat
from claims import idle_rows, in_flight, settled
from crowds import hints, pipelines
from crowds import in_flight as crowd_in_flight
from dashboard_loads import dashboard_loads
from dashboard_pages import dashboard_pages
from dispatching import admission, flood
from drain import drain
from explained import explained
from far_away import far_away
from formulas import throughput, wait
from gated import gated
from graphs.table import GRAPHS
from heartbeats import heartbeats
from many import many_pipelines
from measure import POSTGRESQL, SQLITE, Measure
from memory import memory
from observed import PIPELINES, observed, observer, otel, scrape
from old_snapshot import old_snapshot
from peer_drains import chancy, huey, pgqueuer, procrastinate
from pickup import pickup
from pickup_elsewhere import pickup_elsewhere
from quiet import asleep, idle
from remembered import (
    with_history,
    with_listener,
    with_nothing_around,
    with_spans,
    with_the_sdk_alone,
)
from replicas import replicas
from streams.table import STREAMS
from viewed import viewed

MEASURES = (
    Measure("drain-100", "drain, 100 workers", partial(drain, workers=100)),
    Measure(
        "bare-loop",
        "drain, 100 workers, beside a bare loop through SQLAlchemy",
        bare_loop,
        (POSTGRESQL,),
    ),
    Measure("drain-10", "drain, defaults (10 workers)", partial(drain, workers=10)),
    Measure(
        "drain-scheduled",
        "drain, 100 workers, with a schedule",
        partial(drain, workers=100, scheduled=True),
    ),
    Measure(
        "drain-history", "drain, 100 workers, with a history", partial(with_history, workers=100)
    ),
    Measure(
        "drain-heard",
        "drain, 100 workers, with a listener that does nothing",
        partial(with_listener, workers=100),
    ),
    Measure(
        "drain-traced",
        "drain, 100 workers, with spans that no sampler wants",
        partial(with_spans, workers=100),
    ),
    Measure(
        "drain-surrounded",
        "drain, 100 workers, each attempt within what does nothing",
        partial(with_nothing_around, workers=100),
    ),
    Measure(
        "drain-sdk",
        "drain, 100 workers, with the calls of OpenTelemetry alone that a span needs",
        partial(with_the_sdk_alone, workers=100),
    ),
    Measure("pickup", "pickup, idle", partial(pickup, backlog=0)),
    Measure("pickup-backlog", "pickup, backlog of 10,000", partial(pickup, backlog=10_000)),
    Measure(
        "pickup-elsewhere",
        "pickup in another process",
        partial(pickup_elsewhere, backlog=0),
        (POSTGRESQL,),
    ),
    Measure(
        "pickup-elsewhere-backlog",
        "pickup in another process, backlog of 10,000",
        partial(pickup_elsewhere, backlog=10_000),
        (POSTGRESQL,),
    ),
    Measure("idle", "one pipeline at full backoff", idle, rounds_max=1),
    Measure("asleep", "500 items asleep", asleep, rounds_max=1),
    Measure("heartbeats", "10,000 items leased", heartbeats, rounds_max=1),
    Measure(
        "claim-settled",
        "claim beside settled rows",
        partial(settled, scheduled=False),
        rounds_max=3,
    ),
    Measure(
        "claim-idle", "claim beside idle rows", partial(idle_rows, scheduled=False), rounds_max=3
    ),
    Measure(
        "claim-in-flight",
        "claim beside leased rows",
        partial(in_flight, scheduled=False),
        rounds_max=3,
    ),
    Measure(
        "claim-settled-scheduled",
        "the same with a schedule",
        partial(settled, scheduled=True),
        rounds_max=3,
    ),
    Measure(
        "claim-idle-scheduled",
        "the same with a schedule",
        partial(idle_rows, scheduled=True),
        rounds_max=3,
    ),
    Measure(
        "claim-in-flight-scheduled",
        "the same with a schedule",
        partial(in_flight, scheduled=True),
        rounds_max=3,
    ),
    Measure(
        "claim-in-flight-hinted",
        "the same with a hint for every claim",
        partial(in_flight, scheduled=True, hinted=True),
        rounds_max=3,
    ),
    Measure("claim-gated", "claim with the gate of pauses, and paused", gated),
    Measure("explain-many", "explain and status beside 10^6 rows", explained, rounds_max=5),
    Measure("drain-observed", "drain, observed and scraped", partial(observed, watch=observer)),
    Measure("drain-otel", "drain, metrics by OpenTelemetry", partial(observed, watch=otel)),
    Measure("scrape", f"scrape of {PIPELINES} pipelines", scrape, (SQLITE,)),
    Measure("dashboard-pages", "pages of the dashboard", dashboard_pages, rounds_max=1),
    Measure("dashboard-loads", "pages over few rows and many", dashboard_loads, rounds_max=1),
    Measure("drain-viewed-1", "drain, 1 viewer of its pages", partial(viewed, viewers=1)),
    Measure("drain-viewed-20", "drain, 20 viewers of its pages", partial(viewed, viewers=20)),
    Measure("replicas", "two replicas, 100 workers each", replicas),
    Measure("memory", "memory", memory, rounds_max=1),
    Measure(
        "throughput-10",
        "workers / seconds, 10 workers",
        partial(throughput, workers=10),
        rounds_max=1,
    ),
    Measure(
        "throughput-100",
        "workers / seconds, 100 workers",
        partial(throughput, workers=100),
        rounds_max=1,
    ),
    Measure("wait", "rows before / throughput", wait, rounds_max=1),
    Measure("bloat", "the same rows 20 times", bloat, rounds_max=1),
    Measure(
        "old-snapshot",
        "drain, 100 workers, beside an old snapshot",
        partial(old_snapshot, workers=100),
        (POSTGRESQL,),
        rounds_max=3,
    ),
    Measure(
        "old-snapshot-10",
        "drain, defaults (10 workers), beside an old snapshot",
        partial(old_snapshot, workers=10),
        (POSTGRESQL,),
        rounds_max=3,
    ),
    Measure("crowd-in-flight", "10,000 items in flight", crowd_in_flight, rounds_max=1),
    Measure("crowd-pipelines", "100 pipelines in one process", pipelines, rounds_max=1),
    Measure(
        "many-pipelines",
        "200 pipelines of one model",
        partial(many_pipelines, models=1),
        rounds_max=1,
    ),
    Measure(
        "many-models",
        "200 pipelines of 200 models",
        partial(many_pipelines, models=200),
        rounds_max=1,
    ),
    Measure("crowd-hints", "a storm of hints", hints, rounds_max=1),
    *(
        Measure(
            f"latency-{ms}",
            f"drain, 500 workers, {ms} ms each round trip",
            partial(far_away, latency_ms=ms),
            (POSTGRESQL,),
            rounds_max=3,
        )
        for ms in (0, 1, 5, 25)
    ),
    Measure(
        "dispatch-flood", "10,000 submissions from 50 clients, ceiling 1,000", flood, rounds_max=1
    ),
    Measure(
        "dispatch-admission",
        "counting 1,000 active rows beside settled ones",
        admission,
        rounds_max=1,
    ),
    *GRAPHS,
    *STREAMS,
)
PEERS = (
    Measure(
        "pgqueuer",
        "drain, defaults of both",
        partial(pgqueuer, batch=10, workers=10),
        (POSTGRESQL,),
    ),
    Measure(
        "pgqueuer-best",
        "drain, batches of 500 and 100 workers",
        partial(pgqueuer, batch=500, workers=100),
        (POSTGRESQL,),
    ),
    Measure(
        "procrastinate",
        "drain, 100 workers, procrastinate with a concurrency of 100",
        partial(procrastinate, concurrency=100),
        (POSTGRESQL,),
    ),
    Measure(
        "chancy",
        "drain, 100 workers, chancy with a concurrency of 1,000",
        partial(chancy, concurrency=1_000),
        (POSTGRESQL,),
    ),
    Measure("huey", "drain, 100 workers, huey with fsync", partial(huey, fsync=True), (SQLITE,)),
    Measure(
        "huey-no-fsync",
        "drain, 100 workers, huey without fsync",
        partial(huey, fsync=False),
        (SQLITE,),
    ),
)
"""Only when asked for: each installs another library from the package index."""
