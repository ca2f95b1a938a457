"""Whether an index serves the claims of a pipeline, and which; and the pipeline as a whole: what
waits for it, who runs it, and that plan.

The one idea: the planner is asked for a statement like the claim. Only the planner knows which
conditions imply which; and since the plan is made as if the table were large, an empty table of a
test says the same as that of years later.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.insight.asking import ask_part
from rowlock.insight.findings import IndexWanted, wanted_index
from rowlock.insight.insight_dialect import INSIGHT, StorageSeen
from rowlock.insight.questions import RowAsked
from rowlock.insight.shown import (
    REASON,
    WIDTH_MIN,
    by_the_database,
    duration,
    iso,
    lasting,
    made_by,
    pipeline_command,
    shown,
)
from rowlock.insight.status import PipelineStatus, count_text
from rowlock.insight.verdicts import Refused
from rowlock.spi import IndexSeen, claim_query, indexes_of, place_of, planned, serving_index

PLAN_SCHEMA: Final = "rowlock.claim_plan/1"
OWN_PREFIX: Final = "rowlock_"  # prefix of our own tables; those with claims have few rows
LINES_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """The answer of `Insight.explain_claim`.

    Attributes:
        pipeline: its name.
        table: from which it claims.
        served_by: the index that its claims can read in their order; None if none can.
        wanted: the index that would serve, as SQL behind ``CREATE INDEX``; empty if one does, or
            none is needed.
        rows: about how many rows the table has; None if nobody has counted.
        lines: the plan of a claim, as the database tells it.
        refused: why the database refuses the claim; empty if it does not.
        may_pass: `refused` says nothing of the claim, and the database may answer another time.
    """

    pipeline: str
    table: str
    served_by: str | None
    wanted: str = ""
    rows: int | None = None
    lines: tuple[str, ...] = ()
    refused: str = ""
    may_pass: bool = False

    @property
    def needs_person(self) -> bool:
        """Whether claims read the whole table, or are refused."""
        return bool(self.refused or (self.served_by is None and self.wanted))

    @property
    def headline(self) -> str:
        """The plan in one line."""
        if self.may_pass:
            return f"NO ANSWER ABOUT CLAIMS OF {self.pipeline}: {shown(self.refused)}"
        if self.refused:
            return f"CLAIMS OF {self.pipeline} ARE REFUSED by the database: {shown(self.refused)}"
        if self.served_by is not None:
            return f"claims of {self.pipeline} read {self.table} by {shown(self.served_by)}"
        if not self.wanted:
            return f"claims of {self.pipeline} read {self.table}, which is small"
        return f"NO INDEX SERVES {self.pipeline}: {whole_table(self.rows)}"

    def text(self, width: int = 100) -> str:
        """Return it with the plan, without colours."""
        lines = [f"  {line}" for line in self.shown_lines(width - 2)]
        do = [f"do    {shown(f'add {self.wanted}', 600)}"] if self.wanted else []
        return "\n".join(
            [self.headline, *([""] if lines else []), *lines, *([""] if do else []), *do]
        )

    def shown_lines(self, width: int) -> list[str]:
        """Return the lines of the plan, as long as the terminal is wide."""
        return [shown(line, max(WIDTH_MIN, width)) for line in self.lines[:LINES_MAX]]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "schema": PLAN_SCHEMA,
            "pipeline": self.pipeline,
            "table": self.table,
            "needs_person": self.needs_person,
            "served_by": self.served_by,
            "wanted": self.wanted or None,
            "rows": self.rows,
            "plan": list(self.lines),
            "refused": self.refused or None,
        }


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """The claims of one pipeline, as seen; `refused` and `may_pass` as in `ClaimPlan`."""

    pipeline: str
    served_by: str | None
    wanted: IndexWanted | None
    refused: str = ""
    may_pass: bool = False


def whole_table(rows: int | None) -> str:
    size = "" if rows is None else f" (about {_rounded(rows):,} rows)"
    return f"every claim reads the whole table{size}"


def _rounded(rows: int) -> int:
    return round(rows, 2 - len(str(rows)))


async def claim_seen(
    connection: AsyncConnection,
    asked: RowAsked,
    indexes: tuple[IndexSeen, ...],
    *,
    is_alone: bool,
    apart: bool = True,
) -> ClaimSeen:
    """Look at a pipeline's claims; the transaction may only read afterwards."""
    name = asked.pipeline.name
    if asked.failure is not None:
        return ClaimSeen(name, None, None, f"ready() fails: {shown(asked.failure)}")
    leased, parts, wanted = asked.question.leased, asked.question.parts, None
    if not leased.table.name.startswith(OWN_PREFIX):
        wanted = wanted_index(
            name, leased, connection.dialect, ready=parts.ready, is_alone=is_alone
        )
    query, place = claim_query(leased, parts.whole), place_of(leased)
    serving = partial(serving_index, table=leased.table, query=query, indexes=indexes, place=place)
    found = await ask_part(connection, lambda: connection.run_sync(serving), apart=apart)
    if isinstance(found, Refused):
        return ClaimSeen(name, None, wanted, found.why, found.may_pass)
    return ClaimSeen(name, found, wanted)


