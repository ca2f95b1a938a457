"""The columns of a dispatched row, as a mixin beside `LockColumns` and `ScheduleColumns`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Integer, String, Text, text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from rowlock.rows.columns import for_type_checkers
from rowlock.rows.database_time import UtcDateTime, database_now, due_at_once
from rowlock.rows.row_dialect import rows_of

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
    return rows_of(compiler).empty_object()


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
