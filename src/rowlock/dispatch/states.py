"""The states of a dispatched row: ``pending → running → completed | failed``, and what an error
begins with.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import ColumnElement, literal_column
from sqlalchemy.ext.asyncio import AsyncSession

from rowlock.errors import OutcomeError
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import Values, column_values

PENDING: Final = "pending"
RUNNING: Final = "running"
COMPLETED: Final = "completed"
FAILED: Final = "failed"

ACTIVE: Final = (PENDING, RUNNING)
"""What counts against the ceiling, and keeps its `dedup_key` to itself."""
ACTIVE_SQL: Final = "status IN ('pending', 'running')"
"""The same as SQL, for the partial indexes: the database uses them only where a condition
implies this one.
"""

CANCELLED: Final = "cancelled"
CAPACITY: Final = "capacity"
HEARTBEAT_LOST: Final = "heartbeat lost"
INTERNAL: Final = "internal"
STALE: Final = "stale"

DISPATCH_COLUMNS: Final = (
    "dedup_key",
    "status",
    "submitted_at",
    "started_at",
    "finished_at",
    "worker",
    "progress",
    "stages",
    "losses",
    "error",
    "superseded_by",
)
"""What `DispatchColumns` has; nobody but the pipeline writes them."""
WHEN_COLUMNS: Final = ("due_at", "deadline_at")
"""What else says when: a submission is due at once, and its deadline is `dispatch_deadline`."""


def refuse_own_columns(leased: LeasedTable, values: Values) -> None:
    """Refuse values of columns that the pipeline itself writes.

    Raises:
        OutcomeError: there is such a column, or one that is unknown or rowlock's.
    """
    own = {leased.column(name) for name in (*DISPATCH_COLUMNS, *WHEN_COLUMNS)}
    for column in column_values(leased, values):
        if column in own:
            raise OutcomeError(
                f"{column.name} is written by the pipeline; leave it out", column=column.name
            )


def shows_anew(session: AsyncSession, model: type) -> bool:
    """Whether rows of `model` that the session has may be shown as they are now: not over
    changes that it has not written.
    """
    return session.sync_session.autoflush or not any(
        isinstance(each, model) for each in session.dirty
    )


def is_active(leased: LeasedTable) -> ColumnElement[bool]:
    """The row is pending or running."""
    return leased.attribute("status").in_([literal_column(f"'{state}'") for state in ACTIVE])