async def _claim_seen(connection: AsyncConnection, asked: RowAsked, *, is_alone: bool) -> ClaimSeen:
    table = asked.question.leased.table
    indexes = await ask_part(connection, lambda: connection.run_sync(indexes_of, table), apart=True)
    if isinstance(indexes, Refused):
        return ClaimSeen(asked.pipeline.name, None, None, indexes.why, indexes.may_pass)
    return await claim_seen(connection, asked, indexes, is_alone=is_alone)


async def claim_plan(connection: AsyncConnection, asked: RowAsked, *, is_alone: bool) -> ClaimPlan:
    """Return the plan of a pipeline's claims; transaction and `is_alone` as for `claim_seen`."""
    dialect, table = INSIGHT.of(connection), asked.question.leased.table
    seen = await _claim_seen(connection, asked, is_alone=is_alone)
    storage = await ask_part(connection, partial(dialect.storage, connection, table), apart=True)
    lines: Any = ()
    if not seen.refused:
        query = claim_query(asked.question.leased, asked.question.parts.whole)
        plan: Any = partial(planned, query=query, ask=dialect.plan)
        lines = await ask_part(connection, lambda: connection.run_sync(plan), apart=True)
    return ClaimPlan(
        seen.pipeline,
        table.fullname,
        seen.served_by,
        _told(table.fullname, seen),
        storage.rows if isinstance(storage, StorageSeen) else None,
        () if isinstance(lines, Refused) else tuple(lines),
        seen.refused,
        seen.may_pass,
    )


async def unserved_remark(
    connection: AsyncConnection, asked: RowAsked, *, more_than: int
) -> str | None:
    """Return a remark if claims read a table of so many rows without an index."""
    seen = await _claim_seen(connection, asked, is_alone=True)
    if seen.refused or seen.served_by is not None or seen.wanted is None:
        return None
    plan = await claim_plan(connection, asked, is_alone=True)
    rows = plan.rows if plan.rows and plan.rows > more_than else None
    size = f"about {_rounded(rows):,}" if rows else f"more than {more_than:,}"
    return f"every claim reads the whole table ({size} rows): no index serves it; see rowlock check"


def _told(table: str, seen: ClaimSeen) -> str:
    if seen.served_by is not None or seen.wanted is None or seen.refused:
        return ""
    return f"{seen.wanted.name} ON {table} {seen.wanted.text}"


# ---------------------------------------------------------------- the pipeline as a whole


SCHEMA: Final = "rowlock.pipeline/1"
LABEL_WIDTH: Final = 10
UNKNOWN: Final = "?"
_COUNTS: Final = ("due", "oldest_s", "leased", "ended", "parked")
NO_INDEX: Final = "none serves the claim"
SMALL_TABLE: Final = "none is needed: the table is small"


