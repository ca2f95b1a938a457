"""One pipeline as ``status`` sees it: what waits, who runs it, and what is wrong with it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rowlock.insight.asking.open_transactions import ended, holds_rows, transaction_text
from rowlock.insight.counting.counts import COUNTED_MAX, Counts
from rowlock.insight.headlines import ERROR_CHARS_MAX
from rowlock.insight.shown import lasting, made_by, row_command, shown
from rowlock.insight.verdicts import PipelinePause, TableLock, TouchingTransaction

SAID_MAX: Final = 2 * ERROR_CHARS_MAX
"""Most characters of what a replica has said."""


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """What waits for one pipeline, and who runs it.

    Attributes:
        pipeline: its name.
        counts: what waits.
        overdue_after_s: rows that have been due for longer wait too long if nobody runs it.
        pause: why it is paused; None if it is not.
        rows_s: outcomes a second, of all replicas; None if that is unknown.
        p95_s: the time that 95 of a hundred attempts did not exceed, on the slowest replica.
        runs_on: how many replicas run it; None if that is unknown.
        model: the class of its rows.
        lock: who keeps everybody out of its table; None if nobody does.
        first_key: of the row that the next claim would take, if rows wait too long.
        unknown: what could not be asked, and why.
        failing: on how many replicas its claims fail.
        error: what one of these has said.
        busy: how many workers have a row.
        workers: how many there are.
        wing: how far its flow is, or what is inside its graph, in a line.
        idle: how many replicas have it registered, and do not run it.
        left: transactions that were prepared, left behind, and have rows of its table.
    """

    pipeline: str
    counts: Counts
    overdue_after_s: float
    pause: PipelinePause | None = None
    rows_s: float | None = None
    p95_s: float | None = None
    runs_on: int | None = None
    model: str = ""
    lock: TableLock | None = None
    first_key: str | None = None
    unknown: tuple[str, ...] = ()
    failing: int = 0
    error: str = ""
    busy: int = 0
    workers: int = 0
    wing: str | None = None
    idle: int = 0
    left: tuple[TouchingTransaction, ...] = ()

    @property
    def needs_person(self) -> bool:
        """Whether something of it waits until a person does something."""
        return bool(self.troubles)

    @property
    def troubles(self) -> tuple[str, ...]:
        """What a person has to do something about, in a line each; first what keeps all rows."""
        return tuple(_troubles(self))

    @property
    def is_run_by_nobody(self) -> bool:
        """Whether rows are due, and no replica runs it."""
        return self.runs_on == 0 and self.pause is None and bool(self.counts.due)

    @property
    def is_silent(self) -> bool:
        """Whether rows wait too long and no lease of it lives, where nobody knows who runs it."""
        return (
            self.runs_on is None
            and self.pause is None
            and self.has_overdue_rows
            and self.counts.leased == 0
        )

    @property
    def has_overdue_rows(self) -> bool:
        """Whether rows wait too long; of rows that were never processed and have no due time nobody
        knows since when they wait, and they come before all others.
        """
        counts = self.counts
        if not counts.due:
            return False
        return counts.oldest_s is None or counts.oldest_s > self.overdue_after_s

    def state(self, at: datetime | None) -> str:
        """Return who runs it, in words."""
        if self.pause is not None:
            since = self.pause.at
            since_s = 0.0 if since is None or at is None else (at - since).total_seconds()
            by, reason = shown(self.pause.by), shown(self.pause.reason)
            return f"paused by {by} {lasting(since_s)}: {reason}"
        if self.runs_on is None:
            return "NOBODY SEEMS TO RUN IT" if self.is_silent else "?"
        return f"runs on {self.runs_on}" if self.runs_on else "NOBODY RUNS IT"


def _troubles(one: PipelineStatus) -> Iterator[str]:
    if one.lock is not None:
        yield _locked(one.lock)
        return
    yield from (holds_rows(by, one.model) for by in one.left)
    oldest_s = one.counts.oldest_s
    due = "rows are due" if oldest_s is None else f"due {lasting(oldest_s)}"
    register = f"register {made_by(one.pipeline)} with the manager of a replica"
    if one.idle:
        register = f"start the manager of {made_by(one.pipeline)} in a replica"
    if one.counts.refused:
        why = shown(one.counts.refused, SAID_MAX)
        yield f"the condition of its claims is refused: {why}: mend what the error says"
    elif one.is_run_by_nobody:
        yield f"{due}, and no replica runs it: {register}"
    elif one.is_silent:
        yield f"{due}, and no lease of it lives: {register}"
    elif one.failing:
        yield (
            f"claims fail on {one.failing} of {one.runs_on} replicas:"
            f" {shown(one.error, SAID_MAX)}: mend what the error says"
        )
    elif _is_stuck(one) and one.first_key is not None:
        yield (
            f"{due}, though {one.workers - one.busy} of {one.workers} workers have nothing to do:"
            f" {row_command('explain', one.model, one.first_key)}"
        )
    if one.counts.parked:
        yield _parked(one)


def _locked(lock: TableLock) -> str:
    by, does = lock.by, "has locked" if lock.is_granted else "waits to lock"
    return (
        f"{transaction_text(by)}, {does} {shown(lock.table)}, so nothing of"
        f" it can be read or claimed; {ended(by, 'if it hangs')}"
    )


def _is_stuck(one: PipelineStatus) -> bool:
    """Whether rows wait too long beside workers that could have them."""
    return bool(one.pause is None and one.has_overdue_rows and one.busy < one.workers)


def _parked(one: PipelineStatus) -> str:
    count = one.counts.parked or 0
    many = f"more than {COUNTED_MAX:,}" if count > COUNTED_MAX else f"{count:,}"
    told = "1 row is parked" if count == 1 else f"{many} rows are parked"
    if not one.counts.parked_keys:
        return told
    key = one.counts.parked_keys[0]
    such = f", {one.model} {shown(key)}" if count == 1 else f", such as {one.model} {shown(key)}"
    return f"{told}{such}: {row_command('explain', one.model, key)}"
