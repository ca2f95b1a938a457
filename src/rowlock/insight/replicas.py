"""Which replicas live and what they do, as they say themselves in the optional table. Leases, never
this table, decide who owns what.

A replica writes its row again and again while it lives, and deletes it when it stops. Its report is
JSON of at most `REPORT_BYTES_MAX`: of each pipeline the totals, the rates of the last minute, two
quantiles of the time of its attempts, what is in hand and what is late; and the items that have
been longest at work. What does not fit is left out and counted: items first, then totals, then all
but whether a pipeline runs, and pipelines last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Table, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import ItemView, Pipeline, PipelineHealth, PipelineStatistics, database_now
from rowlock.insight.asking import AwayDatabase
from rowlock.insight.shown import ago, duration, iso, shown, table_text
from rowlock.insight.tables import InsightTables
from rowlock.insight.verdicts import RunningReplicas, WingLine
from rowlock.spi import ROWS, database_instant, database_time_after

# ---------------------------------------------------------------- presence


DEAD_AFTER: Final = timedelta(seconds=15)
"""A replica that has been silent for so long counts as dead."""
SWEPT_AFTER: Final = timedelta(hours=1)
"""The row of a replica that has been silent for so long is deleted."""


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer of the database: its time, and the pipelines of this replica that are paused."""

    at: datetime
    paused: frozenset[str]


async def beat(
    connection: AsyncConnection,
    tables: InsightTables,
    *,
    row: Mapping[str, Any],
    pipelines: Sequence[str],
) -> Beat:
    """Write that the replica lives, and ask which of its `pipelines` are paused: one statement, and
    a second one if the replica has no row yet.
    """
    answer: list[ColumnElement[Any]] = [database_instant().label("now")]
    if tables.controls is not None:
        answer += [tables.is_paused(name) for name in pipelines]
    if tables.replicas is None:
        found: Any = (await connection.execute(select(*answer))).one()
    else:
        again = update(tables.replicas).where(tables.replicas.c.mark == row["mark"])
        changing = {name: row[name] for name in ("draining", "report")}
        written = again.values(seen_at=database_instant(), **changing).returning(*answer)
        found = (await connection.execute(written)).first()
        if found is None:
            found = (await connection.execute(select(*answer))).one()
            await _appear(connection, tables.replicas, row, now=found[0])
    paused = (name for name, is_paused in zip(pipelines, found[1:], strict=False) if is_paused)
    return Beat(found[0], frozenset(paused))


async def _appear(
    connection: AsyncConnection, replicas: Table, row: Mapping[str, Any], *, now: datetime
) -> None:
    new = {**row, "seen_at": now, "started_at": now}
    bulk = ROWS.of(connection)
    inserted = bulk.insert(replicas, tuple(new))
    # A COMMIT whose answer was lost has written it.
    statement = inserted.on_conflict_do_update(
        index_elements=[replicas.c.mark], set_={"seen_at": inserted.excluded["seen_at"]}
    )
    await connection.execute(statement, bulk.insert_parameters(tuple(new), [tuple(new.values())]))


async def disappear(connection: AsyncConnection, replicas: Table, mark: str) -> None:
    await connection.execute(delete(replicas).where(replicas.c.mark == mark))


async def sweep(connection: AsyncConnection, replicas: Table) -> int:
    silent = replicas.c.seen_at < database_time_after(-SWEPT_AFTER)
    return (await connection.execute(delete(replicas).where(silent))).rowcount


# ---------------------------------------------------------------- the report


REPORT_BYTES_MAX: Final = 16_000  # longest report, in bytes of its JSON
ITEMS_MAX: Final = 100
ROW_ID_CHARS_MAX: Final = 100
ERROR_CHARS_MAX: Final = 200
RATE_S: Final = 60.0  # over how long rates and quantiles are taken, in seconds
TOKEN_CHARS: Final = 8
RUNS: Final = "running"  # the state of a pipeline that was started and not stopped
ENDLESS: Final = "endless"
"""Says of a pipeline that its attempts have no longest time: one that has run for long is none to
look at, so its items come behind those of the others.
"""
LEFT_OUT: Final = "pipelines_left_out"  # in a report: how many pipelines it has no room for
STATE_ALONE: Final = frozenset({"state", "fetch_failures"})
"""What is said of each pipeline, where there is no room for more."""
LATE_S_MIN: Final = 1.0  # loops that are later than this are reported, in seconds


@dataclass(frozen=True, slots=True)
class Sample:
    """The statistics of one pipeline; `at` is a time of the monotonic clock, in seconds."""

    at: float
    statistics: PipelineStatistics

    def settled(self) -> int:
        counters = self.statistics.counters
        return sum(counters.get(name, 0) for name in ("applied", "deleted", "retried", "parked"))


