"""The columns that a host's table lends us, as mixins.

`LockColumns` is required, `ScheduleColumns` optional. Hosts may as well spell the same columns
themselves: what counts is what ``rows/leased_table.py`` finds on the mapped class.

None of them is indexed by the mixin: ``indexes.py`` has the index that serves the claim, and says
why none should contain a ``lock_*`` column.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Column, Integer, String, Text, Uuid
from sqlalchemy.orm import Mapped, MappedColumn, mapped_column

from rowlock.rows.database_time import UtcDateTime, database_now, due_at_once

OWNER_CHARS_MAX = 255
"""Longest owner that `LockColumns` keeps, in characters."""


MixinT = TypeVar("MixinT")


def for_type_checkers(mixin: type[MixinT]) -> type[MixinT]:
    """Keep the annotations of `mixin` from SQLAlchemy, which makes fields of them in a model that
    is a mapped dataclass, and refuses a mixin that is none. As a dataclass, it would make one of
    every model, which serializers take apart.
    """
    mixin.__annotations__ = {}
    return mixin


@for_type_checkers
class LockColumns:
    """The lease, written in the row.

    Attributes:
        lock_token: fences writes of this one claim; null = nobody holds the row.
        lock_owner: the pipeline that holds it, or that asked to be the next to hold it; null =
            anybody may.
        lock_expires_at: until when the lease is valid, by the database's clock.
        last_processed_at: when an outcome was last written; null = never processed, which sorts
            first.
    """

    lock_token: Mapped[uuid.UUID | None] = mapped_column(Uuid, default=None)
    lock_owner: Mapped[str | None] = mapped_column(String(OWNER_CHARS_MAX), default=None)
    lock_expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime, default=None)
    last_processed_at: Mapped[datetime | None] = mapped_column(UtcDateTime, default=None)


@for_type_checkers
class ScheduleColumns:
    """When the row wants to be worked on, and how often that failed.

    Attributes:
        due_at: not before this time; oldest due first.
        attempts: failed attempts since the last success.
        last_error: what the last of them said, shortened.
        parked_at: set aside since then, until somebody releases it; null = in play.
        deadline_at: a failure after this time parks the row; null = no deadline.
    """

    due_at: Mapped[datetime] = mapped_column(
        UtcDateTime, nullable=False, default=database_now(), server_default=due_at_once()
    )
    attempts: Mapped[int] = mapped_column(Integer, nullable=False, default=0, server_default="0")
    last_error: Mapped[str | None] = mapped_column(Text, default=None)
    parked_at: Mapped[datetime | None] = mapped_column(UtcDateTime, default=None)
    deadline_at: Mapped[datetime | None] = mapped_column(UtcDateTime, default=None)


def columns_of(mixin: type) -> list[Column[Any]]:
    """Return new columns as a mixin has them.

    The trap: migrations that were written once must do the same in three years. A column that a
    mixin gets later is left out for them, by its name, and comes as a step of its own.
    """
    columns = []
    for name, found in vars(mixin).items():
        if isinstance(found, MappedColumn):
            one, default = found.column, getattr(found.column.server_default, "arg", None)
            columns.append(Column(name, one.type, nullable=one.nullable, server_default=default))
    return columns
