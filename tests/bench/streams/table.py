"""The measures of streams."""

from __future__ import annotations

from measure import POSTGRESQL, Measure
from streams.appends import append
from streams.drains import (
    drain_keys,
    drain_modes,
    drain_shards,
    drain_steps,
    drain_tables,
    drain_versions,
    state_updates,
)
from streams.exchanges import exchange
from streams.extremes import large, many_shards, one_transaction, skewed
from streams.moves import handover, recovery
from streams.waits import high_water, idle, latency, latency_elsewhere

STREAMS = (
    Measure("streams-drain", "events in steps of 5,000 to 1 rows", drain_steps),
    Measure("streams-tables", "rows of a host's table, beside a log", drain_tables, rounds_max=3),
    Measure("streams-keys", "random keys, in steps of 1,000 rows", drain_keys, rounds_max=3),
    Measure("streams-states", "a million updates of states", state_updates, rounds_max=1),
    Measure("streams-shards", "steps of 5,000 rows, by shards", drain_shards, rounds_max=3),
    Measure("streams-modes", "steps of 1,000 rows, by checkpoints", drain_modes, rounds_max=3),
    Measure("streams-versions", "the same, while a snapshot is kept", drain_versions, rounds_max=3),
    Measure("streams-append", "events added to a log, by transaction", append),
    Measure("streams-latency", "an event's COMMIT to its step's", latency),
    Measure(
        "streams-latency-elsewhere", "the same in another process", latency_elsewhere, (POSTGRESQL,)
    ),
    Measure("streams-exchange", "events of two stages, beside one", exchange, rounds_max=3),
    Measure("streams-idle", "a flow with nothing to do", idle, rounds_max=1),
    Measure("streams-high-water", "a look for the high-water mark", high_water, rounds_max=3),
    Measure("streams-handover", "shards that move", handover, rounds_max=3),
    Measure(
        "streams-recovery", "shards of a killed process", recovery, (POSTGRESQL,), rounds_max=3
    ),
    Measure("streams-skew", "a million keys of which one has most events", skewed, rounds_max=3),
    Measure(
        "streams-million", "a million events in one transaction", one_transaction, rounds_max=1
    ),
    Measure("streams-large", "long keys, and large states", large, rounds_max=3),
    Measure("streams-crowd", "1,024 shards in one replica", many_shards, rounds_max=1),
)
