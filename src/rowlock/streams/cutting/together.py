"""How many steps of a flow that lags are cut and done together.

The one idea: what a step costs, however few rows it has, is the same for many steps whose rows were
found by one look. So they are recorded by one compare-and-set, and whoever lags does all of them in
one transaction (``shards/steering.py``). Each is a step of its own, within the bounds of a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from rowlock.streams.cutting.plan import (
    DEFAULT_BOUNDS,
    Checkpoint,
    Cut,
    CutBounds,
    FlowCuts,
    NoCut,
    ShardProgress,
    SourceView,
    plan_cut,
    rows_ahead,
)

STEPS_TOGETHER_MAX: Final = 32
"""Most steps that are cut at once, and that a lagging shard does in one transaction."""
ROWS_TOGETHER_MAX: Final = 10_000
"""So many rows at most, as positions count, are in steps that are cut at once or done in one
transaction, unless it is one.
"""
BYTES_TOGETHER_MAX: Final = 67_108_864
"""And so many bytes."""
UNWRITTEN_PART: Final = 10
"""Steps that are cut at once and write no states have at most this part of `dirty_keys_max` rows,
unless it is one: a checkpoint is requested between cuts.
"""


def rows_looked_at(step_rows_max: int) -> int:
    """Return of how many next rows of a source the positions are read: those of all steps that may
    be cut together.
    """
    return min(step_rows_max * STEPS_TOGETHER_MAX, max(step_rows_max, ROWS_TOGETHER_MAX))


def plan_cuts(
    flow: FlowCuts,
    sources: Sequence[SourceView],
    shards: Iterable[ShardProgress],
    *,
    clock: datetime,
    checkpoint: Checkpoint,
    bounds: CutBounds = DEFAULT_BOUNDS,
) -> list[Cut] | NoCut:
    """Return the next cut, and behind it further ones that are full; or why there is none.

    The arguments are those of `plan_cut`.
    """
    progress, cuts = list(shards), list[Cut]()
    while True:
        plan = plan_cut(flow, sources, progress, clock=clock, checkpoint=checkpoint, bounds=bounds)
        if isinstance(plan, NoCut):
            return cuts or plan
        if cuts and _is_too_much([*cuts, plan], bounds):
            return cuts
        cuts.append(plan)
        flow, sources = _behind(flow, sources, plan)
        # What does not fill a step may get more rows until that is cut.
        is_full = rows_ahead(sources) >= bounds.step_rows_max
        # Steps that are done together end at a snapshot.
        if plan.is_snapshot or not is_full or len(cuts) == STEPS_TOGETHER_MAX:
            return cuts


def _is_too_much(cuts: Sequence[Cut], bounds: CutBounds) -> bool:
    rows, size = sum(cut.rows for cut in cuts), sum(cut.bytes for cut in cuts)
    unwritten = sum(cut.rows for cut in cuts if not cut.is_checkpoint)
    return (
        rows > ROWS_TOGETHER_MAX
        or size > BYTES_TOGETHER_MAX
        or unwritten > bounds.dirty_keys_max // UNWRITTEN_PART
    )


def _behind(
    flow: FlowCuts, sources: Sequence[SourceView], cut: Cut
) -> tuple[FlowCuts, list[SourceView]]:
    """Return the flow and its sources as they are once a cut is recorded."""
    after = replace(flow, next_step=cut.step + 1, now=cut.now)
    if cut.is_checkpoint:
        after = replace(
            after, checkpoint_step=cut.step, checkpoint_at=cut.now, checkpoint_requested=False
        )
    return after, [replace(source, upto=cut.upto[source.name]) for source in sources]
