"""Queries 1, 2, 3, 5, 7, 8 and 12 of Nexmark as flows, each written as is natural here.

Windows are of 10 seconds, and sliding ones hop by 2, as in the suites of Beam and Flink. They
have their beginning and not their end, and are closed when no event of them can arrive any more.

Source: see `nexmark`; https://beam.apache.org/documentation/sdks/java/testing/nexmark/ and
https://github.com/nexmark/nexmark (texts of the queries).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from rowlock.streams import (
    FORGET,
    EventBatch,
    Forget,
    StepContext,
    StreamFlow,
    Streams,
    TableSource,
)

from . import recounts
from .nexmark import AUCTION_SITE, Auction, Base, Bid, Person
from .reference import Reference, by_sql, emitted
from .windows import TUMBLE_MS, Progress, closed_by, hopping_ends, report, tumbling_end

SKIP: Final = 7
"""Query 2 selects each so many-th auction; 123 in the suites, whose streams are longer."""
CATEGORY: Final = 10
LOCAL: Final = frozenset({"OR", "ID", "CA"})


class EuroBid(Base):
    __tablename__ = "euro_bids"
    id: Mapped[int] = mapped_column(primary_key=True)
    auction: Mapped[int]
    bidder: Mapped[int]
    euros: Mapped[int]
    at_ms: Mapped[int]


class LocalItem(Base):
    __tablename__ = "local_items"
    auction: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(String(50))
    city: Mapped[str] = mapped_column(String(50))
    state: Mapped[str] = mapped_column(String(2))


def currency(streams: Streams, **settings: Any) -> Reference:
    """Query 1: the price of each bid in euros, at 89 cents a dollar."""
    flow: StreamFlow[Bid] = streams.flow("query 1", Bid, **settings)
    euros = flow.output("euros", into=EuroBid)

    @flow.batch()
    def convert(step: StepContext, batch: EventBatch[Bid], _: Any) -> None:
        columns = (batch.column(name) for name in ("auction", "bidder", "price", "at_ms"))
        for auction, bidder, price, at_ms in zip(*columns, strict=True):
            values = {"auction": auction, "bidder": bidder, "euros": price * 89 // 100}
            step.emit(euros, {**values, "at_ms": at_ms})

    found = by_sql("SELECT auction, bidder, euros, at_ms FROM euro_bids")
    return Reference(flow, AUCTION_SITE, found, by_sql(recounts.CURRENCY))


class Selected(NamedTuple):
    auction: int
    price: int


def selection(streams: Streams, **settings: Any) -> Reference:
    flow: StreamFlow[Bid] = streams.flow("query 2", Bid, **settings)
    selected = flow.output("selected", Selected)

    @flow.by_key()
    def select_bids(step: StepContext, auction: str, _: None, bids: list[Bid]) -> None:
        if int(auction) % SKIP == 0:
            for bid in bids:
                step.emit(selected, Selected(bid.auction, bid.price))

    return Reference(flow, AUCTION_SITE, emitted(selected), by_sql(recounts.selection(SKIP)))


@dataclass(frozen=True)
class Seller:
    """What query 3 knows of a person.

    Attributes:
        entry: name, city and state; None as long as the person has not come in.
        waiting: auctions that were opened before.
    """

    entry: tuple[str, str, str] | None = None
    waiting: list[int] = field(default_factory=list)


def local_items(streams: Streams, **settings: Any) -> Reference:
    """Query 3: who sells in some states, in one category, and by which auctions."""
    flow: StreamFlow[Person | Auction] = streams.flow("query 3", Person, Auction, **settings)
    items = flow.output("items", into=LocalItem)

    @flow.by_key(state=Seller)
    def join(
        step: StepContext, seller: str, known: Seller | None, events: list[Person | Auction]
    ) -> Seller:
        now = known or Seller()
        auctions = [*now.waiting]
        for event in events:
            if isinstance(event, Person):
                now = replace(now, entry=(event.name, event.city, event.state))
            elif event.category == CATEGORY:
                auctions.append(event.id)
        if now.entry is None:
            return replace(now, waiting=auctions)
        name, city, state = now.entry
        if state in LOCAL:
            for auction in auctions:
                step.emit(items, LocalItem(auction=auction, name=name, city=city, state=state))
        return replace(now, waiting=[])

    found = by_sql("SELECT name, city, state, auction FROM local_items")
    return Reference(flow, AUCTION_SITE, found, by_sql(recounts.LOCAL_ITEMS))


@dataclass(frozen=True)
class Counts:
    """How many bids auctions have in a window, and whether it is over."""

    bids: dict[int, int] = field(default_factory=dict)
    is_over: bool = False


class HotItem(NamedTuple):
    end_ms: int
    auction: int
    bids: int


def hot_items(streams: Streams, **settings: Any) -> Reference:
    """Query 5: the auctions with the most bids of the last ten seconds, each two seconds."""
    flow: StreamFlow[Bid] = streams.flow("query 5", Bid, **settings)
    clock = flow.exchange("clock", Progress)
    windows = flow.exchange("windows", Counts)
    hot = flow.output("hot", HotItem)

    @flow.batch()
    def count(step: StepContext, batch: EventBatch[Bid], _: Any) -> None:
        counts: dict[int, Counter[int]] = {}
        times = batch.column("at_ms")
        for auction, at_ms in zip(batch.column("auction"), times, strict=True):
            for end in hopping_ends(at_ms):
                counts.setdefault(end, Counter())[auction] += 1
        report(step, clock, times, counts)
        step.send_many(windows, counts, [Counts(dict(own)) for own in counts.values()])

    closed_by(clock, windows, closing=Counts(is_over=True))

    @windows.by_key(state=Counts)
    def hottest(
        step: StepContext, end: str, known: Counts | None, parts: list[Counts]
    ) -> Counts | Forget:
        counts = Counter(known.bids if known else {})
        for part in parts:
            counts.update(part.bids)
        if not any(part.is_over for part in parts):
            return Counts(dict(counts))
        most = max(counts.values())
        for auction, bids in counts.items():
            if bids == most:
                step.emit(hot, HotItem(int(end), auction, bids))
        return FORGET

    return Reference(flow, AUCTION_SITE, emitted(hot), by_sql(recounts.HOT_ITEMS))


class Offer(NamedTuple):
    """A bid, in the window that ends then; a result of query 7."""

    end_ms: int
    price: int
    auction: int
    bidder: int
    at_ms: int


@dataclass(frozen=True)
class Highest:
    """The highest bids of a window, all of one price, and whether the window is over."""

    offers: list[Offer] = field(default_factory=list)
    is_over: bool = False


def highest_of(offers: list[Offer]) -> list[Offer]:
    price = max(offer.price for offer in offers)
    return [offer for offer in offers if offer.price == price]


def highest_bids(streams: Streams, **settings: Any) -> Reference:
    """Query 7: the highest bids of each ten seconds."""
    flow: StreamFlow[Bid] = streams.flow("query 7", Bid, **settings)
    clock = flow.exchange("clock", Progress)
    windows = flow.exchange("windows", Highest)
    highest = flow.output("highest", Offer)

    @flow.batch()
    def combine(step: StepContext, batch: EventBatch[Bid], _: Any) -> None:
        offers: dict[int, list[Offer]] = {}
        for bid in batch.rows:
            end = tumbling_end(bid.at_ms)
            offer = Offer(end, bid.price, bid.auction, bid.bidder, bid.at_ms)
            offers.setdefault(end, []).append(offer)
        report(step, clock, batch.column("at_ms"), offers)
        step.send_many(windows, offers, [Highest(highest_of(own)) for own in offers.values()])

    closed_by(clock, windows, closing=Highest(is_over=True))

    @windows.by_key(state=Highest)
    def keep_highest(
        step: StepContext, end: str, known: Highest | None, parts: list[Highest]
    ) -> Highest | Forget:
        own = known.offers if known else []
        offers = highest_of([*own, *(offer for part in parts for offer in part.offers)])
        if not any(part.is_over for part in parts):
            return Highest(offers)
        for offer in offers:
            step.emit(highest, offer)
        return FORGET

    return Reference(flow, AUCTION_SITE, emitted(highest), by_sql(recounts.HIGHEST_BIDS))


@dataclass(frozen=True)
class Newcomer:
    """What query 8 knows of a person.

    Attributes:
        name: None as long as the person has not come in.
        begin_ms: the beginning of the window of that.
        opened_ms: the beginnings of windows in which the person has opened auctions.
        is_reported: the person is a result already.
    """

    name: str | None = None
    begin_ms: int = 0
    opened_ms: list[int] = field(default_factory=list)
    is_reported: bool = False


class NewSeller(NamedTuple):
    id: int
    name: str
    begin_ms: int


def new_sellers(streams: Streams, **settings: Any) -> Reference:
    """Query 8: persons who open auctions in the ten seconds in which they have come in."""
    flow: StreamFlow[Person | Auction] = streams.flow("query 8", Person, Auction, **settings)
    reported = flow.output("reported", NewSeller)

    @flow.by_key(state=Newcomer)
    def watch(
        step: StepContext, person: str, known: Newcomer | None, events: list[Person | Auction]
    ) -> Newcomer:
        now = known or Newcomer()
        opened = set(now.opened_ms)
        for event in events:
            begin = event.at_ms // TUMBLE_MS * TUMBLE_MS
            if isinstance(event, Person):
                now = replace(now, name=event.name, begin_ms=begin)
            else:
                opened.add(begin)
        is_new = now.name is not None and now.begin_ms in opened and not now.is_reported
        if is_new:
            step.emit(reported, NewSeller(int(person), str(now.name), now.begin_ms))
        return replace(now, opened_ms=sorted(opened), is_reported=now.is_reported or is_new)

    return Reference(flow, AUCTION_SITE, emitted(reported), by_sql(recounts.NEW_SELLERS))


class Activity(NamedTuple):
    """The bids of a bidder in a window by the time of the steps; a result of query 12."""

    bidder: int
    begin_ms: int
    bids: int


def activity(streams: Streams, **settings: Any) -> Reference:
    """Query 12: how many bids a person makes in ten seconds, by the time of their processing."""
    by_bidder = TableSource(Bid, position=Bid.position, key=Bid.bidder)
    flow: StreamFlow[Bid] = streams.flow("query 12", by_bidder, **settings)
    ended = flow.output("ended", Activity)

    @flow.by_key(state=Activity)
    def count_bids(
        step: StepContext, bidder: str, known: Activity | None, bids: list[Bid]
    ) -> Activity | Forget:
        begin = int(step.now.timestamp() * 1_000) // TUMBLE_MS * TUMBLE_MS
        if known is not None and known.begin_ms < begin:
            step.emit(ended, known)
            known = None
        if not bids:
            return FORGET if known is None else known
        step.set_timer(datetime.fromtimestamp((begin + TUMBLE_MS) / 1_000, UTC))
        return Activity(int(bidder), begin, len(bids) + (known.bids if known else 0))

    return Reference(
        flow, AUCTION_SITE, emitted(ended), recounts.activity_of(flow, streams), has_timers=True
    )


QUERIES: Final[dict[str, Callable[..., Reference]]] = {
    "1": currency,
    "2": selection,
    "3": local_items,
    "5": hot_items,
    "7": highest_bids,
    "8": new_sellers,
    "12": activity,
}
