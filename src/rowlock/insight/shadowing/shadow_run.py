"""The answer of `Insight.shadow`: what the code here would have written beside what live replicas
wrote, as data that renders itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from rowlock.insight.shown import iso, shown, typed_word

SCHEMA: Final = "rowlock.shadow/1"
OUTCOME: Final = "outcome"
"""Names the outcome itself among what differs."""


class ShadowVerdict(StrEnum):
    """What came of one row of a shadow run."""

    SAME = "same"
    DIFFERS = "differs"
    UNFINISHED = "unfinished"
    CHANGED = "changed_meanwhile"
    NOT_COMPARED = "not_compared"
    NOT_WORKED_ON = "not_worked_on"


TITLES: Final = {
    ShadowVerdict.SAME: "same",
    ShadowVerdict.DIFFERS: "differs",
    ShadowVerdict.UNFINISHED: "not finished",
    ShadowVerdict.CHANGED: "changed meanwhile",
    ShadowVerdict.NOT_COMPARED: "not compared",
    ShadowVerdict.NOT_WORKED_ON: "not worked on",
}


@dataclass(frozen=True, slots=True)
class ShadowDifference:
    """What a live replica and the shadow wrote differently.

    Attributes:
        column: its name, or ``outcome``.
        live: what the live replica wrote, or left.
        shadow: what the shadow would have.
        are_times: whether both wrote a time, which may be that of a clock.
    """

    column: str
    live: str
    shadow: str
    are_times: bool = False


@dataclass(frozen=True, slots=True)
class ShadowRow:
    """What came of one row.

    Attributes:
        row_id: its key, as text.
        verdict: whether both did the same.
        live: what a live replica made of the row, such as ``applied``; None if the row does not
            tell.
        shadow: the same of the shadow.
        reason: why the shadow would retry or park it, or why there is nothing to compare.
        live_reason: why a live replica retried or parked it.
        differences: what differs.
        not_compared: what could not be compared, a line each.
        beside: what else the outcome of the shadow would do.
        took_s: how long `process` took here, in seconds.
    """

    row_id: str
    verdict: ShadowVerdict
    live: str | None = None
    shadow: str | None = None
    reason: str | None = None
    differences: tuple[ShadowDifference, ...] = ()
    not_compared: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    took_s: float = 0.0
    live_reason: str | None = None

    @property
    def is_compared(self) -> bool:
        """Whether both outcomes were there, of the same row."""
        return self.verdict in {ShadowVerdict.SAME, ShadowVerdict.DIFFERS}

    def lines(self, model: str) -> Iterator[str]:
        """Yield its lines of text."""
        because = f": {shown(self.reason)}" if self.reason else ""
        yield f"{shown(model)} {shown(self.row_id)}: {TITLES[self.verdict]}{self._what()}{because}"
        for one in self.differences:
            yield f"  {shown(one.column)}: live {one.live}, shadow {one.shadow}"
        for text in self.not_compared:
            yield f"  not compared: {text}"
        for text in self.beside if self.is_compared else ():
            yield f"  {text}"

    def _what(self) -> str:
        if not self.is_compared or self.shadow is None:
            return ""
        if self.live in {None, self.shadow}:
            return f", {shown(self.shadow)}"
        because = f" ({shown(self.live_reason)})" if self.live_reason else ""
        return f", live {shown(self.live)}{because}, shadow {shown(self.shadow)}"


@dataclass(frozen=True, slots=True)
class ShadowRun:
    """What came of the first rows in line.

    Attributes:
        pipeline: whose `process` was run.
        model: the class of the rows.
        at: when the rows were read, by the database.
        wait_s: for how long live replicas were waited for at most, in seconds.
        rows: in the order of claims.
    """

    pipeline: str
    model: str
    at: datetime
    wait_s: float
    rows: tuple[ShadowRow, ...]

    @property
    def needs_person(self) -> bool:
        """Whether a row differs, or `process` did not come to an end here."""
        wrong = {ShadowVerdict.DIFFERS, ShadowVerdict.UNFINISHED}
        return any(row.verdict in wrong for row in self.rows)

    @property
    def compared(self) -> int:
        """How many rows were compared."""
        return sum(row.is_compared for row in self.rows)

    def count(self, verdict: ShadowVerdict) -> int:
        """Return how many rows have a verdict."""
        return sum(row.verdict is verdict for row in self.rows)

    def text(self, width: int = 0) -> str:
        """Return it for a terminal, without colours."""
        title = f"{shown(self.pipeline)}, in the shadow of the live replicas: nothing was written"
        rows = (line for row in self.rows for line in row.lines(self.model))
        return "\n".join([title, self._summary(), *rows, *self._advice()])

    def _advice(self) -> Iterator[str]:
        differences = (one for row in self.rows for one in row.differences if one.are_times)
        for column in dict.fromkeys(one.column for one in differences):
            option = f"--ignore {typed_word(column)}"
            yield f"! {shown(column)} holds times; if process reads them from a clock: {option}"

    def _summary(self) -> str:
        if not self.rows:
            return f"no row of {shown(self.model)} is due now"
        counts = [f"{self.count(one)} {TITLES[one]}" for one in ShadowVerdict if self.count(one)]
        waited = f" in {self.wait_s:g} s" if self.count(ShadowVerdict.NOT_WORKED_ON) else ""
        return f"{', '.join(counts)}{waited}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "schema": SCHEMA,
            "pipeline": self.pipeline,
            "model": self.model,
            "at": iso(self.at),
            "wait_s": self.wait_s,
            "compared": self.compared,
            "rows": [
                {
                    "row_id": row.row_id,
                    "verdict": row.verdict.value,
                    "live": row.live,
                    "shadow": row.shadow,
                    "reason": row.reason,
                    "live_reason": row.live_reason,
                    "differences": [
                        {
                            "column": one.column,
                            "live": one.live,
                            "shadow": one.shadow,
                            "are_times": one.are_times,
                        }
                        for one in row.differences
                    ],
                    "not_compared": list(row.not_compared),
                    "beside": list(row.beside),
                    "took_s": row.took_s,
                }
                for row in self.rows
            ],
        }
