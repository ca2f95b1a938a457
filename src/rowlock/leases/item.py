"""The claim ticket: what a holder knows about the row it leased.

The one idea: a holder's trust ends *before* the database's lease does. It is counted on the monotonic clock from the moment at
which the last confirmed claim or renewal was *sent*, so that neither a slow answer nor a wall clock that was set can stretch it.

Source: River anchors its leadership the same way (``internal/leadership``): from the start of the attempt that succeeded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock.clock import monotonic
from rowlock.errors import LeaseLost, PipelineError
from rowlock.rows.leased_table import ModelT

_LOST = float("-inf")


@dataclass(slots=True, eq=False)
class PipelineItem(Generic[ModelT]):
    """One claim of one row.

    Attributes:
        id: the row's primary key.
        lock_token: fences everything written for this claim.
        lock_owner: the pipeline's name.
        lock_expires_at: when the lease ends by the database's clock, as far as this holder has heard.
        prev_lock_expired: the previous holder died with the lease in hand; side effects of its attempt may exist.
        attempt: which attempt this is, 1-based; always 1 for a model without `ScheduleColumns`.
        place: its place in line: when it was due, in seconds since the epoch; minus infinity if it was never processed.
        trusted_until: end of trust on the monotonic clock, in seconds. Written by the heartbeater, read by everybody.
    """

    id: Any
    lock_token: UUID
    lock_owner: str
    lock_expires_at: datetime
    prev_lock_expired: bool
    attempt: int
    place: float
    trusted_until: float
    session_factory: async_sessionmaker[AsyncSession] = field(repr=False)
    _row: ModelT | None = field(default=None, repr=False)

    @property
    def row(self) -> ModelT:
        """The row as it was read under the token when work began: a detached instance; changing it writes nothing.

        Raises:
            PipelineError: the item has not left the queue yet.
        """
        if self._row is None:
            raise PipelineError(
                "the row is read when work on the item begins; it is not there while the item is queued"
            )
        return self._row

    @row.setter
    def row(self, row: ModelT) -> None:
        self._row = row

    @property
    def has_row(self) -> bool:
        """Whether the row was read."""
        return self._row is not None

    @property
    def remaining(self) -> timedelta:
        """Time left in which this holder may trust its lease, unless it is renewed; never negative."""
        return timedelta(seconds=max(0.0, self.trusted_until - monotonic())) if not self.is_lost else timedelta(0)

    @property
    def is_lost(self) -> bool:
        """Whether trust has ended. It never comes back for this token."""
        return self.trusted_until == _LOST

    def is_trusted(self) -> bool:
        """Whether the holder may still act on its lease."""
        return monotonic() < self.trusted_until

    def lose(self) -> None:
        """End trust for good."""
        self.trusted_until = _LOST

    def session(self) -> AsyncSession:
        """Return a new short session of the host's factory, to be used as ``async with item.session() as session``.

        Keep it short: heavy work belongs outside of sessions. What is written through it is not fenced by the lease.

        Raises:
            LeaseLost: the lease can no longer be trusted.
        """
        if not self.is_trusted():
            raise LeaseLost(pipeline=self.lock_owner, row_id=self.id)
        return self.session_factory()
