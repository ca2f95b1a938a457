"""From usage to lines of invoices: a log, a flow that adds up the month of each account and closes
it by a timer, and an output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from operator import attrgetter

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock.streams import FORGET, Forget, StepContext, Streams

from .dates import first_of_next


class Base(DeclarativeBase):
    """All tables of the service; those of the streams join them."""


class InvoiceLine(Base):
    """The units of one account in one month. Nothing here is unique, so a line that was written
    twice would be found twice.
    """

    __tablename__ = "invoice_lines"

    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[str]
    month: Mapped[date]
    units: Mapped[int]


@dataclass(frozen=True)
class Usage:
    """Units that were used by an account."""

    account: str
    units: int


@dataclass(frozen=True)
class Month:
    """The month of an account that is not billed yet."""

    begins: date
    units: int = 0


@dataclass(frozen=True)
class Line:
    """A month that is over."""

    account: str
    month: date
    units: int


streams = Streams(Base)
usage = streams.log("usage", Usage, key=attrgetter("account"))
metering = streams.flow(
    "metering",
    usage,
    shards=4,
    # Each day begins with a jump of the clock, by which a lease of seconds would have run out.
    lock_timeout=timedelta(days=100),
    poll_interval=0.05,
)
lines = metering.output("invoice_lines", Line)


@metering.by_key(state=Month)
def meter(
    step: StepContext, account: str, month: Month | None, events: Sequence[Usage]
) -> Month | Forget:
    """Add up the units of a month; hand out its line when it is over."""
    this = step.now.date().replace(day=1)  # recorded with the step: a replay sees the same
    if month is not None and month.begins < this:
        step.emit(lines, Line(account, month.begins, month.units))
        month = None
    if not events:
        return FORGET  # called by the timer, and nothing has come since
    step.set_timer(first_of_next(this))  # closes the month even if nothing comes
    before = month or Month(this)
    return replace(before, units=before.units + sum(event.units for event in events))
