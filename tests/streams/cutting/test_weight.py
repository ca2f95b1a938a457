"""For how many rows a cut counts, where steps are put together."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock.streams import EventColumns, Streams
from rowlock.streams.consumers import ROWS_PER_STEP
from rowlock.streams.cut_plan import Cut
from rowlock.streams.cutter import KnownFlow

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_a_step_of_another_flow_counts_for_many_rows() -> None:
    """A shard that lags behind another flow would do so many of its results in one transaction
    that it is out of time.
    """

    class Base(DeclarativeBase):
        pass

    class Payment(EventColumns, Base):
        __tablename__ = "payments"
        __stream_key__ = "account"
        account: Mapped[str] = mapped_column(String(50))

    streams = Streams(Base)
    changed = streams.flow("first", Payment).output("changed", int)
    flow = streams.flow("second", Payment, changed)
    known = KnownFlow(flow._declared)

    def cut(step: int, payments: int, steps: int) -> Cut:
        upto = {"payments": payments, "first/changed": steps}
        return Cut(step, upto, NOON, True, False)

    assert known.weight(cut(0, 100, 5), cut(1, 130, 5)) == 30
    assert known.weight(cut(0, 100, 5), cut(1, 130, 8)) == 30 + 3 * ROWS_PER_STEP
