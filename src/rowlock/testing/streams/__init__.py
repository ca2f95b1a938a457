"""Tools for testing flows: the host's and our own.

`run_flow` works off what was added, `recorded` is what came of it, `reference` what must have:
the same handlers over the recorded steps in one loop. `StreamContract` has the tests that every
flow should pass, `crash_flow_everywhere` kills a replica at each statement, and `FlowScenario`
compares the two in a simulation.
"""

from __future__ import annotations

from rowlock.testing.streams.contract import StreamContract
from rowlock.testing.streams.crashes import crash_flow_everywhere
from rowlock.testing.streams.records import FlowRecord, FlowResult
from rowlock.testing.streams.running import recorded, reference, run_flow
from rowlock.testing.streams.scenario import FlowScenario

__all__ = [
    "FlowRecord",
    "FlowResult",
    "FlowScenario",
    "StreamContract",
    "crash_flow_everywhere",
    "recorded",
    "reference",
    "run_flow",
]
