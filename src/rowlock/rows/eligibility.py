"""Which rows may be claimed, and in which order: the one place that says it.

A row is eligible when it is ready ∧ free or expired ∧ not reserved for another pipeline ∧ its time
has come ∧ no other pipeline awaits it as a related row ∧ no gate keeps it. An expired lease is free
for every pipeline that wants the row. A reservation, which `Reset` leaves, ends by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from typing import Any

from sqlalchemy import ColumnElement, and_, case, exists, not_, or_, true
from sqlalchemy.orm import InstrumentedAttribute

from rowlock.clock import JITTER
from rowlock.rows.database_time import (
    database_now,
    database_time_after,
    is_beyond_time,
    is_in_window,
)
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.lock_tokens import is_reservation_token

OWNER_SEPARATOR = ":"
"""Between the name of an owner and the main row, or hold of a service, that it holds a row for."""
DIGEST_BYTES = 8
"""How long the digest of a key is that is too long for an owner's name."""
RESERVED_BEYOND = timedelta(seconds=6)
"""How long a reset row is kept for its owner beyond its return: the longest rest."""
WINDOW_MAX = timedelta(seconds=6)
"""Longest window for related rows of unknown waits: the longest rest between fetches."""
PRECEDENCE_TIMEOUTS_PER_WINDOW = 4
"""How rarely that window comes: once in so many times the precedence timeout."""


@dataclass(frozen=True, slots=True, eq=False)
class LockingPipeline:
    """A pipeline that locks rows of this model as related rows of its own, main rows in `leased`.

    Attributes:
        on: which main row a related row belongs to; None: each may want each related row.
        precedence_timeout: how long it is respected: related rows that have waited longer, and main
            rows that stepped back longer ago, do not count.
        precedence_timeout_at_work: the same for a main row that is at work again.
    """

    leased: LeasedTable
    owner: str
    ready: ColumnElement[bool]
    on: ColumnElement[bool] | None
    precedence_timeout: timedelta
    precedence_timeout_at_work: timedelta


def is_free(leased: LeasedTable) -> ColumnElement[bool]:
    """No holder has the row, or its lease has expired."""
    expires_at = leased.attribute("lock_expires_at")
    return or_(expires_at.is_(None), expires_at <= database_now())


def is_claimable_by(
    leased: LeasedTable, owner: str, *, reserved_for: timedelta = RESERVED_BEYOND
) -> ColumnElement[bool]:
    """The row is not reserved for another pipeline; a lease that has ended reserves nothing."""
    lock_owner, last = leased.attribute("lock_owner"), leased.attribute("last_processed_at")
    return or_(
        lock_owner.is_(None),
        lock_owner == owner,
        leased.attribute("lock_token").is_not(None),
        last.is_(None),
        last <= database_time_after(-reserved_for),
        # Ahead of the clock: it was set back. A moment ahead is an outcome that was written while
        # this transaction began.
        last >= database_time_after(reserved_for),
    )


def was_main_lease(leased: LeasedTable, lockers: Collection[str] = ()) -> ColumnElement[bool]:
    """The lease on the row is, or was, that of a pipeline which worked on this very row: not that
    of a service, nor of one of `lockers`, which lock rows of this model for themselves alone.
    """
    lock_owner = leased.attribute("lock_owner")
    is_plain = not_(lock_owner.contains(OWNER_SEPARATOR))
    return and_(is_plain, lock_owner.not_in(lockers)) if lockers else is_plain


def related_owner(leased: LeasedTable, owner: str, main_key: object) -> str:
    """Return the name under which `owner` locks a row for the main row of `main_key`."""
    name = f"{owner}{OWNER_SEPARATOR}{main_key}"
    if not leased.fits_owner(name):
        key = str(main_key).encode(errors="surrogatepass")
        name = f"{owner}{OWNER_SEPARATOR}{blake2b(key, digest_size=DIGEST_BYTES).hexdigest()}"
    leased.check_owner(name)
    return name


def is_owned_by(leased: LeasedTable, owner: str) -> ColumnElement[bool]:
    """The row carries the name of `owner`, alone or with that of a main row or a hold."""
    lock_owner = leased.attribute("lock_owner")
    return or_(lock_owner == owner, lock_owner.startswith(owner + OWNER_SEPARATOR, autoescape=True))


def is_reserved_by(leased: LeasedTable, owner: str) -> ColumnElement[bool]:
    """The row was reset by `owner`, which comes back for it."""
    return and_(leased.attribute("lock_token").is_(None), leased.attribute("lock_owner") == owner)


