"""Tools for testing a host's flows.

`run_flow` works off what was added, `recorded` is what came of it, `reference` what must have:
the same handlers over the recorded steps in one loop. `StreamContract` has the tests that every
flow should pass, and `crash_flow_everywhere` kills a replica at each statement.
"""

from __future__ import annotations

from rowlock.testing.streams.contract import StreamContract
from rowlock.testing.streams.crashes import crash_flow_everywhere
from rowlock.testing.streams.recorded import FlowRecord, FlowResult
from rowlock.testing.streams.running import recorded, reference, run_flow

__all__ = [
    "FlowRecord",
    "FlowResult",
    "StreamContract",
    "crash_flow_everywhere",
    "recorded",
    "reference",
    "run_flow",
]
