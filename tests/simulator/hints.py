"""Whether hints are followed: asked once all rows have settled, when every fetcher rests (B6).

The one idea: a fetcher that is hinted looks at once, so its count of fetches moves long before its
rest is over; scenarios of other work say what moves instead. A rest may end just then by itself, so
one look may miss it; there are many replicas, pipelines and runs.

Not here: hints that are lost, which cost a fetch delay at most (``liveness.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from .participants import SimulatedReplica
from .scenario import Scenario
from .trace import Trace

FOLLOWED_WITHIN_S: Final = 1.0
"""How soon a hint is followed, also by a fetcher that is at it. **Unit** virtual seconds."""
ROUND_TRIPS_MAX: Final = 40
"""How many statements may come before that, those of other writers among them, where each takes
a round trip.
"""


async def look_at_hints(
    scenario: Scenario,
    replicas: Sequence[SimulatedReplica],
    trace: Trace,
    *,
    round_trip_s: float = 0.0,
) -> None:
    """Hint each pipeline of `replicas`, and see whether it looks."""
    resting = {
        (replica.process, pipeline): scenario.looks(pipeline)
        for replica in replicas
        for pipeline in replica.pipelines
        if not pipeline.statistics().queued and not pipeline.health().fetch_failures
    }
    for process, pipeline in resting:
        process.call(partial(scenario.hint, pipeline))
    within_s = FOLLOWED_WITHIN_S + ROUND_TRIPS_MAX * round_trip_s
    await asyncio.sleep(within_s)
    for (process, pipeline), before in resting.items():
        # A fetcher that fails rests whoever hints it, or a busy service would hammer an ailing
        # database.
        looks = zip(before, scenario.looks(pipeline), strict=False)
        if any(old == new for old, new in looks) and not pipeline.health().fetch_failures:
            trace.wrong(
                f"B6: {pipeline.name} of {process.name} was hinted, and has not looked for"
                f" {within_s:g} s"
            )
