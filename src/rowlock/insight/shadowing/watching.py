"""What looks at a row show while live replicas work on it: whether an outcome was written, and what
else changed. Pure.

The one idea: an outcome stamps `last_processed_at`, and deletes the row otherwise. Whatever changes
before that stamp does was written by something else, so the row is no longer the one of the
snapshot.

Not here: asking the database (``snapshot.py``), and what is made of it (``comparison.py``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Column

from rowlock.insight.shadowing.snapshot import RowLook, RowValues, SnapshotRow, is_same
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.lock_tokens import keeps_reservation
from rowlock.rows.model_check import CLEARED_COLUMNS


@dataclass(frozen=True, slots=True)
class WatchedRow:
    """A row and what the looks have shown of it.

    Attributes:
        before: the row of the snapshot.
        after: as a live replica left it; None as long as none did, and if it is deleted.
        is_deleted: whether it is no longer there.
        stamp: when an outcome was last written, other than one that is compared.
        changed: columns that changed before an outcome was written.
        held_by: other owners than the pipeline that had it.
        was_reset: whether a live replica gave it back for want of a related lock.
        unreadable: which of its columns cannot be read; None as long as all can.
    """

    before: SnapshotRow
    after: RowValues | None = None
    is_deleted: bool = False
    stamp: Any = None
    changed: frozenset[Column[Any]] = frozenset()
    held_by: frozenset[str] = frozenset()
    was_reset: bool = False
    unreadable: str | None = None

    @property
    def is_finished(self) -> bool:
        """Whether nothing more is to be seen: an outcome was written, or it cannot be read."""
        return self.is_deleted or self.after is not None or self.unreadable is not None


@dataclass(frozen=True, slots=True)
class WatchRules:
    """How rows of one pipeline are watched.

    Attributes:
        leased: their table.
        owner: the name of the pipeline.
        content: columns that only the host writes.
    """

    leased: LeasedTable
    owner: str
    content: Collection[Column[Any]]

    def begin(self, row: SnapshotRow) -> WatchedRow:
        """Return a row that was not looked at yet."""
        if row.unreadable is not None:
            return WatchedRow(row, unreadable=row.unreadable)
        return WatchedRow(row, stamp=row.values[self._column("last_processed_at")])

    def after_look(self, row: WatchedRow, look: RowLook) -> WatchedRow:
        """Return what is known of a row after one more look at it."""
        values = look.rows.get(row.before.key)
        if row.is_finished:
            return row
        if (unreadable := look.unreadable.get(row.before.key)) is not None:
            return replace(row, unreadable=unreadable)
        if values is None:
            return replace(row, is_deleted=True)
        stamp = values[self._column("last_processed_at")]
        if stamp == row.stamp:
            return self._unsettled(row, values)
        token, owner, _ = (values[self._column(name)] for name in CLEARED_COLUMNS)
        is_reserved = token is None or keeps_reservation(token)
        if is_reserved and owner == self.owner:
            return replace(row, stamp=stamp, was_reset=True)
        others = {str(owner)} if token is None and owner is not None else set[str]()
        return replace(row, after=values, held_by=row.held_by | others)

    def _unsettled(self, row: WatchedRow, values: RowValues) -> WatchedRow:
        before = row.before.values
        changed = {one for one in self._watched() if is_same(before[one], values[one]) is False}
        owner, token = self._column("lock_owner"), self._column("lock_token")
        is_held = values[token] is not None and values[token] != before[token]
        is_other = is_held and values[owner] != self.owner
        held_by = {str(values[owner])} if is_other else set[str]()
        return replace(row, changed=row.changed | changed, held_by=row.held_by | held_by)

    def _watched(self) -> list[Column[Any]]:
        schedule = ("due_at", "parked_at") if self.leased.has_schedule else ()
        return [*self.content, *map(self._column, schedule)]

    def _column(self, name: str) -> Column[Any]:
        return self.leased.column(name)
