"""How long rows may wait once nothing goes wrong any more: a bound for each phase of their way, not
one sum for all of it.

The one idea: whatever a row waits for comes within a time that the settings tell, so who waits
longer is named at once, and a row that goes round for ever is found by its rounds.

| phase | bound |
|---|---|
| it could be taken (B1, B2, B6) | a fetch delay, after a fetch that failed |
| it rests, or waits for a sweep | the processing interval and two sweeps, once due or free |
| one attempt holds it (A4) | what comes before it in the queue, and its own time |
| it is worked on again and again, or steps back | `Scenario.rounds_max`, `RESETS_MAX` |

Not here: what a row still wants (``quiescence.py``).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.orm import Session

from rowlock import Fetcher, Pipeline
from rowlock.clock import JITTER
from rowlock.pipelines.attempt import Gate
from rowlock.pipelines.lock_graph import LockGraph
from rowlock.pipelines.settings import DURATION_MAX
from rowlock.rows.eligibility import PRECEDENCE_TIMEOUTS_PER_WINDOW
from rowlock.rows.leased_table import LeasedTable

from .judge.history import Change
from .judge.state import Place, acquired_token, is_composed, place_of
from .trace import place_of_row

RESETS_MAX: Final = 5_000
"""So often a row may step back for a related one that is busy: some do so twenty times a second."""
SLACK: Final = timedelta(seconds=1)
"""What statements, latencies and the looks of the simulation may take besides."""
ROUND_TRIPS_MAX: Final = 40
"""So many statements may come before a row's next step, those of other writers among them, where
each takes a round trip.
"""


@dataclass(slots=True)
class _Row:
    """What is known of one row since the watch began; `waits` has who could take it, and since
    when.
    """

    changed_at: datetime
    stands_until: datetime
    rounds: int = 0
    resets: int = 0
    token: uuid.UUID | None = None
    held_since: datetime | None = None
    owner: str | None = None
    waits: dict[str, datetime] = field(default_factory=dict)


class Liveness:
    """Follows what happens to each row, and says which has waited for too long."""

    def __init__(
        self,
        pipelines: Sequence[Pipeline[Any]],
        changes: list[Change],
        *,
        since: datetime,
        rounds_max: int,
        round_trip: timedelta = timedelta(0),
        gates: Sequence[Gate] = (),
    ) -> None:
        """Watch from `since` on; `changes` grows meanwhile, and tells how the rows stand. A
        statement takes a `round_trip`. Pipelines of one name are those of several replicas, each
        of which may have rows of its own.
        """
        self._pipelines: dict[str, list[Pipeline[Any]]] = {}
        for pipeline in pipelines:
            self._pipelines.setdefault(pipeline.name, []).append(pipeline)
        kinds = [alike[0] for alike in self._pipelines.values()]
        self._extra = {one.name: _time_for_others(one, kinds) for one in kinds}
        self._bounds = {one.name: _Bounds.of(one, round_trip) for one in kinds}
        self._quiet_max = max(
            (bounds.quiet + self._extra[name] for name, bounds in self._bounds.items()),
            default=timedelta(0),
        )
        self._changes, self._since, self._rounds_max = changes, since, rounds_max
        self._quiet_since = since
        self._gates = gates
        self._read = 0
        self._rows: dict[Place, _Row] = {}

    def look(
        self,
        session: Session,
        now: datetime,
        *,
        unsettled: Collection[Place],
        hungry: Collection[str],
        served: bool,
    ) -> Iterator[tuple[Place, str]]:
        """Find rows that have waited for too long.

        Args:
            session: reads what is committed.
            now: the database's time.
            unsettled: rows that still want something.
            hungry: names of pipelines of which a replica has room.
            served: a service is at work, for which a row may wait.
        """
        self._follow()
        self._quiet_since = now if served else self._quiet_since
        for name, alike in self._pipelines.items():
            claimable = set(self._claimable(session, alike, now)) if name in hungry else set()
            yield from self._kept_waiting(name, claimable, now)
        for place in unsettled:
            if (row := self._rows.get(place)) is not None:
                yield from ((place, text) for text in self._stuck(row, now))

    def _follow(self) -> None:
        new, self._read = self._changes[self._read :], len(self._changes)
        for change in new:
            self._record(change)

    def _record(self, change: Change) -> None:
        after, place = change.after, place_of(change)
        if after is None:
            self._rows.pop(place, None)
            return
        at = max(change.at, self._since)
        row = self._rows.setdefault(place, _Row(at, at))
        row.changed_at, row.token, row.owner = at, after.lock_token, after.lock_owner
        row.stands_until = max(
            time for time in (at, after.lock_expires_at, after.due_at) if time is not None
        )
        row.waits.clear()
        if acquired_token(change) is not None:
            row.held_since = at
            if change.at >= self._since and not is_composed(after.lock_owner):
                row.rounds += 1
        elif after.lock_token is None and after.lock_owner is not None and change.at >= self._since:
            # It stepped back for a related row, which is no round of work.
            row.rounds, row.resets = row.rounds - 1, row.resets + 1

    def _claimable(
        self, session: Session, alike: Sequence[Pipeline[Any]], now: datetime
    ) -> Iterator[Place]:
        pipeline = alike[0]
        leased = pipeline.leased
        owner, ends = leased.attribute("lock_owner"), leased.attribute("lock_expires_at")
        condition = and_(
            or_(*(one.ready() for one in alike)),
            or_(
                owner.is_(None), owner == pipeline.name, leased.attribute("lock_token").is_not(None)
            ),
            or_(ends.is_(None), ends <= now),
            _is_due(leased, now, pipeline.settings.min_processing_interval),
            *(gate(leased, pipeline.name) for gate in self._gates),
        )
        for key in session.scalars(select(leased.attribute(leased.key_name)).where(condition)):
            yield place_of_row(leased.table.name, key)

    def _kept_waiting(
        self, name: str, claimable: Collection[Place], now: datetime
    ) -> Iterator[tuple[Place, str]]:
        for place, row in self._rows.items():
            if place not in claimable:
                row.waits.pop(name, None)
                continue
            waits = now - row.waits.setdefault(name, now)
            if waits > self._bounds[name].claimed + self._extra[name]:
                yield (
                    place,
                    (
                        f"B1: {name} had room for it, and has not taken it for"
                        f" {waits.total_seconds():.3f} s"
                    ),
                )

    def _stuck(self, row: _Row, now: datetime) -> Iterator[str]:
        quiet = now - max(row.stands_until, self._quiet_since)
        if quiet > self._quiet_max:
            yield (
                "B1: it still wants something, and nothing has happened to it for"
                f" {quiet.total_seconds():.3f} s"
            )
        bounds = self._bounds.get(row.owner or "")
        if row.token is not None and row.held_since is not None and bounds is not None:
            held = now - row.held_since
            if held > bounds.held:
                yield f"A4: one attempt of {row.owner} has held it for {held.total_seconds():.3f} s"
        if row.rounds > self._rounds_max:
            yield (
                f"was taken {row.rounds} times since the faults were over, and still wants"
                " something; if it is always ready(), say by Scenario.unsettled() when it has"
                " settled; if it needs more, raise rounds_max"
            )
        if row.resets > RESETS_MAX:
            yield (
                f"stepped back {row.resets} times for related rows since the faults were over, and"
                " never got them"
            )


@dataclass(frozen=True, slots=True)
class _Bounds:
    claimed: timedelta
    quiet: timedelta
    held: timedelta

    @classmethod
    def of(cls, pipeline: Pipeline[Any], round_trip: timedelta) -> _Bounds:
        settings = pipeline.settings
        slack = SLACK + ROUND_TRIPS_MAX * round_trip
        asks_first = pipeline.fetcher_class.fetch_once is not Fetcher.fetch_once
        transactions = (1 + asks_first) * settings.database_timeout
        fetch = settings.fetch_delays[-1] * (1 + JITTER) + transactions + slack
        queue = ceil(settings.queue_capacity / settings.workers_num)
        # Without a limit nothing can be said of how long a row is held.
        processing = settings.process_timeout or DURATION_MAX
        return cls(
            claimed=fetch,
            quiet=settings.min_processing_interval
            + 2 * (1 + JITTER) * settings.orphaned_after
            + fetch,
            held=(1 + queue) * (processing + settings.cancel_grace) + settings.lock_timeout + fetch,
        )


def _time_for_others(pipeline: Pipeline[Any], pipelines: Sequence[Pipeline[Any]]) -> timedelta:
    """Return for how long its rows may stand back for others that lock them as related ones."""
    locking_pipelines = LockGraph(pipelines).locking_pipelines_of(
        pipeline.leased, but=pipeline.name
    )
    precedence_timeout = max(
        (locking.precedence_timeout for locking in locking_pipelines), default=timedelta(0)
    )
    return (PRECEDENCE_TIMEOUTS_PER_WINDOW + 1) * precedence_timeout + (
        pipeline.settings.min_processing_interval if locking_pipelines else timedelta(0)
    )


def _is_due(leased: LeasedTable, now: datetime, interval: timedelta) -> ColumnElement[bool]:
    if leased.has_schedule:
        return and_(leased.attribute("parked_at").is_(None), leased.attribute("due_at") <= now)
    last = leased.attribute("last_processed_at")
    return or_(last.is_(None), last <= now - interval)
