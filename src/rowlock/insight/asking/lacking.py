"""Which related row a main row waits for that stepped back: the one that somebody else has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.insight.questions import RowQuestion, ask_first
from rowlock.insight.verdicts import LackingRow, Refused
from rowlock.pipelines.lock_graph import DeclaredLock
from rowlock.rows.database_time import database_now
from rowlock.rows.leased_table import LeasedTable


async def lacking_row(
    connection: AsyncConnection,
    question: RowQuestion,
    locks: Iterable[DeclaredLock],
    *,
    apart: bool,
) -> LackingRow | None:
    """Return the first related row of a main row that somebody has; None if nobody has one, or the
    host does not say which rows belong to it; joins the caller's transaction.
    """
    for lock in locks:
        if lock.on is None:
            continue
        found = await ask_first(connection, _held(question, lock.leased, lock.on), apart=apart)
        if found is not None and not isinstance(found, Refused):
            return LackingRow(lock.leased.name, str(found[0]), str(found[1] or ""))
    return None


def _held(question: RowQuestion, related: LeasedTable, on: ColumnElement[bool]) -> Any:
    key, owner = related.attribute(related.key_name), related.attribute("lock_owner")
    lives = related.attribute("lock_expires_at") > database_now()
    return select(key, owner).where(on, question.is_it, lives).order_by(key).limit(1)
