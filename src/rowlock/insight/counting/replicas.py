"""Which replicas live, as they say themselves in the optional table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.insight.asking.databases import AwayDatabase
from rowlock.insight.observing.presence import DEAD_AFTER
from rowlock.insight.observing.report import LEFT_OUT, RUNS
from rowlock.insight.shown import ago, duration, iso, shown
from rowlock.rows.database_time import database_now

SCHEMA: Final = "rowlock.replicas/1"
REPLICAS_MAX: Final = 1_000
"""Most replicas that are read, those that were seen last."""
NO_TABLE: Final = "no table of replicas: insight_tables(metadata), and an Observer in each replica"


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What one replica has said of itself.

    Attributes:
        mark: with which the tokens of its leases end.
        seen_s: how long ago it said so, by the database's clock.
        up_s: how long it has been there.
        report: of each pipeline that it runs, and of what is longest at work.
    """

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
        """Whether it was seen a moment ago."""
        return self.seen_s <= DEAD_AFTER.total_seconds()

    @property
    def pipelines(self) -> Mapping[str, Any]:
        """The report of each pipeline, by name; one of another version may be anything."""
        found = self.report.get("pipelines")
        return found if isinstance(found, dict) else {}

    def runs(self, pipeline: str) -> bool:
        """Whether it lives and has started a pipeline, and not stopped it again."""
        report = self.pipelines.get(pipeline)
        return isinstance(report, dict) and self.is_live and report.get("state", RUNS) == RUNS

    @property
    def leaves_out(self) -> bool:
        """Whether its report had no room for all of its pipelines."""
        return bool(self.report.get(LEFT_OUT))

    @property
    def items(self) -> Sequence[Mapping[str, Any]]:
        """The report of what is longest at work."""
        found = self.report.get("items")
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    @property
    def state(self) -> str:
        """``live``, ``draining``, or for how long it has been silent."""
        if not self.is_live:
            return f"silent for {duration(self.seen_s)}"
        return "draining" if self.draining else "live"


@dataclass(frozen=True, slots=True)
class LiveReplicas:
    """The answer of `Insight.replicas`.

    Attributes:
        at: when it was asked, by the database's clock.
        known: the replicas; None if nobody can tell.
        why: why nobody can, or one of several databases cannot; empty if the host lends no table.
        away: databases that could not be asked: replicas of theirs may be missing.
    """

    at: datetime | None
    known: tuple[ReplicaState, ...] | None
    why: str = ""
    away: tuple[AwayDatabase, ...] = ()

    @property
    def needs_person(self) -> bool:
        """Whether a database is away."""
        return bool(self.away)

    @property
    def unasked(self) -> str:
        """Why replicas may be missing; empty if all databases have answered."""
        told = [f"{one.database} {one.what}" for one in self.away]
        return "; ".join([*told, self.why] if self.why else told)

    @property
    def live(self) -> tuple[ReplicaState, ...]:
        """Those that live."""
        return tuple(one for one in self.known or () if one.is_live)

    @property
    def count_text(self) -> str:
        """How many live, in words; the least number, where not all could be asked."""
        live = len(self.live)
        if self.known is None or (self.unasked and not live):
            return "? replicas"
        least = " at least" if self.unasked else ""
        return f"{live} replica{'' if live == 1 else 's'}{least}"

    def text(self, width: int = 100) -> str:
        """Return a line for each, without colours."""
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
        """Return it as JSON has it."""
        return {
            "schema": SCHEMA,
            "at": iso(self.at),
            "why": self.why or None,
            "away": [one.to_dict() for one in self.away],
            "replicas": None
            if self.known is None
            else [
                {
                    "mark": one.mark,
                    "name": one.name,
                    "host": one.host,
                    "pid": one.pid,
                    "seen_s": one.seen_s,
                    "up_s": one.up_s,
                    "state": one.state,
                    "report": dict(one.report),
                }
                for one in self.known
            ],
        }


async def read_replicas(connection: AsyncConnection, table: Table) -> LiveReplicas:
    """Return the replicas, those first that were seen last; joins the caller's transaction."""
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
    """Return what several databases say of the replicas of one app: each one by its last word."""
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


def table_text(rows: Sequence[tuple[str, ...]], *, right: frozenset[int] = frozenset()) -> str:
    """Return rows as columns of text; those whose number is in `right` end at their right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
