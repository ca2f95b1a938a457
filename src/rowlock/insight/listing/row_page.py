"""The answer of `Insight.rows`: rows of one state, as data that renders itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from rowlock.insight.counting.counts import COUNTED_MAX
from rowlock.insight.counting.replicas import table_text
from rowlock.insight.shown import ago, ahead, iso, pipeline_command, shown

SCHEMA: Final = "rowlock.rows/1"
KEY_CHARS_MAX: Final = 60
ERROR_CHARS_MAX: Final = 80
NOTHING: Final = "\N{EN DASH}"


class ListedState(StrEnum):
    """What rows of a pipeline are listed by."""

    DUE = "due"
    RESTING = "resting"
    LEASED = "leased"
    ENDED = "ended"
    FAILING = "failing"
    PARKED = "parked"


@dataclass(frozen=True, slots=True)
class ListedRow:
    """One row of a page.

    Attributes:
        row_id: its key, as text.
        place_s: when it is due, or was processed, in seconds from now; negative if that is past;
            None if it was never processed.
        attempts: how often it failed in a row; None without `ScheduleColumns`.
        owner: who holds it, or had reset it.
        mark: of the replica that holds it.
        lease_ends_in_s: how much of its lease is left; negative if it has ended.
        parked_s: for how long it has been set aside.
        last_error: of its last attempt, shortened.
    """

    row_id: str
    place_s: float | None
    attempts: int | None = None
    owner: str | None = None
    mark: str | None = None
    lease_ends_in_s: float | None = None
    parked_s: float | None = None
    last_error: str | None = None

    def place_text(self, state: ListedState) -> str:
        """Return when, in words."""
        if state is ListedState.PARKED and self.parked_s is not None:
            return ago(self.parked_s)
        if self.place_s is None:
            return "never"
        return ahead(self.place_s) if self.place_s > 0 else ago(-self.place_s)

    def holder_text(self, names: Mapping[str, str]) -> str:
        """Return who holds it, in words.

        Args:
            names: of replicas, by their marks.
        """
        if self.owner is None:
            return NOTHING
        who = names.get(self.mark or "", self.mark or "")
        text = shown(f"{self.owner} on {who}" if who else f"kept for {self.owner}", KEY_CHARS_MAX)
        ends_s = self.lease_ends_in_s
        if ends_s is None:
            return text
        return f"{text}, {f'ends {ahead(ends_s)}' if ends_s > 0 else f'ended {ago(-ends_s)}'}"


@dataclass(frozen=True, slots=True)
class RowPage:
    """The answer of `Insight.rows`.

    Attributes:
        pipeline: its name.
        model: the class of its rows.
        state: in which they all are.
        at: when it was asked, by the database's clock; None if there are no rows.
        rows: at most as many as were asked for.
        next: behind which the next page begins; None if there are no more.
        is_whole: whether everything was looked through from where the page begins to its last row;
            if not, rows were sought among the first `COUNTED_MAX` alone, and `next` goes on.
        refused: why the database gave no rows; None if it did.
        names: of the replicas that hold rows, by their marks.
    """

    pipeline: str
    model: str
    state: ListedState
    at: datetime | None
    rows: tuple[ListedRow, ...]
    next: str | None = None
    is_whole: bool = True
    refused: str | None = None
    names: Mapping[str, str] | None = None

    needs_person = False

    def remarks(self) -> list[str]:
        """Return what is to be known besides the rows."""
        if self.refused is not None:
            return [f"the database gave no rows: {shown(self.refused)}"]
        if not self.is_whole:
            is_parked = self.state is ListedState.PARKED
            finds = f"; parked_index({self.model}) finds them all" if is_parked else ""
            return [f"sought among {COUNTED_MAX:,} rows in order; there may be more{finds}"]
        return [] if self.rows else [f"no rows are {self.state}"]

    def cells(self) -> list[tuple[str, ...]]:
        """Return the rows as texts: key, place, attempts, holder, last error."""
        names = self.names or {}
        return [
            (
                shown(one.row_id, KEY_CHARS_MAX),
                one.place_text(self.state),
                NOTHING if one.attempts is None else str(one.attempts),
                one.holder_text(names),
                shown(one.last_error or NOTHING, ERROR_CHARS_MAX),
            )
            for one in self.rows
        ]

    def text(self, width: int = 100) -> str:
        """Return it for a terminal of `width` columns, without colours."""
        when = "" if self.at is None else f"   {self.at.astimezone(UTC):%H:%M:%S} UTC"
        lines = [f"{self.pipeline} · {self.state}{when}"]
        if self.rows:
            table = [("ID", "PLACE", "ATT", "HOLDER", "LAST ERROR"), *self.cells()]
            lines += [line[:width] for line in table_text(table, right=frozenset({2})).split("\n")]
        lines += [f"! {remark}" for remark in self.remarks()]
        if self.next is not None:
            options = ("--state", self.state, "--after", self.next)
            lines.append(f"older  {pipeline_command('rows', self.pipeline, *options)}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "schema": SCHEMA,
            "pipeline": self.pipeline,
            "model": self.model,
            "state": self.state.value,
            "at": iso(self.at),
            "rows": [asdict(one) for one in self.rows],
            "next": self.next,
            "is_whole": self.is_whole,
            "refused": self.refused,
        }
