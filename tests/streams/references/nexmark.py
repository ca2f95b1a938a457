"""An auction site: persons come in, open auctions and bid, in the proportion 1 : 3 : 46, as
Nexmark has them. Events arrive in another order than they happened in.

The one idea: everything follows from a seed and the number of an event. Half of all bids are for a
hot auction, and half of a hot bidder; a seller may be a person who comes in only later. How late an
event arrives is bounded by `LATE_MS`, as a host would promise it.

Source: P. Tucker, K. Tufte, V. Papadimos, D. Maier, "NEXMark: A Benchmark for Queries over Data
Streams" (2002, draft of 2010); proportions, states and hot keys as in the suite of Apache Beam.
Prices are small here, so that the highest ones are often equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock.streams import EventColumns

from .reference import Fact, Supply

GROUP: Final = 50
PERSONS: Final = 1
AUCTIONS: Final = 3
FIRST_ID: Final = 1_000
FIRST_CATEGORY: Final = 10
CATEGORIES: Final = 5
STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES: Final = ("Phoenix", "Los Angeles", "Boise", "Portland", "Seattle", "Cheyenne")
ACTIVE: Final = 100
"""So many of the last persons, or auctions, are bidders and sellers, or are bid for."""
LEAD: Final = 3
"""So many persons who have not come in yet may sell and bid already."""
HOT_EACH: Final = 20
PRICE_MAX: Final = 300
TUMBLE_MS: Final = 10_000
HOP_MS: Final = 2_000
LATE_MS: Final = 3_000
"""An event arrives at most so long after others that happened later."""
START_MS: Final = 10_000
GAP_MS: Final = 100
SEED: Final = 4


class Base(DeclarativeBase):
    """All tables of the references; those of the streams join them."""


class Person(EventColumns, Base):
    __tablename__ = "persons"
    __stream_key__ = "id"
    id: Mapped[int]
    name: Mapped[str] = mapped_column(String(50))
    city: Mapped[str] = mapped_column(String(50))
    state: Mapped[str] = mapped_column(String(2))
    at_ms: Mapped[int]


class Auction(EventColumns, Base):
    __tablename__ = "auctions"
    __stream_key__ = "seller"
    id: Mapped[int]
    seller: Mapped[int]
    category: Mapped[int]
    at_ms: Mapped[int]


class Bid(EventColumns, Base):
    __tablename__ = "bids"
    __stream_key__ = "auction"
    auction: Mapped[int]
    bidder: Mapped[int]
    price: Mapped[int]
    at_ms: Mapped[int]


def auction_site(events: int) -> Iterator[Fact]:
    """Yield events in the order in which they arrive, one each `GAP_MS`."""
    rng = Random(SEED)
    for number in range(events):
        group, place = divmod(number, GROUP)
        at_ms = START_MS + number * GAP_MS - rng.choice((0, 0, rng.randrange(LATE_MS)))
        persons = group + 1
        auctions = group * AUCTIONS + min(max(place - PERSONS + 1, 1), AUCTIONS)
        if place < PERSONS:
            yield Fact(Person, _person(rng, group, at_ms))
        elif place < PERSONS + AUCTIONS:
            yield Fact(Auction, _auction(rng, auctions - 1, persons, at_ms=at_ms))
        else:
            yield Fact(Bid, _bid(rng, auctions, persons, at_ms=at_ms))


def _person(rng: Random, number: int, at_ms: int) -> dict[str, object]:
    place = rng.randrange(len(STATES))
    return {
        "id": FIRST_ID + number,
        "name": f"person {rng.randrange(100)}",
        "city": CITIES[place],
        "state": STATES[place],
        "at_ms": at_ms,
    }


def _auction(rng: Random, number: int, persons: int, *, at_ms: int) -> dict[str, object]:
    return {
        "id": FIRST_ID + number,
        "seller": FIRST_ID + _one_of(rng, persons + LEAD),
        "category": FIRST_CATEGORY + rng.randrange(CATEGORIES),
        "at_ms": at_ms,
    }


def _bid(rng: Random, auctions: int, persons: int, *, at_ms: int) -> dict[str, object]:
    return {
        "auction": FIRST_ID + _one_of(rng, auctions),
        "bidder": FIRST_ID + _one_of(rng, persons + LEAD),
        "price": int(PRICE_MAX ** rng.random()),
        "at_ms": at_ms,
    }


def _one_of(rng: Random, count: int) -> int:
    """Return the number of one of the last of `count`; half of the time of the hot one."""
    if rng.random() < 0.5:
        return (count - 1) // HOT_EACH * HOT_EACH
    return count - 1 - rng.randrange(min(count, ACTIVE))


AUCTION_SITE: Final = Supply("auction site", auction_site)
