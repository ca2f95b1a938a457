"""What the replicas say of themselves that is to be mended: late loops, a blocked event loop, a
clock that is wrong. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rowlock.insight.checking.finding import Finding, Level
from rowlock.insight.counting.replicas import LiveReplicas, ReplicaState
from rowlock.insight.shown import duration, shown

LATE_S_MIN: Final = 5.0
"""A loop that is later than this is told, in seconds."""
LAG_S_MIN: Final = 0.5
"""An event loop that stands still for longer is told, in seconds."""
SKEW_S_MIN: Final = 2.0
"""A clock that differs by more from the database's is told, in seconds."""
LOOPS_MAX: Final = 100
"""Most late loops of a replica that are told."""


def replica_findings(replicas: LiveReplicas) -> Iterable[Finding]:
    """Return what the replicas that live say."""
    for replica in replicas.live:
        yield from _of_replica(replica)


def _of_replica(replica: ReplicaState) -> Iterable[Finding]:
    name = shown(replica.name, 60)
    for pipeline, loop, late_s in _late_loops(replica):
        what = f"the {shown(loop, 60)} of {name} is {duration(late_s)} late"
        remedy = "look for host code that blocks the event loop, and for a pool that is too small"
        yield Finding(shown(pipeline, 60), Level.WARN, what, remedy)
    lag_s = _number(replica.report.get("lag_s"))
    if lag_s > LAG_S_MIN:
        what = f"the event loop stands still for {lag_s:.1f} s"
        remedy = "run what blocks it in a thread: a plain def process"
        yield Finding(name, Level.WARN, what, remedy)
    skew_s = _number(replica.report.get("skew_s"))
    if abs(skew_s) > SKEW_S_MIN:
        which = "ahead of" if skew_s > 0 else "behind"
        what = f"the clock is {duration(abs(skew_s))} {which} the database's"
        remedy = "no lease goes by it, but times in logs do: synchronise it"
        yield Finding(name, Level.WARN, what, remedy)
    yield from _of_history(name, dict(_mapping(replica.report.get("history"))))


def _of_history(name: str, told: dict[str, Any]) -> Iterable[Finding]:
    waiting, dropped = int(_number(told.get("waiting"))), int(_number(told.get("dropped")))
    if told.get("failing"):
        what = f"the history cannot be written: {waiting:,} entries wait, {dropped:,} are lost"
        remedy = "its log says why; no row is harmed, and timelines show the gap"
        yield Finding(name, Level.WARN, what, remedy)
    elif dropped:
        what = f"{dropped:,} entries of the history were lost since it started"
        yield Finding(name, Level.WARN, what, "its log says why; timelines show the gap")


def _late_loops(replica: ReplicaState) -> list[tuple[str, str, float]]:
    late = [
        (pipeline, str(loop), _number(late_s))
        for pipeline, report in replica.pipelines.items()
        for loop, late_s in _mapping(report.get("late_s") if isinstance(report, dict) else None)
    ]
    return [one for one in late if one[2] > LATE_S_MIN][:LOOPS_MAX]


def _mapping(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
