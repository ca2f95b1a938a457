"""Which rows still want something: those that some pipeline wants, and those with a lock column
that is set.

Rows that are to stay leased (`Scenario.keeps_leases`) are the other way round: they want something
while they are not held, or held under a lease that nobody trusts any more.

Not here: for how long they may (``liveness.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, or_, select
from sqlalchemy.orm import Session

from rowlock import Pipeline
from rowlock.rows.leased_table import CLEARED_COLUMNS, LeasedTable

from .environment.engines import Engines
from .judge.state import Place
from .liveness import Liveness
from .scenario import KnowsUnsettled, Scenario
from .trace import Trace, place_of_row


class Quiescence:
    """Knows which rows have not settled, and which of them take too long, now that nothing goes
    wrong any more.
    """

    def __init__(
        self,
        engines: Engines,
        pipelines: Sequence[Pipeline[Any]],
        *,
        scenario: Scenario,
        trace: Trace,
        round_trip_s: float,
        held: Callable[[], Collection[Place]] | None = None,
    ) -> None:
        """Look at the tables of `pipelines`, those of all replicas, and of the rows that they lock,
        from now on. `held` returns the rows that their holders trust to hold.
        """
        self._engines, self._unsettled = engines, scenario.unsettled
        first = {pipeline.name: pipeline for pipeline in reversed(pipelines)}
        # Each replica's own part is known to its own pipeline alone.
        self._pipelines = [
            one for one in pipelines if first[one.name] is one or isinstance(one, KnowsUnsettled)
        ]
        self._keeps_leases, self._held = scenario.keeps_leases, held
        self._liveness = Liveness(
            self._pipelines,
            trace.changes,
            since=engines.clock.now,
            rounds_max=scenario.rounds_max,
            round_trip=timedelta(seconds=round_trip_s),
            gates=scenario.gates,
        )

    def left(self) -> list[tuple[Place, str]]:
        """Return the rows that have not settled, each with what is the matter."""
        tables = tables_of(self._pipelines).values()
        with self._engines.eye.connect() as connection:
            left = []
            for leased in tables:
                is_kept = leased.model in self._keeps_leases
                left += _left_in(connection, leased, self._wants(leased), may_be_held=is_kept)
                if is_kept and self._held is not None:
                    left += _abandoned_in(connection, leased, self._held())
            return left

    def late(
        self, left: Collection[Place], *, hungry: Collection[str], served: bool
    ) -> list[tuple[Place, str]]:
        """Return the rows that have waited for too long; see `Liveness.look`."""
        with Session(self._engines.eye) as session:
            now = self._engines.clock.now
            return list(
                self._liveness.look(session, now, unsettled=left, hungry=hungry, served=served)
            )

    def _wants(self, leased: LeasedTable) -> ColumnElement[bool]:
        own = [pipeline for pipeline in self._pipelines if pipeline.leased.table is leased.table]
        wants = or_(False, *(self._unsettled(pipeline) for pipeline in own))
        if leased.model in self._keeps_leases:
            is_ready = or_(False, *(pipeline.ready() for pipeline in own))
            wants = or_(wants, and_(is_ready, _is_without_holder(leased, self._engines.clock.now)))
        return and_(wants, leased.column("parked_at").is_(None)) if leased.has_schedule else wants


def tables_of(pipelines: Sequence[Pipeline[Any]]) -> dict[str, LeasedTable]:
    """Return the tables that pipelines lease rows of, related ones among them, by name."""
    locked = [lock.leased for pipeline in pipelines for lock in pipeline.declared_locks]
    return {
        leased.table.name: leased
        for leased in (*(pipeline.leased for pipeline in pipelines), *locked)
    }


def _is_without_holder(leased: LeasedTable, now: datetime) -> ColumnElement[bool]:
    return or_(leased.column("lock_token").is_(None), leased.column("lock_expires_at") <= now)


def _left_in(
    connection: Connection, leased: LeasedTable, wants: ColumnElement[bool], *, may_be_held: bool
) -> list[tuple[Place, str]]:
    owner, token = leased.column("lock_owner"), leased.column("lock_token")
    is_held = or_(*(leased.column(name).is_not(None) for name in CLEARED_COLUMNS))
    is_unsettled = wants if may_be_held else or_(wants, is_held)
    statement = select(leased.key, wants, owner, token).where(is_unsettled).order_by(leased.key)
    return [
        (place_of_row(leased.table.name, key), _matter(is_wanting, holder, by))
        for key, is_wanting, holder, by in connection.execute(statement)
    ]


def _abandoned_in(
    connection: Connection, leased: LeasedTable, held: Collection[Place]
) -> Iterator[tuple[Place, str]]:
    """Yield rows that nobody works on, though they are leased."""
    owner, token = leased.column("lock_owner"), leased.column("lock_token")
    for key, name in connection.execute(select(leased.key, owner).where(token.is_not(None))):
        place = place_of_row(leased.table.name, key)
        if place not in held:
            yield place, f"leased by {name}, which has lost it"


def _matter(is_wanting: object, owner: str | None, token: object) -> str:
    held = (
        f"leased by {owner}"
        if token is not None
        else f"kept for {owner}"
        if owner is not None
        else ""
    )
    return (
        " and ".join(part for part in ("still wants work" if is_wanting else "", held) if part)
        or "has an expiry"
    )
