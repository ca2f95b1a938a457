"""A pipeline as a whole: what waits for it, who runs it, and whether an index serves its claims."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import Any, Final

from rowlock.insight.checking.claim_plan import ClaimPlan
from rowlock.insight.counting.counts import COUNTED_MAX
from rowlock.insight.counting.pipeline_status import PipelineStatus
from rowlock.insight.shown import (
    REASON,
    duration,
    iso,
    lasting,
    made_by,
    pipeline_command,
    shown,
)

SCHEMA: Final = "rowlock.pipeline/1"
LABEL_WIDTH: Final = 10
UNKNOWN: Final = "?"
NO_INDEX: Final = "none serves the claim"
SMALL_TABLE: Final = "none is needed: the table is small"


@dataclass(frozen=True, slots=True)
class PipelineView:
    """The answer of `Insight.explain_pipeline`.

    Attributes:
        status: what waits, and who runs it.
        plan: of its claims.
    """

    status: PipelineStatus
    plan: ClaimPlan

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
        return f"add {self.plan.wanted}, or: rowlock check --migration" if self.plan.wanted else ""

    @property
    def also(self) -> tuple[str, ...]:
        """What else a person has to do something about."""
        return tuple(one for one in self.status.troubles if one != self.headline)

    def text(self, width: int = 100, *, with_plan: bool = False) -> str:
        """Return it for a terminal of `width` columns, without colours."""
        counts, title = self.status.counts, f"{self.status.pipeline} on {self.plan.table}"
        if counts.at is not None:
            when = f"{counts.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, by the database"
            title += when.rjust(max(len(when) + 2, width - len(title)))
        oldest = "" if counts.oldest_s is None else f", the first for {duration(counts.oldest_s)}"
        runs_on = UNKNOWN if self.status.runs_on is None else str(self.status.runs_on)
        lines = {
            "due": _number(counts.due) + (oldest if counts.due else ""),
            "leased": _number(counts.leased),
            "ended": _number(counts.ended),
            "parked": _number(counts.parked),
            "runs on": runs_on,
            "index": self._index(),
        }
        text = [title, self.headline, ""]
        text += [f"  {label.ljust(LABEL_WIDTH)}{answer}" for label, answer in lines.items()]
        if with_plan:
            text += ["", *(f"  {line}" for line in self.plan.shown_lines(width - 2))]
        text += ["", f"  {self.status.wing}"] if self.status.wing else []
        text += ["", f"do    {self.do}"] if self.do else []
        text += [f"also  {one}" for one in self.also]
        return "\n".join([*text, *(f"{UNKNOWN} {shown(one)}" for one in self.status.unknown)])

    def _index(self) -> str:
        if self.plan.served_by is not None:
            return self.plan.served_by
        if self.plan.refused:
            return UNKNOWN
        return NO_INDEX if self.plan.wanted else SMALL_TABLE

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        counts = self.status.counts
        return {
            "schema": SCHEMA,
            "pipeline": self.status.pipeline,
            "at": iso(counts.at),
            "needs_person": self.needs_person,
            "headline": self.headline,
            "do": self.do,
            "also": list(self.also),
            "unknown": list(self.status.unknown),
            "due": counts.due,
            "oldest_s": counts.oldest_s,
            "leased": counts.leased,
            "ended": counts.ended,
            "parked": counts.parked,
            "runs_on": self.status.runs_on,
            "wing": self.status.wing,
            "claim_plan": self.plan.to_dict(),
        }


def _number(count: int | None) -> str:
    if count is None:
        return UNKNOWN
    return f"{COUNTED_MAX:,}+" if count > COUNTED_MAX else f"{count:,}"
