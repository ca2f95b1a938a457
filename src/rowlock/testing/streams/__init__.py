"""Tools for testing flows: the host's and our own.

`run_flow` works off what was added, `recorded` is what came of it, `reference` what must have:
the same handlers over the recorded steps in one loop. `FlowScenario` compares the two in a
simulation.
"""

from __future__ import annotations

from rowlock.testing.streams.records import FlowRecord, FlowResult
from rowlock.testing.streams.running import recorded, reference, run_flow
from rowlock.testing.streams.scenario import FlowScenario

__all__ = ["FlowRecord", "FlowResult", "FlowScenario", "recorded", "reference", "run_flow"]
