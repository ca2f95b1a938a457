"""How many steps are cut at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.streams.cut_plan import (
    BYTES_TOGETHER_MAX,
    ROWS_TOGETHER_MAX,
    STEPS_TOGETHER_MAX,
    Checkpoint,
    Cut,
    CutBounds,
    FlowCuts,
    NoCut,
    ShardProgress,
    SourceView,
    plan_cut,
    plan_cuts,
    rows_looked_at,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
FLOW = FlowCuts(next_step=7, now=NOON, frontier=7, checkpoint_step=6, checkpoint_at=NOON)


def lagging(rows: int, *, mark: int | None = None, size: int = 1, name: str = "a") -> SourceView:
    """Return a source that has so many rows, from position 1 on."""
    end = rows if mark is None else mark
    return SourceView(name, upto=0, mark=end, ahead=range(1, rows + 1), sizes=[size] * rows)


def cuts(
    *sources: SourceView, flow: FlowCuts = FLOW, shards: Sequence[int] = (7,), **options: Any
) -> list[Cut]:
    """Plan cuts of which there is one at least."""
    checkpoint = options.pop("checkpoint", Checkpoint())
    progress = [ShardProgress(step) for step in shards]
    bounds = CutBounds(**{"step_rows_max": 10, **options})
    found = plan_cuts(flow, sources, progress, clock=NOON, checkpoint=checkpoint, bounds=bounds)
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(1, [1]), (10, [10]), (19, [10]), (20, [10, 10]), (35, [10, 10, 10]), (330, [10] * 32)],
)
def test_full_steps_are_cut_at_once(rows: int, expected: list[int]) -> None:
    """A flow that lags would look at its sources for each step; or steps would have fewer rows
    than they may, or be without number.
    """
    assert [cut.rows for cut in cuts(lagging(rows))] == expected


def test_rows_and_bytes_together_have_bounds() -> None:
    """What is done in one transaction would be without bounds."""
    rows = cuts(lagging(3 * ROWS_TOGETHER_MAX), step_rows_max=ROWS_TOGETHER_MAX // 2)
    assert sum(cut.rows for cut in rows) == ROWS_TOGETHER_MAX
    large = cuts(lagging(50, size=BYTES_TOGETHER_MAX // 25))
    assert [cut.rows for cut in large] == [10, 10]
    assert len(cuts(lagging(50_000), step_rows_max=20_000)) == 1


def test_steps_ahead_of_a_slow_shard_have_a_bound() -> None:
    """Steps would be cut further ahead of a slow shard than the host allows."""
    found = cuts(lagging(300), shards=[7, 5], steps_ahead_max=6)
    assert [cut.step for cut in found] == [7, 8, 9, 10]


def test_nothing_is_cut_behind_a_snapshot() -> None:
    """A shard that does many steps together would write none as of the snapshot."""
    flow = replace(FLOW, snapshot_requested=True)
    assert [cut.is_snapshot for cut in cuts(lagging(300), flow=flow)] == [True]


def test_checkpoints_come_by_number() -> None:
    """Each step behind a request would write the states, or none of those cut at once."""
    flow = replace(FLOW, checkpoint_requested=True)
    found = cuts(lagging(90), flow=flow, checkpoint=Checkpoint(steps=3))
    assert [cut.is_checkpoint for cut in found] == [True, False, False] * 3


@pytest.mark.parametrize(("dirty_keys_max", "count"), [(50, 1), (300, 3), (10_000, 30)])
def test_states_that_are_not_written_have_a_bound(dirty_keys_max: int, count: int) -> None:
    """A replica would keep the states of many steps more than the host allows, since it requests
    a checkpoint too late.
    """
    rarely = Checkpoint(steps=1_000)
    found = cuts(lagging(300), checkpoint=rarely, dirty_keys_max=dirty_keys_max)
    assert len(found) == count


def test_nothing_above_the_mark_is_cut() -> None:
    """A row that commits late would be passed over."""
    found = cuts(lagging(40, mark=25))
    assert [cut.upto["a"] for cut in found] == [10, 20]


def test_why_there_is_none() -> None:
    """A paused flow would be cut, or an idle one."""
    paused = replace(FLOW, is_running=False)
    for flow, source in ((paused, lagging(300)), (FLOW, lagging(0))):
        found = plan_cuts(flow, [source], [ShardProgress(7)], clock=NOON, checkpoint=Checkpoint())
        assert isinstance(found, NoCut)


@given(rows=st.lists(st.integers(0, 60), min_size=1, max_size=3), step_rows_max=st.integers(1, 20))
def test_cuts_at_once_are_those_one_by_one(rows: list[int], step_rows_max: int) -> None:
    """Steps would differ by how many of them are cut at once."""
    sources = [lagging(count, name=str(number)) for number, count in enumerate(rows)]
    bounds = CutBounds(step_rows_max)
    options: dict[str, Any] = {"clock": NOON, "checkpoint": Checkpoint(), "bounds": bounds}
    found = plan_cuts(FLOW, sources, [ShardProgress(7)], **options)
    if not sum(rows):
        assert found is NoCut.NOTHING_NEW
        return
    assert isinstance(found, list)
    for number, one in enumerate(found):
        flow = replace(FLOW, next_step=FLOW.next_step + number)
        assert one == plan_cut(flow, sources, [ShardProgress(flow.next_step)], **options)
        sources = [replace(source, upto=one.upto[source.name]) for source in sources]
    for before, after in pairwise(found):
        assert all(after.upto[name] >= upto for name, upto in before.upto.items())


@pytest.mark.parametrize(
    ("step_rows_max", "expected"),
    [(1, STEPS_TOGETHER_MAX), (1_000, ROWS_TOGETHER_MAX), (50_000, 50_000)],
)
def test_how_far_is_looked(step_rows_max: int, expected: int) -> None:
    """A look would read the positions of a whole backlog; or too few of them for the steps."""
    assert rows_looked_at(step_rows_max) == expected