@dataclass(frozen=True, slots=True)
class Rates:
    """Rows and outcomes a second; median and 95th percentile of attempts, in seconds."""

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
    error = health.last_error
    return {
        "state": health.state,
        "paused": is_paused,
        "totals": statistics.counters,
        **{name: _short(rate) for name, rate in asdict(rates).items()},
        "queued": statistics.queued,
        "capacity": statistics.capacity,
        "running": statistics.running,
        "workers": statistics.workers,
        "fetch_failures": health.fetch_failures,
        "late_s": {loop: _short(late) for loop, late in health.late_s.items() if late > LATE_S_MIN},
        "last_error": None if error is None else shown(error, ERROR_CHARS_MAX),
    }


def work_report(pipeline: Pipeline[Any]) -> dict[str, Any]:
    told: dict[str, Any] = {ENDLESS: True} if pipeline.settings.process_timeout is None else {}
    statistics = getattr(pipeline, "graph_statistics", None)
    if statistics is not None:
        now = statistics()
        slowest = None if now.bottleneck is None else shown(now.bottleneck, 60)
        told["graph"] = {"held": sum(one.held for one in now.operators), "bottleneck": slowest}
    return told


def report_of(
    pipelines: dict[str, dict[str, Any]],
    items: Iterable[ItemView],
    *,
    lag_s: float,
    skew_s: float | None,
    counts: bool = False,
) -> dict[str, Any]:
    """Return the report of a replica, at most `REPORT_BYTES_MAX` of it."""
    endless = {name for name, one in pipelines.items() if ENDLESS in one}
    longest = sorted(
        items, key=lambda view: (view.pipeline in endless, view.state != "running", -view.since_s)
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
            # Who runs what is the last to be left out: else pipelines would seem not to run.
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
    """Return the beginning of a lease's token, which tells a report from an older one."""
    return str(token).replace("-", "")[:TOKEN_CHARS]


def _short(number: float | None) -> float | None:
    return None if number is None else round(number, 3)


# ---------------------------------------------------------------- the answer


SCHEMA: Final = "rowlock.replicas/1"
REPLICAS_MAX: Final = 1_000
NO_TABLE: Final = "no table of replicas: insight_tables(metadata), and an Observer in each replica"
NO_ROOM: Final = "a replica has more pipelines than its report has room for"
NOTHING: Final = "\N{EN DASH}"
_TOLD: Final = ("mark", "name", "host", "pid", "seen_s", "up_s", "state")


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What one replica has reported; it was seen `seen_s` ago, by the database's clock."""

    mark: str
    name: str
    host: str
    pid: int
    seen_s: float
    up_s: float
    draining: bool
    report: Mapping[str, Any]

    @property
    def is_live(self) -> bool:
        return self.seen_s <= DEAD_AFTER.total_seconds()

    @property
    def pipelines(self) -> Mapping[str, Any]:
        """The report of each pipeline, by name; one of another version may be anything."""
        found = self.report.get("pipelines")
        return found if isinstance(found, dict) else {}

    def runs(self, pipeline: str) -> bool:
        report = self.pipelines.get(pipeline)
        return isinstance(report, dict) and self.is_live and report.get("state", RUNS) == RUNS

    @property
    def items(self) -> Sequence[Mapping[str, Any]]:
        found = self.report.get("items")
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    @property
    def queue(self) -> str:
        return queue_text([*self.pipelines.values()])

    @property
    def state(self) -> str:
        if not self.is_live:
            return f"silent for {duration(self.seen_s)}"
        return "draining" if self.draining else "live"


@dataclass(frozen=True, slots=True)
class LiveReplicas:
    """The answer of `Insight.replicas`; `known` is None if nobody can tell, and `why` says why."""

    at: datetime | None
    known: tuple[ReplicaState, ...] | None
    why: str = ""
    away: tuple[AwayDatabase, ...] = ()

    @property
    def needs_person(self) -> bool:
        return bool(self.away)

    @property
    def unasked(self) -> str:
        """Why replicas may be missing; empty if all databases have answered."""
        told = [f"{one.database} {one.what}" for one in self.away]
        return "; ".join([*told, self.why] if self.why else told)

    @property
    def live(self) -> tuple[ReplicaState, ...]:
        return tuple(one for one in self.known or () if one.is_live)

    @property
    def names(self) -> dict[str, str]:
        return {one.mark: one.name for one in self.known or ()}

    @property
    def count_text(self) -> str:
        """How many live, in words; at least, where not all could be asked."""
        live = len(self.live)
        if self.known is None or (self.unasked and not live):
            return "? replicas"
        least = " at least" if self.unasked else ""
        return f"{live} replica{'' if live == 1 else 's'}{least}"

    def reports_of(self, pipeline: str) -> list[Mapping[str, Any]]:
        found = (one.pipelines.get(pipeline) for one in self.live)
        return [one for one in found if isinstance(one, Mapping)]

    def running(self, pipeline: str) -> RunningReplicas | str:
        """Return who runs a pipeline, and what they report of it; or why nobody can tell, where a
        replica may run it although none says so.
        """
        has_it = [one for one in self.live if pipeline in one.pipelines]
        running = [one for one in has_it if one.runs(pipeline)]
        is_cut = any(one.report.get(LEFT_OUT) for one in self.live)
        if not running and (unseen := self.unasked or (NO_ROOM if is_cut else "")):
            return unseen
        reports = [one.pipelines[pipeline] for one in running]
        failing = [report for report in reports if report.get("fetch_failures")]
        errors = [error for report in failing if (error := report.get("last_error"))]
        totals = [report.get("totals") for report in reports]
        return RunningReplicas(
            len(self.live),
            tuple(one.name for one in running),
            len(failing),
            str(next(iter(errors), "")),
            self.names,
            summed(reports, "claimed_s"),
            int(summed(reports, "running") or 0),
            int(summed(reports, "workers") or 0),
            idle=len(has_it) - len(running),
            unreadable=int(summed(totals, "unreadable") or 0),
            settled_s=summed(reports, "settled_s"),
            p95_s=max(numbers_of(reports, "p95_s"), default=None),
            graph=_graph_line(reports),
        )

    def queue(self, pipeline: str) -> str:
        return queue_text(self.reports_of(pipeline))

    def text(self, width: int = 100) -> str:
        below = [f"! {one.text}" for one in self.away]
        if self.known is not None and self.why:
            below.append(f"? {shown(self.why)}")
        if self.known is None:
            return "\n".join([f"? {shown(self.why) or NO_TABLE}", *below])
        rows = [("MARK", "NAME", "HOST", "UP", "SEEN", "RUNS", "STATE")] + [
            (
                one.mark,
                shown(one.name, 40),
                shown(one.host, 40),
                duration(one.up_s),
                ago(one.seen_s),
                str(len(one.pipelines)),
                one.state,
            )
            for one in self.known
        ]
        return "\n".join([table_text(rows), *below])

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "at": iso(self.at),
            "why": self.why or None,
            "away": [one.to_dict() for one in self.away],
            "replicas": None
            if self.known is None
            else [
                {name: getattr(one, name) for name in _TOLD} | {"report": dict(one.report)}
                for one in self.known
            ],
        }


