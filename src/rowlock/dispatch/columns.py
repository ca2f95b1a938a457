"""A dispatched row: its columns, its states, and the texts that clients see.

The states are ``pending → running → completed | failed``; the text of an error begins with its
kind. A text for clients has no paths of the machine where something went wrong, and a bound.
"""

from __future__ import annotations

import re
import traceback
from datetime import datetime
from typing import Any, Final

from sqlalchemy import JSON, ColumnElement, Integer, String, Text, literal_column, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from rowlock import UtcDateTime, database_now
from rowlock.errors import ERROR_TEXT_CHARS_MAX, OutcomeError, shorten
from rowlock.redaction import without_values
from rowlock.rows.database_time import rows_of
from rowlock.spi import (
    LeasedTable,
    Values,
    column_values,
    columns_of,
    due_at_once,
    for_type_checkers,
)

DEDUP_KEY_CHARS_MAX = 255
STATUS_CHARS_MAX = 16
PROGRESS_CHARS_MAX = 256
"""Longest progress text, in characters."""
WORKER_CHARS_MAX = 255


class empty_object(FunctionElement[Any]):  # noqa: N801 - a function of SQL
    """An empty JSON object as a server default, written as the database itself writes it when it is
    asked for the default.

    Alembic compares a default that is written otherwise by ``SELECT default = default``, and
    PostgreSQL's json has no ``=``.
    """

    inherit_cache = True
    type = JSON()


@compiles(empty_object)
def _empty_object(element: empty_object, compiler: SQLCompiler, **kw: Any) -> str:
    return rows_of(compiler).empty_object


@for_type_checkers
class DispatchColumns:
    """What became of a submission.

    Attributes:
        dedup_key: what the work is about; at most one active row of a table has it.
        status: ``pending``, ``running``, ``completed`` or ``failed``.
        submitted_at: when it was submitted; the dispatch deadline counts from here, and is never
            reset.
        started_at: when a worker last accepted it.
        finished_at: when it was completed or failed.
        worker: who accepted it last.
        progress: what the handler said last.
        stages: what need not be done again: names and keys of `StageDone`.
        losses: attempts whose worker or replica died with them.
        error: why it failed: a kind, a colon, a text (`cancelled:`, `capacity:`, `heartbeat lost:`,
            `internal:`, `stale:`, or the handler's own).
        superseded_by: the key of the row that took its place, as text.
    """

    dedup_key: Mapped[str] = mapped_column(
        String(DEDUP_KEY_CHARS_MAX), nullable=False, server_default=text("''")
    )
    status: Mapped[str] = mapped_column(
        String(STATUS_CHARS_MAX), nullable=False, default="pending", server_default="pending"
    )
    submitted_at: Mapped[datetime] = mapped_column(
        UtcDateTime, nullable=False, default=database_now(), server_default=due_at_once()
    )
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime, default=None)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime, default=None)
    worker: Mapped[str | None] = mapped_column(String(WORKER_CHARS_MAX), default=None)
    progress: Mapped[str | None] = mapped_column(String(PROGRESS_CHARS_MAX), default=None)
    stages: Mapped[dict[str, Any]] = mapped_column(
        JSON, nullable=False, default=dict, server_default=empty_object()
    )
    losses: Mapped[int] = mapped_column(Integer, nullable=False, default=0, server_default="0")
    error: Mapped[str | None] = mapped_column(Text, default=None)
    superseded_by: Mapped[str | None] = mapped_column(String(DEDUP_KEY_CHARS_MAX), default=None)


# ---------------------------------------------------------------- states


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

DISPATCH_COLUMNS: Final = tuple(column.name for column in columns_of(DispatchColumns))
"""The columns of `DispatchColumns`; only the pipeline writes them."""


def refuse_own_columns(leased: LeasedTable, values: Values) -> None:
    """Refuse values of columns that the pipeline itself writes."""
    # A submission is due at once, and its deadline is `dispatch_deadline`.
    own = {leased.column(name) for name in (*DISPATCH_COLUMNS, "due_at", "deadline_at")}
    for column in column_values(leased, values):
        if column in own:
            raise OutcomeError(
                f"{column.name} is written by the pipeline; leave it out", column=column.name
            )


def shows_anew(session: AsyncSession, model: type) -> bool:
    """Whether rows that the session has may be refreshed: not over changes that are not written."""
    return session.sync_session.autoflush or not any(
        isinstance(each, model) for each in session.dirty
    )


def is_active(leased: LeasedTable) -> ColumnElement[bool]:
    return leased.attribute("status").in_([literal_column(f"'{state}'") for state in ACTIVE])


# ---------------------------------------------------------------- client text


DETAIL_CHARS_MAX = 8_192
"""Longest traceback that travels to the log, in characters."""

READ_CHARS_MAX = 16 * ERROR_TEXT_CHARS_MAX
"""Of a longer text no more is looked at: to look for paths in ten million characters keeps the
event loop for a second.
"""

_PATH = re.compile(r"(?<![\w/.:])(?:[A-Za-z]:)?(?:[\\/]{1,2}[^\\/\s'\":,;()<>|]+){2,}")
_KIND = re.compile(r"[a-z][a-z0-9 _-]{0,31}")


RESERVED = (CANCELLED, CAPACITY, HEARTBEAT_LOST, STALE)
"""Kinds that only the pipeline gives: clients rely on what they mean."""


def error_of(kind: str, text: str) -> str:
    """``kind: text`` without paths, bounded; what is no kind is ``internal:``."""
    told = f"{kind}: {without_paths(str(text)[:READ_CHARS_MAX])}"
    is_kind = isinstance(kind, str) and _KIND.fullmatch(kind)
    return shorten(told if is_kind else f"{INTERNAL}: {told}", chars_max=ERROR_TEXT_CHARS_MAX)


def failure_of(kind: str, text: str) -> str:
    """The error of a handler: of its own kind, or ``internal:`` if that is reserved."""
    return error_of(INTERNAL, f"{kind}: {text}") if kind in RESERVED else error_of(kind, text)


def detail_of(error: BaseException) -> str:
    told = "".join(traceback.format_exception(without_values(error)))
    return told if len(told) <= DETAIL_CHARS_MAX else f"…{told[1 - DETAIL_CHARS_MAX :]}"


def is_storable(text: str) -> bool:
    """Whether every database takes `text`: a NUL or a lone surrogate would end the transaction."""
    return shorten(text, chars_max=len(text)) == text


def progress_of(text: object) -> str:
    return shorten(without_paths(str(text)[:READ_CHARS_MAX]), chars_max=PROGRESS_CHARS_MAX)


def without_paths(text: str) -> str:
    """Replace each path of two parts or more by its last part: folders tell of the machine."""
    return _PATH.sub(lambda found: re.split(r"[\\/]", found[0])[-1], text)
