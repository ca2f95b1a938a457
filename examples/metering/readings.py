"""What the meters measure, and how often, when and where each batch is sent: all of it drawn once,
the same in each process.
"""

from __future__ import annotations

from collections import Counter
from datetime import date
from functools import cache
from random import Random
from typing import NamedTuple

from .dates import DAY, LAST_DAY, days
from .streams import Usage

SEED = 14
METERS = 12
ACCOUNTS = 10
BATCHES_PER_DAY = 2
EVENTS_MAX = 5
UNITS_MAX = 100
SENT_MAX = 5
"""A meter sends a batch so often at most, as it does that has heard no answer."""
LATE_DAYS_MAX = 3
SENDERS = 2
"""Processes that take what meters send."""


class Batch(NamedTuple):
    """What a meter measured; it has a number of its own there."""

    meter: str
    number: int
    events: tuple[Usage, ...]


class Attempt(NamedTuple):
    """A batch on its way: on which day it arrives, and at which process."""

    day: date
    sender: int
    batch: Batch


@cache
def attempts() -> tuple[Attempt, ...]:
    """Return all that meters send, in the order of its arrival."""
    rng = Random(SEED)
    numbers = Counter[int]()
    sent: list[Attempt] = []
    for day in days():
        for meter in rng.sample(range(METERS), BATCHES_PER_DAY):
            account = f"account {meter % ACCOUNTS}"
            events = tuple(
                Usage(account, rng.randint(1, UNITS_MAX)) for _ in range(rng.randint(1, EVENTS_MAX))
            )
            numbers[meter] += 1
            batch = Batch(f"meter {meter}", numbers[meter], events)
            for _ in range(rng.randint(1, SENT_MAX)):
                arrives = min(day + rng.randint(0, LATE_DAYS_MAX) * DAY, LAST_DAY)
                sent.append(Attempt(arrives, rng.randrange(SENDERS), batch))
    rng.shuffle(sent)
    return tuple(sorted(sent, key=lambda attempt: attempt.day))


def arrivals() -> dict[Batch, date]:
    """Return when each batch arrived first."""
    first: dict[Batch, date] = {}
    for attempt in attempts():
        first.setdefault(attempt.batch, attempt.day)
    return first


def measured() -> Counter[tuple[str, date]]:
    """Return the units by account and month: what is to be on the invoices."""
    units = Counter[tuple[str, date]]()
    for batch, day in arrivals().items():
        for event in batch.events:
            units[event.account, day.replace(day=1)] += event.units
    return units