async def read_replicas(connection: AsyncConnection, table: Table) -> LiveReplicas:
    """Return the replicas, the last seen first; joins the caller's transaction."""
    columns = table.c
    statement = select(database_now(), table).order_by(columns.seen_at.desc()).limit(REPLICAS_MAX)
    rows = (await connection.execute(statement)).all()
    known = tuple(
        ReplicaState(
            str(row.mark),
            row.name,
            row.host,
            row.pid,
            (row[0] - row.seen_at).total_seconds(),
            (row[0] - row.started_at).total_seconds(),
            bool(row.draining),
            row.report if isinstance(row.report, dict) else {},
        )
        for row in rows
    )
    return LiveReplicas(rows[0][0] if rows else None, known)


def merged_replicas(
    answers: Sequence[LiveReplicas], away: Sequence[AwayDatabase] = ()
) -> LiveReplicas:
    """Merge the answers of several databases: each replica by its newest report."""
    known: dict[str, ReplicaState] = {}
    for answer in answers:
        for one in answer.known or ():
            before = known.get(one.mark)
            if before is None or one.seen_s < before.seen_s:
                known[one.mark] = one
    at = next((answer.at for answer in answers if answer.at is not None), None)
    why = next((answer.why for answer in answers if answer.why), "")
    if not known and all(answer.known is None for answer in answers):
        return LiveReplicas(at, None, why, tuple(away))
    ordered = tuple(sorted(known.values(), key=lambda one: one.seen_s))
    return LiveReplicas(at, ordered, why, tuple(away))


def queue_text(reports: Sequence[Any]) -> str:
    """Return the queues of some reports of pipelines, taken together."""
    queued, capacity = (summed(reports, name) for name in ("queued", "capacity"))
    most = "?" if capacity is None else f"{capacity:.0f}"
    return NOTHING if queued is None else f"{queued:,.0f}/{most}"


def summed(reports: Sequence[Any], name: str) -> float | None:
    """Return the sum of a number in some reports; None if none has it."""
    values = numbers_of(reports, name)
    return sum(values) if values else None


def numbers_of(reports: Sequence[Any], name: str) -> list[float]:
    values = (report.get(name) for report in reports if isinstance(report, Mapping))
    return [float(value) for value in values if isinstance(value, int | float)]


def _graph_line(reports: Sequence[Mapping[str, Any]]) -> WingLine | None:
    told = [one["graph"] for one in reports if isinstance(one.get("graph"), dict)]
    if not told:
        return None
    held = sum(int(one.get("held") or 0) for one in told)
    slowest = dict.fromkeys(str(one["bottleneck"]) for one in told if one.get("bottleneck"))
    bottleneck = f", slowest at {', '.join(map(shown, slowest))}" if slowest else ""
    return WingLine("graph", f"{held:,}", f"values inside{bottleneck}")
