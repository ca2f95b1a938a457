"""Taxi rides by zone and hour, folded into the host's own table: bursts of rides from one zone, and
rides that arrive hours late. The sums are right at any time, so nothing is closed.

The rides are made from a seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from rowlock.streams import EventColumns, StepContext, StreamFlow, Streams

from .nexmark import Base
from .reference import Fact, Reference, Supply, by_sql

SEED: Final = 5
ZONES: Final = 40
HOUR_S: Final = 3_600
LATE_S_MAX: Final = 5 * HOUR_S
GAP_S: Final = 20
BURST: Final = 30
"""Of so many rides in sequence some come of one zone, as behind a concert."""


class Ride(EventColumns, Base):
    __tablename__ = "rides"
    __stream_key__ = "zone"
    zone: Mapped[str] = mapped_column(String(20))
    ended_s: Mapped[int]
    cents: Mapped[int]


class ZoneHour(Base):
    """The rides of a zone in an hour."""

    __tablename__ = "zone_hours"
    zone: Mapped[str] = mapped_column(String(20), primary_key=True)
    hour: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    rides: Mapped[int] = mapped_column(default=0)
    cents: Mapped[int] = mapped_column(default=0)
    highest: Mapped[int] = mapped_column(default=0)


RECOUNT: Final = f"""
    SELECT zone, ended_s / {HOUR_S}, count(*), sum(cents), max(cents)
    FROM rides GROUP BY zone, ended_s / {HOUR_S}
"""


def rides(count: int) -> Iterator[Fact]:
    """Yield rides in the order in which they are reported."""
    rng = Random(SEED)
    crowded = 0
    for number in range(count):
        if number % BURST == 0:
            crowded = rng.randrange(ZONES)
        zone = crowded if number % (2 * BURST) < BURST else rng.randrange(ZONES)
        late_s = rng.randrange(LATE_S_MAX) if rng.random() < 0.1 else 0
        values = {
            "zone": f"zone {zone}",
            "ended_s": LATE_S_MAX + number * GAP_S - late_s,
            "cents": rng.randrange(300, 9_000),
        }
        yield Fact(Ride, values)


RIDES: Final = Supply("rides", rides)


def zone_hours(streams: Streams, **settings: Any) -> Reference:
    """How many rides each zone has in each hour, what they cost, and the most expensive one."""
    # What is folded is written with every step, in every mode.
    own = {name: value for name, value in settings.items() if name != "checkpoint"}
    flow: StreamFlow[Ride] = streams.flow("taxi", Ride, **own)

    @flow.fold(ZoneHour, by=lambda ride: (ride.zone, ride.ended_s // HOUR_S))
    def add_rides(step: StepContext, hour: ZoneHour, some: Sequence[Ride]) -> None:
        hour.rides += len(some)
        hour.cents += sum(ride.cents for ride in some)
        hour.highest = max(hour.highest, *(ride.cents for ride in some))

    found = by_sql("SELECT zone, hour, rides, cents, highest FROM zone_hours")
    return Reference(flow, RIDES, found, by_sql(RECOUNT))
