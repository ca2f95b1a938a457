"""What a replica says of itself: samples of its statistics, and the report that others read. Pure.

The report is JSON of at most `REPORT_BYTES_MAX`: of each pipeline the totals, the rates of the last
minute, two quantiles of the time of its attempts, what is in hand and what is late; and the items
that have been longest at work. What does not fit is left out and counted: items first, then totals,
then all but whether a pipeline runs, and pipelines last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rowlock.insight.counting.wings import graph_report
from rowlock.insight.shown import shown
from rowlock.pipelines.pipeline import Pipeline
from rowlock.pipelines.statistics import ItemView, PipelineHealth, PipelineStatistics

REPORT_BYTES_MAX: Final = 16_000
"""Longest report, in bytes of its JSON."""
ITEMS_MAX: Final = 100
"""Most items of a report."""
ROW_ID_CHARS_MAX: Final = 100
"""Longest key of a row in a report, in characters."""
ERROR_CHARS_MAX: Final = 200
"""Longest error of a report, in characters."""
RATE_S: Final = 60.0
"""Over how long rates and quantiles are taken, in seconds."""
TOKEN_CHARS: Final = 8
"""How many characters of a token a report has."""
RUNS: Final = "running"
"""The state of a pipeline that was started and not stopped."""
ENDLESS: Final = "endless"
"""Says of a pipeline that its attempts have no longest time: one that has run for long is none to
look at, so its items come behind those of the others.
"""
LEFT_OUT: Final = "pipelines_left_out"
"""In a report: how many pipelines it has no room for."""
STATE_ALONE: Final = frozenset({"state", "fetch_failures"})
"""What is said of each pipeline, where there is no room for more."""
LATE_S_MIN: Final = 1.0
"""A loop is told of that is later than this, in seconds."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The statistics of one pipeline at one moment.

    Attributes:
        at: on the monotonic clock, in seconds.
        statistics: of the pipeline.
    """

    at: float
    statistics: PipelineStatistics

    def settled(self) -> int:
        """How many outcomes were written so far."""
        counters = self.statistics.counters
        return sum(counters.get(name, 0) for name in ("applied", "deleted", "retried", "parked"))


@dataclass(frozen=True, slots=True)
class Rates:
    """What a pipeline does.

    Attributes:
        claimed_s: rows claimed a second.
        settled_s: outcomes written a second.
        p50_s: the time that half of the attempts did not exceed, in seconds; None: there was none.
        p95_s: the same of 95 of a hundred.
    """

    claimed_s: float
    settled_s: float
    p50_s: float | None
    p95_s: float | None


def rates_of(samples: Sequence[Sample]) -> Rates:
    """Return the rates between the newest sample and the one `RATE_S` before it."""
    if not samples:
        return Rates(0.0, 0.0, None, None)
    last = samples[-1]
    first = next(one for one in samples if one.at >= last.at - RATE_S)
    seconds = last.at - first.at
    now, then = last.statistics.buckets.get("process"), first.statistics.buckets.get("process")
    took = None if now is None else now if then is None or first is last else now.since(then)
    if seconds <= 0:
        return Rates(0.0, 0.0, *_quantiles(took))
    claimed = (sample.statistics.counters.get("claimed", 0) for sample in (last, first))
    return Rates(
        (next(claimed) - next(claimed)) / seconds,
        (last.settled() - first.settled()) / seconds,
        *_quantiles(took),
    )


def _quantiles(took: Any) -> tuple[float | None, float | None]:
    return (None, None) if took is None else (took.quantile(0.5), took.quantile(0.95))


def pipeline_report(
    statistics: PipelineStatistics, health: PipelineHealth, rates: Rates, *, is_paused: bool
) -> dict[str, Any]:
    """Return what is said of one pipeline."""
    error = health.last_error
    return {
        "state": health.state,
        "paused": is_paused,
        "totals": statistics.counters,
        "claimed_s": _short(rates.claimed_s),
        "settled_s": _short(rates.settled_s),
        "p50_s": _short(rates.p50_s),
        "p95_s": _short(rates.p95_s),
        "queued": statistics.queued,
        "capacity": statistics.capacity,
        "running": statistics.running,
        "workers": statistics.workers,
        "fetch_failures": health.fetch_failures,
        "late_s": {loop: _short(late) for loop, late in health.late_s.items() if late > LATE_S_MIN},
        "last_error": None if error is None else shown(error, ERROR_CHARS_MAX),
    }


def work_report(pipeline: Pipeline[Any]) -> dict[str, Any]:
    """Return what is said of the kind of its work."""
    graph, is_endless = graph_report(pipeline), pipeline.settings.process_timeout is None
    return ({} if graph is None else {"graph": graph}) | ({ENDLESS: True} if is_endless else {})


def report_of(
    pipelines: dict[str, dict[str, Any]],
    items: Iterable[ItemView],
    *,
    lag_s: float,
    skew_s: float | None,
    counts: bool = False,
) -> dict[str, Any]:
    """Return the report of a replica, at most `REPORT_BYTES_MAX` of it; `counts` if it may be the
    one that makes the census.
    """
    endless = {name for name, one in pipelines.items() if ENDLESS in one}
    longest = sorted(
        items,
        key=lambda view: (view.pipeline in endless, view.state != "running", -view.since_s),
    )
    told = [_item_report(view) for view in longest[:ITEMS_MAX]]
    report: dict[str, Any] = {
        "pipelines": dict(pipelines),
        "items": told,
        "lag_s": _short(lag_s),
        "skew_s": _short(skew_s),
        "left_out": len(longest) - len(told),
        LEFT_OUT: 0,
        "census": counts,
    }
    while len(json.dumps(report).encode()) > REPORT_BYTES_MAX:
        told_of = report["pipelines"].values()
        if told:
            kept = len(told) // 2
            report["left_out"] += len(told) - kept
            del told[kept:]
        elif any("totals" in one for one in told_of):
            report["pipelines"] = {
                name: {key: value for key, value in one.items() if key != "totals"}
                for name, one in pipelines.items()
            }
        elif any(set(one) - STATE_ALONE for one in told_of):
            # Who runs what is the last to be left out: else rows would seem to be nobody's.
            report["pipelines"] = {
                name: {key: value for key, value in one.items() if key in STATE_ALONE and value}
                for name, one in pipelines.items()
            }
        else:
            report["pipelines"].popitem()
            report["left_out"] += 1
            report[LEFT_OUT] += 1
    return report


def _item_report(view: ItemView) -> dict[str, Any]:
    return {
        "pipeline": view.pipeline,
        "row_id": shown(view.row_id, ROW_ID_CHARS_MAX),
        "state": view.state,
        "place": view.place,
        "since_s": _short(view.since_s),
        "attempt": view.attempt,
        "token": token_head(view.lock_token),
    }


def token_head(token: object) -> str:
    """Return the beginning of a lease's token, by which a report is told from an older one."""
    return str(token).replace("-", "")[:TOKEN_CHARS]


def _short(number: float | None) -> float | None:
    return None if number is None else round(number, 3)
