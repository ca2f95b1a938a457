"""Where a step is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock.streams import EventColumns, Streams
from rowlock.streams.consumers import ROWS_PER_STEP
from rowlock.streams.cut_plan import (
    STEPS_AHEAD_MAX,
    Checkpoint,
    Cut,
    CutBounds,
    FlowCuts,
    NoCut,
    ShardProgress,
    SourceView,
    plan_cut,
    row_shares,
)
from rowlock.streams.cutter import KnownFlow

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
FLOW = FlowCuts(next_step=7, now=NOON, frontier=7, checkpoint_step=6, checkpoint_at=NOON)
NEW = SourceView("a", upto=10, mark=13, ahead=(11, 13))
QUIET = SourceView("a", upto=10, mark=13)
READY = (ShardProgress(7),)


def cut(
    flow: FlowCuts = FLOW,
    sources: Sequence[SourceView] = (NEW,),
    shards: Sequence[ShardProgress] = READY,
    **options: Any,
) -> Cut | NoCut:
    """Plan a cut a second after the last one."""
    bounds = {name: options.pop(name) for name in CutBounds._fields if name in options}
    options = {"clock": NOON + SECOND, "checkpoint": Checkpoint(), **options}
    options["bounds"] = CutBounds(**bounds)
    return plan_cut(flow, sources, shards, **options)


def made(*args: Any, **kwargs: Any) -> Cut:
    found = cut(*args, **kwargs)
    assert isinstance(found, Cut)
    return found


def test_first_cut() -> None:
    """A flow would never begin."""
    found = made(FlowCuts(next_step=0), shards=[ShardProgress(0)])
    assert found == Cut(0, {"a": 13}, NOON + SECOND, True, False, rows=2)
    assert found.rows == 2


@pytest.mark.parametrize(
    ("source", "upto", "rows"),
    [
        (SourceView("a", 10, 20, (11, 12), has_more=True), 12, 2),
        (SourceView("a", 10, 20, (11, 12)), 20, 2),
        (SourceView("a", 10, 20, range(11, 21)), 13, 3),
        (SourceView("a", 10, 20, (11, 12, 14, 17)), 14, 3),
        (SourceView("a", 10, 13, (11, 12, 14, 17)), 13, 2),
        (SourceView("a", 10, 10, (11, 12)), 10, 0),
        (SourceView("a", 10, 8, (9, 10)), 10, 0),
        (SourceView("a", 10, 20, (9, 10, 11), has_more=True), 11, 1),
        (SourceView("a", 10, 20, (9, 10), has_more=True), 10, 0),
        (SourceView("a", 10, 20, (11, 11, 12, 12), has_more=True), 11, 2),
        (SourceView("a", 10, 20, (11, 11, 11, 11), has_more=True), 11, 4),
        (SourceView("a", 10, 20, (11, 12, 12, 14)), 12, 3),
    ],
)
def test_reach(source: SourceView, upto: int, rows: int) -> None:
    """A row above the mark would be cut while another is still to appear below it, a step would be
    longer than it may, or a stale look would cut the same rows again. A position that several rows
    have would be divided.
    """
    found = made(replace(FLOW, checkpoint_requested=True), [source], step_rows_max=3)
    assert (found.upto, found.rows) == ({"a": upto}, rows)


@st.composite
def views(draw: st.DrawFn, name: str) -> SourceView:
    """A source as it may have been read, and as long ago as may be."""
    upto = draw(st.integers(0, 30))
    ahead = sorted(draw(st.sets(st.integers(0, 60), max_size=20)))
    return SourceView(name, upto, draw(st.integers(0, 60)), ahead, draw(st.booleans()))


@given(views("a"), views("b"), views("c"), st.integers(1, 25))
def test_cuts_in_general(one: SourceView, two: SourceView, three: SourceView, most: int) -> None:
    """A row would belong to no step, or to two, or to one before it could be seen by all."""
    sources = [one, two, three]
    found = made(replace(FLOW, checkpoint_requested=True), sources, step_rows_max=most)
    inside = 0
    for source in sources:
        upto = found.upto[source.name]
        assert source.upto <= upto <= max(source.upto, source.mark)
        inside += sum(source.upto < position <= upto for position in source.ahead)
        last = source.ahead[-1] if source.ahead else source.upto
        assert not source.has_more or upto <= max(source.upto, last)
    known = sum(s.upto < position <= s.mark for s in sources for position in s.ahead)
    # One of each source at least.
    have_rows = sum(any(s.upto < position <= s.mark for position in s.ahead) for s in sources)
    assert inside == found.rows == min(max(most, have_rows), known)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=16), st.integers(1, 20))
def test_each_source_gets_on(counts: list[int], most: int) -> None:
    """A source would wait for as long as others have more rows, in a flow of small steps."""
    sources = [SourceView(str(n), 0, 9, range(1, 1 + rows)) for n, rows in enumerate(counts)]
    found = made(replace(FLOW, checkpoint_requested=True), sources, step_rows_max=most)
    assert all(found.upto[source.name] > 0 for source in sources)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=16), st.integers(0, 200))
def test_rows_are_shared(available: list[int], most: int) -> None:
    """A table with millions of rows would keep those of another from being processed."""
    shares = row_shares(available, most)
    assert sum(shares) == min(most, sum(available))
    full = [share for share, rows in zip(shares, available, strict=True) if share < rows]
    assert all(0 <= share <= rows for share, rows in zip(shares, available, strict=True))
    assert not full or max(shares) - min(full) <= 1


@pytest.mark.parametrize(
    ("clock", "now"), [(NOON - SECOND, NOON), (NOON, NOON), (NOON + SECOND, NOON + SECOND)]
)
def test_now_never_goes_back(clock: datetime, now: datetime) -> None:
    """A window would be closed, and then get another event."""
    assert made(clock=clock).now == now


def test_flow_that_does_not_run() -> None:
    """The answer to a pause would not be binding."""
    assert cut(replace(FLOW, is_running=False, checkpoint_requested=True)) is NoCut.NOT_RUNNING


def test_nothing_new() -> None:
    """An idle flow would write a step a second for ever."""
    assert cut(sources=[QUIET]) is NoCut.NOTHING_NEW
    assert cut(sources=[]) is NoCut.NOTHING_NEW
    every = replace(FLOW, checkpoint_step=None, checkpoint_at=None)
    assert cut(every, [QUIET], checkpoint=Checkpoint(seconds=0.1)) is NoCut.NOTHING_NEW


@pytest.mark.parametrize(
    ("shard", "found"),
    [
        (ShardProgress(107 - STEPS_AHEAD_MAX), NoCut.TOO_FAR_AHEAD),
        (ShardProgress(108 - STEPS_AHEAD_MAX), 107),
    ],
)
def test_slow_shards(shard: ShardProgress, found: object) -> None:
    """Steps would be cut a row at a time while one shard is slow."""
    flow = replace(FLOW, next_step=107)
    made_cut = cut(flow, shards=[ShardProgress(107), shard])
    assert (made_cut.step if isinstance(made_cut, Cut) else made_cut) == found


@pytest.mark.parametrize(
    ("shard", "found"),
    [
        (ShardProgress(7, timer_at=NOON + SECOND), 7),
        (ShardProgress(5, timer_at=NOON + SECOND), 7),
        (ShardProgress(7, timer_at=NOON + 2 * SECOND), NoCut.NOTHING_NEW),
        (ShardProgress(7, timer_at=NOON), 7),
        (ShardProgress(6, timer_at=NOON), NoCut.NOTHING_NEW),
    ],
)
def test_timers(shard: ShardProgress, found: object) -> None:
    """A window would not be closed before the next event; or a step that is cut for a timer and not
    yet done would be followed by a thousand more.
    """
    made_cut = cut(sources=[QUIET], shards=[ShardProgress(7), shard])
    assert (made_cut.step if isinstance(made_cut, Cut) else made_cut) == found


def test_timers_go_by_the_time_of_the_step() -> None:
    """With a clock that was set back, a step would be cut in which no timer is due."""
    shard = ShardProgress(7, timer_at=NOON)
    assert made(sources=[QUIET], shards=[shard], clock=NOON - SECOND).now == NOON


@pytest.mark.parametrize(
    ("since", "seconds", "requested", "expected"),
    [
        (1, 1, False, False),
        (2, 1, False, False),
        (3, 1, False, True),
        (1, 1, True, True),
        (2, 10, False, True),
    ],
)
def test_checkpoints(since: int, seconds: int, requested: bool, expected: bool) -> None:
    """A new holder would replay more than the host allowed, or each step would write the state."""
    flow = replace(FLOW, checkpoint_step=FLOW.next_step - since, checkpoint_requested=requested)
    found = made(
        flow, clock=NOON + timedelta(seconds=seconds), checkpoint=Checkpoint(steps=3, seconds=10)
    )
    assert found.is_checkpoint is expected


def test_checkpoint_with_every_step() -> None:
    """By default nothing is ever replayed."""
    assert made().is_checkpoint
    assert made(FlowCuts(next_step=0)).is_checkpoint
    assert not made(FlowCuts(next_step=0), checkpoint=Checkpoint(steps=2)).is_checkpoint
    first = FlowCuts(next_step=1, now=NOON)
    assert made(first, checkpoint=Checkpoint(steps=2)).is_checkpoint


def test_checkpoint_though_nothing_comes() -> None:
    """Steps of yesterday would be replayed, since nothing has come after them."""
    rare = Checkpoint(steps=100, seconds=10)
    flow = replace(FLOW, checkpoint_step=3)
    assert cut(flow, [QUIET], checkpoint=rare) is NoCut.NOTHING_NEW
    late = made(flow, [QUIET], checkpoint=rare, clock=NOON + 10 * SECOND)
    assert (late.is_checkpoint, late.rows) == (True, 0)
    after = replace(flow, next_step=8, checkpoint_step=7)
    assert cut(after, [QUIET], checkpoint=rare, clock=NOON + 99 * SECOND) is NoCut.NOTHING_NEW
    never = replace(flow, checkpoint_step=None, checkpoint_at=None)
    assert made(never, [QUIET], checkpoint=rare).is_checkpoint


def test_requested_checkpoint_is_a_step_without_rows() -> None:
    """A shard that waits for a checkpoint in order to leave would wait for the next event."""
    found = made(replace(FLOW, checkpoint_requested=True), [QUIET])
    assert found == Cut(7, {"a": 13}, NOON + SECOND, True, False, rows=0)


@pytest.mark.parametrize(
    ("changes", "is_snapshot"),
    [
        ({}, True),
        ({"snapshot_step": 6, "frontier": 7}, True),
        ({"snapshot_step": 6, "frontier": 6}, False),
        ({"snapshot_step": 2, "frontier": 6, "snapshot_in_use": True}, False),
        ({"snapshot_requested": False}, False),
    ],
)
def test_snapshots(changes: dict[str, Any], is_snapshot: bool) -> None:
    """A snapshot would be replaced while it is read, or before the last shard has written it: then
    it is of two moments.
    """
    flow = replace(FLOW, **{"snapshot_requested": True, **changes})
    found = made(flow, checkpoint=Checkpoint(steps=100))
    assert (found.is_snapshot, found.is_checkpoint) == (is_snapshot, is_snapshot)
    quiet = cut(flow, [QUIET])
    assert quiet is NoCut.NOTHING_NEW if not is_snapshot else isinstance(quiet, Cut)


@pytest.mark.parametrize(("steps", "seconds"), [(0, None), (100_001, None), (1, 0), (1, -1.0)])
def test_checkpoints_have_bounds(steps: int, seconds: float | None) -> None:
    """A typing error would make a flow that never writes its state."""
    with pytest.raises(ValueError, match="checkpoint"):
        Checkpoint(steps, seconds)


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