def is_due(
    leased: LeasedTable,
    min_processing_interval: timedelta,
    *,
    owner: str | None = None,
    reset_interval: timedelta | None = None,
) -> ColumnElement[bool]:
    """The row's time has come; for a row that `owner` has reset, after `reset_interval`."""
    if leased.has_schedule:
        return and_(
            leased.attribute("parked_at").is_(None), leased.attribute("due_at") <= database_now()
        )
    last = leased.attribute("last_processed_at")
    # A stamp behind all times, which was written by hand, would never be over; the claim mends it.
    due = or_(
        last.is_(None), last <= database_time_after(-min_processing_interval), is_beyond_time(last)
    )
    if owner is None or reset_interval is None:
        return due
    return or_(
        due, and_(is_reserved_by(leased, owner), last <= database_time_after(-reset_interval))
    )


def is_awaiting(locking: LockingPipeline) -> ColumnElement[bool]:
    """A main row came back for locks that it could not get: in a SELECT of both models."""
    main = locking.leased
    token, stepped_back_at = main.attribute("lock_token"), main.attribute("last_processed_at")
    since = database_time_after(-locking.precedence_timeout)
    since_at_work = database_time_after(-locking.precedence_timeout_at_work)
    return and_(
        main.attribute("lock_owner") == locking.owner,
        or_(
            and_(token.is_(None), stepped_back_at > since),
            and_(is_reservation_token(token), stepped_back_at > since_at_work),
        ),
        main.attribute("parked_at").is_(None) if main.has_schedule else true(),
        # Nearly the same, and what the index that serves the main rows' own claims knows.
        order_column(main) > since,
        locking.ready,
        true() if locking.on is None else locking.on,
    )


def is_awaited(
    leased: LeasedTable, locking: LockingPipeline, min_processing_interval: timedelta
) -> ColumnElement[bool]:
    """A main row of `locking` came back for locks that it could not get, and this may be one."""
    place = order_column(leased)
    waits_at_most = locking.precedence_timeout
    if not leased.has_schedule:
        waits_at_most += min_processing_interval
    # It is unknown how long a row has waited that was never processed: such rows have a window now
    # and then.
    window = is_in_window(
        PRECEDENCE_TIMEOUTS_PER_WINDOW * locking.precedence_timeout,
        min(WINDOW_MAX, locking.precedence_timeout / 10),
    )
    has_waited_long = case(
        (place.is_(None), window), else_=place < database_time_after(-waits_at_most)
    )
    return and_(
        exists().select_from(locking.leased.model).where(is_awaiting(locking)),
        not_(has_waited_long),
    )


@dataclass(frozen=True, slots=True, eq=False)
class EligibleParts:
    """The parts of the condition under which a pipeline may claim a row.

    Attributes:
        mine: it is not reserved for another pipeline.
        unawaited: for each pipeline that locks such rows, no main row of it awaits this one.
        gates: what else the host makes of claims, such as a pause.
        seen: SELECTs of the host's session return it; only a session can tell.
    """

    ready: ColumnElement[bool]
    free: ColumnElement[bool]
    mine: ColumnElement[bool]
    due: ColumnElement[bool]
    unawaited: tuple[ColumnElement[bool], ...] = ()
    gates: tuple[ColumnElement[bool], ...] = ()
    seen: ColumnElement[bool] = field(default_factory=true)

    @property
    def whole(self) -> ColumnElement[bool]:
        own = (self.ready, self.free, self.mine, self.due, self.seen)
        return and_(*own, *self.unawaited, *self.gates)


def eligible_parts(
    leased: LeasedTable,
    *,
    ready: ColumnElement[bool],
    owner: str,
    min_processing_interval: timedelta,
    reset_interval: timedelta | None = None,
    locking_pipelines: Sequence[LockingPipeline] = (),
    gates: Sequence[ColumnElement[bool]] = (),
) -> EligibleParts:
    reserved_for = RESERVED_BEYOND + (reset_interval or timedelta(0)) * (1 + JITTER)
    return EligibleParts(
        ready,
        is_free(leased),
        is_claimable_by(leased, owner, reserved_for=reserved_for),
        is_due(leased, min_processing_interval, owner=owner, reset_interval=reset_interval),
        tuple(
            not_(is_awaited(leased, locking, min_processing_interval))
            for locking in locking_pipelines
        ),
        tuple(gates),
    )


def is_lockable(leased: LeasedTable, token: object) -> ColumnElement[bool]:
    """No live lease is on the row but `token`'s own. A reservation does not matter: a reset row
    never blocks a pipeline that needs it for a row above.
    """
    return or_(is_free(leased), leased.attribute("lock_token") == token)


def order_column(leased: LeasedTable) -> InstrumentedAttribute[Any]:
    """Return the time by which rows are ordered: when due, or when last processed."""
    return leased.attribute("due_at" if leased.has_schedule else "last_processed_at")


def oldest_first(leased: LeasedTable) -> tuple[ColumnElement[Any], ...]:
    """Return the order of claims: never processed first, or oldest due; then by key."""
    place = order_column(leased).asc()
    return (
        place if leased.has_schedule else place.nulls_first(),
        leased.attribute(leased.key_name).asc(),
    )
