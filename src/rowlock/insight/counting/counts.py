"""Counts that never read more than so many rows, and what one pipeline has waiting.

The one idea: each count is of a SELECT with a limit, in the order of claims, so an index serves it;
and one that takes too long is an answer, too. All are asked in one statement, which is one way to
the database; one by one only if that was refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, FromClause, and_, case, func, literal, not_, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.insight.questions import ask_first
from rowlock.insight.verdicts import Refused
from rowlock.rows.database_time import database_now
from rowlock.rows.eligibility import EligibleParts, oldest_first, order_column
from rowlock.rows.indexes.parked_index import PARKED
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.model_check import with_zone

COUNTED_MAX: Final = 10_000
"""How far rows are counted; beyond, it is more."""
KEYS_MAX: Final = 10
"""Most keys of parked rows that are named beside their count."""
HEAD_NAMES: Final = ("leased", "ended", "failing")
"""What is counted among the first rows that a pipeline wants, in one pass."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What one pipeline has waiting; None is what was not counted in time, or cannot be.

    Attributes:
        at: the database's time.
        due: rows that are ready and free and whose time has come; `COUNTED_MAX` and one at most.
        oldest_s: for how long the first of them has been due; None if there is none, or if it was
            never processed.
        leased: live leases of the pipeline among the first `COUNTED_MAX` rows that it wants.
        ended: ended leases among these.
        failing: rows among these that failed the last time.
        parked: rows that were set aside; `COUNTED_MAX` and one at most.
        parked_keys: of those of them that were parked first, `KEYS_MAX` at most, as text.
        resting: rows whose time has not come; `COUNTED_MAX` and one at most.
        refused: what the database says of the condition of claims, if it refuses that.
    """

    at: Any = None
    due: int | None = None
    oldest_s: float | None = None
    leased: int | None = None
    ended: int | None = None
    failing: int | None = None
    parked: int | None = None
    parked_keys: tuple[str, ...] = ()
    resting: int | None = None
    refused: str = ""


def counted_together(
    leased: LeasedTable, parts: EligibleParts, *, owner: str
) -> tuple[dict[str, Any], FromClause]:
    """Return all counts as columns of one SELECT, by names of ours, and from what it is."""
    head = _head(leased, parts, owner).subquery("head")
    return {
        "at": database_now(),
        "due": _due(leased, parts),
        "oldest": _oldest(leased, parts),
        **{name: head.c[name] for name in HEAD_NAMES},
        "resting": _resting(leased, parts),
        **({"parked": _parked(leased)} if _counts_parked(leased) else {}),
    }, head


def counts_read(leased: LeasedTable, answers: Mapping[str, Any], *, refused: str = "") -> Counts:
    """Return what the answers to these say; None is one that was not to be had."""
    at, place = answers.get("at"), leased.column(order_column(leased).key)
    oldest = with_zone(answers.get("oldest"), place)
    oldest_s = None if oldest is None or at is None else max(0.0, (at - oldest).total_seconds())
    counted = ("due", *HEAD_NAMES, "parked", "resting")
    whole: dict[str, Any] = {name: _whole(answers.get(name)) for name in counted}
    return Counts(at, oldest_s=oldest_s, refused=refused, **whole)


async def counts_apart(
    connection: AsyncConnection, leased: LeasedTable, parts: EligibleParts, *, owner: str
) -> Counts:
    """Ask for each count by itself, so that one that takes too long, or is refused, costs itself
    alone; joins the caller's transaction.
    """
    due = select(database_now(), _due(leased, parts), _oldest(leased, parts))
    asked: dict[tuple[str, ...], Any] = {
        ("at", "due", "oldest"): due,
        HEAD_NAMES: _head(leased, parts, owner),
        ("resting",): select(_resting(leased, parts)),
    }
    if _counts_parked(leased):
        asked["parked",] = select(_parked(leased))
    answers, refused = dict[str, Any](), ""
    for names, statement in asked.items():
        found = await ask_first(connection, statement, apart=True)
        if not isinstance(found, Refused):
            answers.update(zip(names, found, strict=True))
        elif "due" in names and not found.may_pass:
            refused = found.why
    return counts_read(leased, answers, refused=refused)


async def first_key(
    connection: AsyncConnection, leased: LeasedTable, parts: EligibleParts
) -> str | None:
    """Return the key of the row that the next claim would take, were it not for a pause; joins the
    caller's transaction.
    """
    conditions = (parts.ready, parts.free, parts.mine, parts.due, *parts.unawaited)
    key = select(leased.attribute(leased.key_name)).where(*conditions)
    found = await ask_first(connection, key.order_by(*oldest_first(leased)).limit(1), apart=True)
    return None if found is None or isinstance(found, Refused) else str(found[0])


def _whole(number: Any) -> int | None:
    return None if number is None else int(number)


def has_parked_index(leased: LeasedTable) -> bool:
    """Whether an index of the model finds parked rows without reading the others."""
    column = leased.column(PARKED)
    return any(index.columns and index.columns[0] is column for index in leased.table.indexes)


def is_resting(leased: LeasedTable, parts: EligibleParts) -> ColumnElement[bool]:
    """The pipeline wants the row, and its time has not come."""
    if not leased.has_schedule:
        return and_(parts.ready, not_(parts.due))
    is_placed = leased.attribute(PARKED).is_(None)
    return and_(parts.ready, is_placed, order_column(leased) > database_now())


def _counts_parked(leased: LeasedTable) -> bool:
    return leased.has_schedule and has_parked_index(leased)


def _due(leased: LeasedTable, parts: EligibleParts) -> Any:
    return _count(leased, and_(parts.ready, parts.free, parts.due), in_order=True)


def _oldest(leased: LeasedTable, parts: EligibleParts) -> Any:
    place, waits = order_column(leased), and_(parts.ready, parts.free, parts.due)
    return select(place).where(waits).order_by(*oldest_first(leased)).limit(1).scalar_subquery()


def _resting(leased: LeasedTable, parts: EligibleParts) -> Any:
    return _count(leased, and_(is_resting(leased, parts), parts.free), in_order=True)


def _parked(leased: LeasedTable) -> Any:
    return _count(leased, leased.attribute(PARKED).is_not(None))


def _count(leased: LeasedTable, where: ColumnElement[bool], *, in_order: bool = False) -> Any:
    # In the order of claims their index serves; else the whole table may be read up to the limit.
    order = oldest_first(leased) if in_order else ()
    first = select(literal(1)).select_from(leased.model).where(where).order_by(*order)
    found = first.limit(COUNTED_MAX + 1).subquery()
    return select(func.count()).select_from(found).scalar_subquery()


def _head(leased: LeasedTable, parts: EligibleParts, owner: str) -> Any:
    attempts = leased.attribute("attempts") if leased.has_schedule else literal(0)
    # The index of claims has no parked rows; without this it would not serve.
    is_placed = leased.attribute(PARKED).is_(None) if leased.has_schedule else true()
    first = (
        select(
            leased.attribute("lock_owner").label("owner"),
            leased.attribute("lock_expires_at").label("expires_at"),
            attempts.label("attempts"),
        )
        .where(parts.ready, is_placed)
        .order_by(*oldest_first(leased))
        .limit(COUNTED_MAX)
        .subquery()
    )
    lives, has_ended = (
        first.c.expires_at > database_now(),
        first.c.expires_at <= database_now(),
    )
    conditions = (and_(lives, first.c.owner == owner), has_ended, first.c.attempts > 0)
    return select(
        *(
            func.coalesce(func.sum(case((condition, 1), else_=0)), 0).label(name)
            for name, condition in zip(HEAD_NAMES, conditions, strict=True)
        )
    )
