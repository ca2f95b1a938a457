"""When it is known, without a look, that no step is to be cut."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rowlock.streams.cut_plan import Checkpoint, FlowCuts, overdue_at
from rowlock.streams.cutter import HOLDS_FOR_S, Crowd, FlowFacts, Moment, Quiet
from rowlock.streams.inputs.candidates import OpenWriter
from rowlock.streams.inputs.high_water import HighWater

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
FACTS = FlowFacts("running", 7, False)
DONE = HighWater(mark=13, newest=13, held_back_by=())


def holds(
    marks: tuple[HighWater, ...] = (DONE,),
    *,
    facts: FlowFacts = FACTS,
    newest: tuple[int | None, ...] = (13,),
    timers: tuple[datetime, ...] = (),
    overdue_at: datetime | None = None,
    after_s: float = 1.0,
) -> bool:
    """Ask at noon, a while behind a look that found nothing."""
    quiet = Quiet()
    quiet.begins(FACTS, marks, overdue_at=overdue_at, now=100.0)
    moment = Moment(NOON, newest, Crowd(1, 1, 1))
    return quiet.holds(facts, moment, timers, now=100.0 + after_s)


def test_nothing_has_changed() -> None:
    """An idle flow would look at its sources with each poll."""
    assert holds()
    assert holds((HighWater(0, 0, ()),), newest=(None,))
    assert holds(timers=(NOON + SECOND,), overdue_at=NOON + SECOND)


@pytest.mark.parametrize(
    "changed",
    [
        {"newest": (14,)},
        {"newest": (12,)},
        {"newest": (None,)},
        {"facts": FlowFacts("running", 8, False)},
        {"facts": FlowFacts("running", 7, True)},
        {"timers": (NOON + SECOND, NOON)},
        {"overdue_at": NOON},
        {"after_s": HOLDS_FOR_S},
    ],
    ids=["row", "went back", "emptied", "cut", "checkpoint", "timer", "overdue", "long ago"],
)
def test_what_ends_it(changed: dict[str, Any]) -> None:
    """A step that is due would not be cut."""
    assert not holds(**changed)


def test_an_open_transaction() -> None:
    """Rows that come below the last position when it commits would never be read."""
    writer = OpenWriter("1", 1, "a", None)
    assert not holds((HighWater(mark=12, newest=13, held_back_by=(writer,)),))


def test_a_hint_ends_it() -> None:
    """Positions that went back would not be found when rows are added."""
    quiet = Quiet()
    quiet.begins(FACTS, (DONE,), overdue_at=None, now=100.0)
    quiet.ends()
    assert not quiet.holds(FACTS, Moment(NOON, (13,), Crowd(1, 1, 1)), (), now=101.0)


def test_when_a_checkpoint_is_overdue() -> None:
    """States of an idle flow would stay unwritten for longer than declared."""
    flow = FlowCuts(next_step=7, checkpoint_step=3, checkpoint_at=NOON)
    assert overdue_at(flow, Checkpoint(steps=100, seconds=60.0)) == NOON + 60 * SECOND
    assert overdue_at(flow, Checkpoint(steps=100)) is None
    written = FlowCuts(next_step=4, checkpoint_step=3, checkpoint_at=NOON)
    assert overdue_at(written, Checkpoint(steps=100, seconds=60.0)) is None
    assert overdue_at(FlowCuts(next_step=7), Checkpoint(seconds=60.0)) is None
