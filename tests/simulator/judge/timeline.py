"""A row's changes as lines that a person can read.

Not here: what they mean (``checker.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from .history import Change, RowState
from .state import FREE

LINES_MAX: Final = 60
"""Most lines of a timeline; the last ones are shown."""
LINES_BEHIND: Final = 10
"""Most lines of what came after the change that a timeline is about."""

TOKEN_DIGITS: Final = 8


def timeline(changes: Iterable[Change], table: str, key: str, *, around: int | None = None) -> str:
    """Return what happened to one row, and to others under the tokens that it ever carried, one
    change a line.

    A line has the number of the change, the database's time, the transaction (``x12``; where the
    database names it), the row, and what became of it: who took it until when, under which token
    (its first digits), what was written, and for whom a row that was freed is kept.

    Args:
        changes: the whole history.
        table: the table's name.
        key: the row's key as text; see `key_text`.
        around: the number of the change that it is about; None: the end of the history.
    """
    all_changes = list(changes)
    own = [change for change in all_changes if (change.table, change.key) == (table, key)]
    tokens = {token for change in own for token in _tokens(change)}
    told = [
        change
        for change in all_changes
        if (change.table, change.key) == (table, key) or _tokens(change) & tokens
    ]
    behind = sum(change.number > around for change in told) if around is not None else 0
    end = len(told) - max(0, behind - LINES_BEHIND)
    lines = [_line(change) for change in told[max(0, end - LINES_MAX) : end]]
    left_out = end - len(lines)
    return "\n".join([f"  ... {left_out} changes before", *lines] if left_out else lines)


def _tokens(change: Change) -> set[object]:
    states = (change.before, change.after)
    return {
        state.lock_token for state in states if state is not None and state.lock_token is not None
    }


def _line(change: Change) -> str:
    where = f"{change.table} {change.key}"
    transaction = "" if change.transaction is None else f" x{change.transaction}"
    return (
        f"  {change.number:>6} {_clock(change.at)}{transaction}  {where}:"
        f" {', '.join(_words(change))}"
    )


def _words(change: Change) -> list[str]:
    before, after = change.before or FREE, change.after
    if after is None:
        return [f"deleted{_by(before)}"]
    words = [] if change.before is not None else ["there"]
    if before.lock_token == after.lock_token:
        if before.lock_expires_at != after.lock_expires_at:
            words.append(
                f"lease{_by(before)} ends {_clock(after.lock_expires_at)} instead of"
                f" {_clock(before.lock_expires_at)}"
            )
    elif after.lock_token is None:
        words.append(
            f"freed{_by(before)}" + (f", kept for {after.lock_owner}" if after.lock_owner else "")
        )
    else:
        instead = f" instead of{_by(before, '')}" if before.lock_token is not None else ""
        words.append(f"taken{_by(after)} until {_clock(after.lock_expires_at)}{instead}")
    return words + _changed(before, after)


def _changed(before: RowState, after: RowState) -> list[str]:
    words = []
    if (
        before.lock_owner != after.lock_owner
        and before.lock_token is None
        and after.lock_token is None
    ):
        words.append(f"owner {before.lock_owner} -> {after.lock_owner}")
    for name in ("last_processed_at", "due_at", "parked_at"):
        was, became = getattr(before, name), getattr(after, name)
        if was != became:
            words.append(f"{name} {_clock(became)}")
    if before.attempts != after.attempts:
        words.append(f"attempts {before.attempts} -> {after.attempts}")
    own = sorted(after.values.keys() | before.values.keys())
    words += [
        f"{name} {before.values.get(name)!r} -> {after.values.get(name)!r}"
        for name in own
        if before.values.get(name) != after.values.get(name)
    ]
    return words


def _by(state: RowState, by: str = " by") -> str:
    if state.lock_token is None:
        return ""
    return f"{by} {state.lock_owner} ({state.lock_token.hex[:TOKEN_DIGITS]})"


def _clock(time: datetime | None) -> str:
    return "never" if time is None else f"{time:%H:%M:%S.%f}"
