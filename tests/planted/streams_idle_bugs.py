"""Guards of what an idle flow asks of its database, and of what it must not miss meanwhile."""

from __future__ import annotations

from bug import Bug

QUIET = "tests/streams/cutting/test_quiet.py"
IDLE = "tests/streams/idle/test_idle.py"

IDLE_BUGS = (
    Bug(
        "an idle flow looks at its sources with each poll",
        "streams/cutting/cutter.py",
        "Cutter.cut",
        "self._quiet.holds(facts, moment, timers, now=monotonic())",
        "False",
        (f"{IDLE}::test_looks_of_sources",),
    ),
    Bug(
        "a replica looks at the flow anew for each step that it cuts",
        "streams/shards/rounds.py",
        "FlowRounds._hint_others",
        ", but=self._wake",
        "",
        (f"{IDLE}::test_a_busy_replica_goes_by_what_it_knows",),
    ),
    Bug(
        "a replica that has its share claims on",
        "streams/shards/pipeline.py",
        "ShardFetcher.fetch_once",
        "if pipeline.has_its_share:",
        "if False:",
        (f"{IDLE}::test_statements",),
    ),
    Bug(
        "a replica with leases writes its row as often as one without",
        "streams/shards/pipeline.py",
        "FlowPipeline.look_around",
        "CALM_EVERY if self.has_its_share else 1",
        "1",
        (f"{IDLE}::test_statements",),
    ),
    Bug(
        "a new replica is seen by the seldom look alone",
        "streams/shards/replicas.py",
        "Replicas.saw",
        "self.on_change()",
        "pass",
        (f"{IDLE}::test_a_new_replica_is_seen_by_polling",),
    ),
    Bug(
        "a look holds though a transaction is open",
        "streams/cutting/quiet.py",
        "Quiet.begins",
        "all(one.mark >= one.newest for one in seen)",
        "True",
        (f"{QUIET}::test_an_open_transaction",),
    ),
    Bug(
        "a look holds for ever",
        "streams/cutting/quiet.py",
        "Quiet.holds",
        "now < self._ends_at",
        "True",
        (f"{QUIET}::test_what_ends_it[long ago]",),
    ),
    Bug(
        "a look holds though a timer is due",
        "streams/cutting/quiet.py",
        "Quiet.holds",
        "all(moment.clock < at for at in due)",
        "True",
        (f"{QUIET}::test_what_ends_it[timer]",),
    ),
    Bug(
        "a hint is no reason to look",
        "streams/cutting/quiet.py",
        "Quiet.ends",
        "self._seen = None",
        "pass",
        (f"{QUIET}::test_a_hint_ends_it",),
    ),
)
