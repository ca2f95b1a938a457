"""Queries 3, 5 and 12 of Nexmark as flows, each written as is natural here.

Windows are of 10 seconds, and sliding ones hop by 2, as in the suites of Beam and Flink. They
have their beginning and not their end, and are closed when no event of them can arrive any more.

Source: see `nexmark`; https://beam.apache.org/documentation/sdks/java/testing/nexmark/ and
https://github.com/nexmark/nexmark (texts of the queries).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from rowlock.streams import (
    FORGET,
    EventBatch,
    ExchangeStage,
    Forget,
    StepContext,
    StreamFlow,
    Streams,
    TableSource,
)

from . import recounts
from .nexmark import AUCTION_SITE, HOP_MS, LATE_MS, TUMBLE_MS, Auction, Base, Bid, Person
from .reference import Reference, by_sql, emitted

CATEGORY: Final = 10
LOCAL: Final = frozenset({"OR", "ID", "CA"})


class LocalItem(Base):
    __tablename__ = "local_items"
    auction: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(String(50))
    city: Mapped[str] = mapped_column(String(50))
    state: Mapped[str] = mapped_column(String(2))


@dataclass(frozen=True)
class Seller:
    """What query 3 knows of a person."""

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


CLOCK: Final = "clock"
"""The key of the clock."""

P = TypeVar("P")


@dataclass(frozen=True)
class Progress:
    """What a shard has read in a step, and all shards in all steps."""

    newest_ms: int
    ends_ms: list[int]


def closed_by(clock: ExchangeStage[Progress], windows: ExchangeStage[P], *, closing: P) -> None:
    """Have `clock` send `closing` to each of `windows` that is over."""

    @clock.by_key(state=Progress)
    def close(
        step: StepContext, key: str, known: Progress | None, reports: list[Progress]
    ) -> Progress:
        so_far = [*reports, known] if known else reports
        newest = max(one.newest_ms for one in so_far)
        ends = set(chain.from_iterable(one.ends_ms for one in so_far))
        over = sorted(end for end in ends if end <= newest - LATE_MS)
        step.send_many(windows, over, [closing] * len(over))
        return Progress(newest, sorted(ends.difference(over)))


def report(
    step: StepContext, clock: ExchangeStage[Progress], times_ms: list[Any], ends_ms: Iterable[int]
) -> None:
    """Send the clock how far the events of a shard are."""
    step.send(clock, CLOCK, Progress(max(times_ms), sorted(ends_ms)))


def hopping_ends(at_ms: int) -> range:
    first = (at_ms // HOP_MS + 1) * HOP_MS
    return range(first, first + TUMBLE_MS, HOP_MS)
