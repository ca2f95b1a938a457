"""One outcome on its way into the database, and what is remembered of the tries to write it.

Not here: who writes it (``pipelines/settling/writer.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic

from rowlock.errors import TransactionTimeout
from rowlock.leases.apply import Written
from rowlock.leases.item import PipelineItem
from rowlock.pipelines.outcomes import Also, Apply, Outcome
from rowlock.rows.leased_table import ModelT


@dataclass(eq=False, slots=True)
class Submission(Generic[ModelT]):
    """One outcome on its way.

    Attributes:
        stamps: what transactions whose end is unknown have written as the row's last time.
        once_written: what became of the outcome if one of these was committed.
        once_dropped: what became of it if the row is no longer held: what a try found whose end is
            unknown, and that left no stamp.
        ended_with: the stamp in the row when `also` ended the transaction: the row tells whether it
            was committed.
        kept_from_batches: it gets a transaction of its own: the last one ran out of time, or a
            batch may still hold it.
        row_is_locked: its own transaction has locked the row: what takes its time now is the
            outcome's own.
    """

    item: PipelineItem[ModelT]
    outcome: Outcome
    stamps: frozenset[datetime] = frozenset()
    once_written: Written = Written.APPLIED
    once_dropped: Written = Written.STALE
    kept_from_batches: bool = False
    row_is_locked: bool = False
    ended_with: datetime | None = None

    @property
    def also(self) -> Also | None:
        """What runs in the same transaction."""
        return self.outcome.also if isinstance(self.outcome, Apply) else None

    @property
    def needs_own_transaction(self) -> bool:
        """Whether it needs a transaction of its own."""
        return self.also is not None or bool(self.item.held) or self.kept_from_batches

    def is_overrun(self, error: Exception) -> bool:
        """Whether the outcome itself took longer than its transaction may; not an outage, nor a
        COMMIT whose answer was lost.
        """
        is_out_of_time = isinstance(error, TransactionTimeout) and not error.was_aborted
        return is_out_of_time and self.row_is_locked and not self.stamps

    def stamp(self, written: Written, stamps: frozenset[datetime]) -> None:
        """Remember the row's last time of a transaction: until its COMMIT is answered, it may or
        may not have happened.
        """
        if written.is_made:
            self.stamps = self.stamps | stamps if self.stamps else stamps
            self.once_written = written
        else:
            self.once_dropped = written