@dataclass(frozen=True, slots=True)
class PipelineView:
    """The answer of `Insight.explain_pipeline`.

    Attributes:
        status: what waits, and who runs it.
        plan: of its claims.
        shows_plan: whether the text has it.
    """

    status: PipelineStatus
    plan: ClaimPlan
    shows_plan: bool = False

    @property
    def needs_person(self) -> bool:
        """Whether rows wait until a person does something, or claims read the whole table."""
        return self.status.needs_person or self.plan.needs_person

    @property
    def headline(self) -> str:
        """What keeps it first, in one line."""
        status = self.status
        if self.plan.refused and status.lock is None:
            return self.plan.headline
        if status.pause is not None:
            return status.state(status.counts.at).replace("paused", "PAUSED", 1)
        if status.is_run_by_nobody or status.is_silent:
            oldest_s = status.counts.oldest_s
            due = "due" if oldest_s is None else f"due {lasting(oldest_s)}"
            seems = "SEEMS TO RUN" if status.is_silent else "RUNS"
            return f"NOBODY {seems} {status.pipeline}: {due}"
        if self.plan.needs_person and status.lock is None:
            return self.plan.headline
        if status.troubles:
            return status.troubles[0]
        runs = f"RUNS on {status.runs_on}" if status.runs_on else "NOTHING KEEPS IT"
        return f"{runs}: {_number(status.counts.due)} due"

    @property
    def do(self) -> str:
        """What to do; empty if nothing, or if the headline says it."""
        status = self.status
        if self.plan.refused and status.lock is None:
            return "mend what the error says; rowlock check tells of columns that are missing"
        if status.pause is not None:
            return pipeline_command("resume", status.pipeline, REASON)
        if status.is_run_by_nobody or status.is_silent:
            return f"register {made_by(status.pipeline)} with the manager of a replica"
        return f"add {self.plan.wanted}" if self.plan.wanted else ""

    @property
    def also(self) -> tuple[str, ...]:
        """What else a person has to do something about."""
        return tuple(one for one in self.status.troubles if one != self.headline)

    def text(self, width: int = 100) -> str:
        """Return it for a terminal of `width` columns, without colours."""
        counts, title = self.status.counts, f"{self.status.pipeline} on {self.plan.table}"
        if counts.at is not None:
            when = by_the_database(counts.at)
            title += when.rjust(max(len(when) + 2, width - len(title)))
        oldest = "" if counts.oldest_s is None else f", the first for {duration(counts.oldest_s)}"
        runs_on = UNKNOWN if self.status.runs_on is None else str(self.status.runs_on)
        index = NO_INDEX if self.plan.wanted else SMALL_TABLE
        if self.plan.refused or self.plan.served_by is not None:
            index = self.plan.served_by or UNKNOWN
        lines = {
            "due": _number(counts.due) + (oldest if counts.due else ""),
            "leased": _number(counts.leased),
            "ended": _number(counts.ended),
            "parked": _number(counts.parked),
            "runs on": runs_on,
            "index": index,
        }
        text = [title, self.headline, ""]
        text += [f"  {label.ljust(LABEL_WIDTH)}{answer}" for label, answer in lines.items()]
        if self.shows_plan:
            text += ["", *(f"  {line}" for line in self.plan.shown_lines(width - 2))]
        text += ["", f"  {self.status.wing}"] if self.status.wing else []
        text += ["", f"do    {self.do}"] if self.do else []
        text += [f"also  {one}" for one in self.also]
        return "\n".join([*text, *(f"{UNKNOWN} {shown(one)}" for one in self.status.unknown)])

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        counts, status = self.status.counts, self.status
        return {
            "schema": SCHEMA,
            "pipeline": status.pipeline,
            "at": iso(counts.at),
            **{name: getattr(self, name) for name in ("needs_person", "headline", "do")},
            "also": list(self.also),
            "unknown": list(status.unknown),
            **{name: getattr(counts, name) for name in _COUNTS},
            "runs_on": status.runs_on,
            "wing": status.wing,
            "claim_plan": self.plan.to_dict(),
        }


def _number(count: int | None) -> str:
    return UNKNOWN if count is None else count_text(count)
