"""Which rows may be claimed, and in which order: the one place that says it.

A row is eligible when it is ready ∧ free or expired ∧ owned by nobody or by this pipeline ∧ its time has come. Pure expressions
for SELECTs of the model; locked rows are skipped by whoever runs them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, or_
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql.elements import UnaryExpression

from rowlock.rows.database_time import database_now, database_time_after
from rowlock.rows.leased_table import LeasedTable


def is_free(leased: LeasedTable[Any]) -> ColumnElement[bool]:
    """Nobody holds the row, or its holder let the lease expire."""
    expires_at = leased.attribute("lock_expires_at")
    return or_(expires_at.is_(None), expires_at <= database_now())


def is_mine_to_take(leased: LeasedTable[Any], owner: str) -> ColumnElement[bool]:
    """No other pipeline holds the row or asked to be the next to hold it."""
    lock_owner = leased.attribute("lock_owner")
    return or_(lock_owner.is_(None), lock_owner == owner)


def is_due(leased: LeasedTable[Any], min_processing_interval: timedelta) -> ColumnElement[bool]:
    """The row's time has come."""
    if leased.has_schedule:
        return and_(leased.attribute("parked_at").is_(None), leased.attribute("due_at") <= database_now())
    last = leased.attribute("last_processed_at")
    return or_(last.is_(None), last <= database_time_after(-min_processing_interval))


def eligible(
    leased: LeasedTable[Any], *, ready: ColumnElement[bool], owner: str, min_processing_interval: timedelta
) -> ColumnElement[bool]:
    """Return the whole condition under which `owner` may claim a row."""
    return and_(ready, is_free(leased), is_mine_to_take(leased, owner), is_due(leased, min_processing_interval))


def place_in_line(leased: LeasedTable[Any]) -> InstrumentedAttribute[Any]:
    """Return the time by which rows are ordered: when due, or when last processed."""
    return leased.attribute("due_at" if leased.has_schedule else "last_processed_at")


def oldest_first(leased: LeasedTable[Any]) -> UnaryExpression[Any]:
    """Return the order of claims: oldest due first, or longest not processed first and never processed before all."""
    place = place_in_line(leased).asc()
    return place if leased.has_schedule else place.nulls_first()
