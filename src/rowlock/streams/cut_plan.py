"""Where the next step is cut: one pure decision from what a replica has read.

A cut is recorded only if `FlowCuts.next_step` is still the number of its step, so two replicas that
decide at the same time make one cut. What is read may be out of date in one direction only: a mark
is lower than it could be, a shard further than it seems. Then a cut has fewer rows, or none is
made; it never goes back and never passes a mark.

A flow that lags has several steps cut and done together, since a step costs the same however few
rows it has: one compare-and-set records them, and a shard that lags does all of them in one
transaction. Each is a step of its own, within the bounds of a step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import accumulate
from typing import Final, NamedTuple

STEP_ROWS_MAX = 10_000
"""Most rows of a step, over all sources and shards, by default."""
STEP_BYTES_MAX = 67_108_864
"""Most bytes of what may be long in these rows, by default."""
STEPS_AHEAD_MAX = 64
"""How many steps are cut ahead of the slowest shard that is held and not parked; then steps
grow instead.
"""
DIRTY_KEYS_MAX = 100_000
"""With so many states that are not written a replica requests a checkpoint, by default."""
CHECKPOINT_STEPS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How often the state is written.

    With every step, by default: then nothing is ever replayed. Otherwise the state of the steps
    between is kept in memory, and a new holder replays them.

    Attributes:
        steps: every so many steps.
        seconds: and, at the latest, this long after the last time; None is no limit.

    Raises:
        ValueError: a number is out of bounds.
        TypeError: it is no number.
    """

    steps: int = 1
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int):
            raise TypeError(f"the steps of a checkpoint are an int, such as 50, not {self.steps!r}")
        if not isinstance(self.seconds, int | float | None):
            raise TypeError(
                f"the seconds of a checkpoint are a number, such as 10, not {self.seconds!r}"
            )
        if not 1 <= self.steps <= CHECKPOINT_STEPS_MAX:
            msg = f"a checkpoint every {self.steps} steps; it must be 1 to {CHECKPOINT_STEPS_MAX}"
            raise ValueError(msg)
        if self.seconds is not None and not self.seconds > 0:
            msg = f"a checkpoint every {self.seconds} seconds; it must be more than none"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class SourceView:
    name: str
    upto: int  # the position up to which it is cut
    mark: int  # its high-water mark: no row can appear at or below this position any more
    # Positions of the next rows, ascending; one more than a step may have are enough. A ``range``
    # does where each position has a row, or where few are missing; where several rows have one
    # position, it stands there for each of them.
    ahead: Sequence[int] = ()
    has_more: bool = False  # there may be rows behind `ahead` and below `mark`
    # How many bytes each row of `ahead` has; empty where that does not matter
    sizes: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ShardProgress:
    step: int  # the step that it does next
    # Its earliest timer; None if it has none, or if that is not known here
    timer_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class FlowCuts:
    next_step: int  # the number of the step that is cut next; the first is 0
    is_running: bool = True
    now: datetime | None = None  # the time of the last cut; None before the first
    frontier: int = 0  # every shard has done all steps below this one
    checkpoint_step: int | None = None
    checkpoint_at: datetime | None = None
    snapshot_step: int | None = None
    checkpoint_requested: bool = False
    snapshot_requested: bool = False
    # The last snapshot is kept for its readers and must not be replaced
    snapshot_in_use: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    step: int
    # The last position of each source that belongs to it, by the name of the source
    upto: Mapping[str, int]
    now: datetime  # its time; never before that of an earlier step
    is_checkpoint: bool  # all shards write their state with it
    is_snapshot: bool  # and that state is kept until a later snapshot replaces it
    # How many rows it has; where `SourceView.ahead` is a ``range``, at most. Not recorded
    rows: int = field(default=0, compare=False)
    bytes: int = field(default=0, compare=False)  # how many these have, as far as sizes are known


class CutBounds(NamedTuple):
    # Most rows of a step, unless a position has more; one of each source at least
    step_rows_max: int = STEP_ROWS_MAX
    step_bytes_max: int = STEP_BYTES_MAX  # most bytes of these, unless a row of a source has more
    steps_ahead_max: int = STEPS_AHEAD_MAX
    dirty_keys_max: int = DIRTY_KEYS_MAX


DEFAULT_BOUNDS: Final = CutBounds()


class NoCut(Enum):
    NOT_RUNNING = "the flow is paused or stopped"
    TOO_FAR_AHEAD = "a shard has too many steps to do"
    NOTHING_NEW = "there is nothing new"


def plan_cut(
    flow: FlowCuts,
    sources: Sequence[SourceView],
    shards: Sequence[ShardProgress],
    *,
    clock: datetime,
    checkpoint: Checkpoint,
    bounds: CutBounds = DEFAULT_BOUNDS,
) -> Cut | NoCut:
    """Return the next cut, or why there is none."""
    # `shards` are those that are known here, held and not parked; all such, if steps are not to run
    # ahead.
    # `clock` is the time of the database, so that all replicas have one.
    if not flow.is_running:
        return NoCut.NOT_RUNNING
    if any(flow.next_step - shard.step >= bounds.steps_ahead_max for shard in shards):
        return NoCut.TOO_FAR_AHEAD
    now = clock if flow.now is None else max(clock, flow.now)
    upto, rows, size = _reach(sources, bounds)
    is_snapshot = _may_snapshot(flow)
    at = overdue_at(flow, checkpoint)
    is_wanted = is_snapshot or flow.checkpoint_requested or (at is not None and at <= now)
    is_checkpoint = is_wanted or _is_due_by_number(flow, checkpoint)
    if not (rows or is_wanted or any(_has_timer_due(shard, flow, now) for shard in shards)):
        return NoCut.NOTHING_NEW
    return Cut(flow.next_step, upto, now, is_checkpoint, is_snapshot, rows=rows, bytes=size)


def _reach(sources: Sequence[SourceView], bounds: CutBounds) -> tuple[dict[str, int], int, int]:
    """Return how far a step reaches in each source, how many rows it has, and how many bytes."""
    spans = [_span(source) for source in sources]
    counts = [end - begin for begin, end in spans]
    # One row of each source at least: otherwise one would wait for as long as others have more.
    shares = row_shares(counts, max(bounds.step_rows_max, sum(map(bool, counts))))
    sizes = [
        source.sizes[begin : begin + share]
        for source, (begin, _), share in zip(sources, spans, shares, strict=True)
    ]
    if sum(map(sum, sizes)) > bounds.step_bytes_max:
        shares = _within(sizes, shares, bounds.step_bytes_max)
    upto, rows, size = {}, 0, 0
    for source, (begin, end), share in zip(sources, spans, shares, strict=True):
        is_rest = begin + share == end and (end < len(source.ahead) or not source.has_more)
        if is_rest:
            # Behind its last row there is none up to the mark.
            upto[source.name] = max(source.upto, source.mark)
        else:
            upto[source.name] = _last_whole(source.ahead, begin, share) if share else source.upto
        count = bisect_right(source.ahead, upto[source.name]) - begin
        rows += count
        size += sum(source.sizes[begin : begin + count])
    return upto, rows, size


def _within(sizes: Sequence[Sequence[int]], shares: Sequence[int], bytes_max: int) -> list[int]:
    """Return how many of its next rows each source has in a step of `bytes_max` bytes."""
    # One at least: otherwise a large row would wait for as long as another source has small ones.
    sums = [list(accumulate(own)) for own in sizes]
    limits = row_shares([own[-1] if own else 0 for own in sums], bytes_max)
    return [
        max(1, bisect_right(own, limit)) if own else share
        for own, limit, share in zip(sums, limits, shares, strict=True)
    ]


def _last_whole(ahead: Sequence[int], begin: int, share: int) -> int:
    """Return the last position all of whose rows are among the `share` rows from `begin` on."""
    # Where the first one has more rows than that, it is that one: a position belongs to one step.
    end = begin + share
    last = ahead[end - 1]
    if end == len(ahead) or ahead[end] != last:
        return last
    first = bisect_left(ahead, last)
    return ahead[first - 1] if first > begin else last


def _span(source: SourceView) -> tuple[int, int]:
    """Return which of the positions ahead are behind the last cut and not above the mark."""
    begin = bisect_right(source.ahead, source.upto)
    return begin, max(begin, bisect_right(source.ahead, source.mark))


def row_shares(available: Sequence[int], most: int) -> list[int]:
    """Return the share of each source: all of those that have few, equal parts of the others."""
    shares, left = [0] * len(available), most
    for done, index in enumerate(sorted(range(len(available)), key=available.__getitem__)):
        shares[index] = min(available[index], left // (len(available) - done))
        left -= shares[index]
    return shares


def _is_due_by_number(flow: FlowCuts, checkpoint: Checkpoint) -> bool:
    before = -1 if flow.checkpoint_step is None else flow.checkpoint_step
    return flow.next_step - before >= checkpoint.steps


def overdue_at(flow: FlowCuts, checkpoint: Checkpoint) -> datetime | None:
    """Return when a checkpoint is to be made though nothing comes; None if never."""
    before = -1 if flow.checkpoint_step is None else flow.checkpoint_step
    # Each step is a checkpoint, so none is overdue.
    if checkpoint.steps == 1 or checkpoint.seconds is None or flow.next_step - before <= 1:
        return None
    # Before the first checkpoint no time is known: it is due at once.
    since = datetime.min.replace(tzinfo=UTC) if flow.checkpoint_at is None else flow.checkpoint_at
    return since + timedelta(seconds=checkpoint.seconds)


def _may_snapshot(flow: FlowCuts) -> bool:
    """Whether a snapshot is wanted, and the last one is complete and has no reader."""
    is_complete = flow.snapshot_step is None or flow.frontier > flow.snapshot_step
    return flow.snapshot_requested and is_complete and not flow.snapshot_in_use


def _has_timer_due(shard: ShardProgress, flow: FlowCuts, now: datetime) -> bool:
    """Whether a shard needs a step for its timers, beyond those that are cut."""
    if shard.timer_at is None or shard.timer_at > now:
        return False
    # A step that is cut and not done comes after the timer, unless the timer is later than it.
    is_covered = flow.now is not None and shard.timer_at <= flow.now
    return not is_covered or shard.step >= flow.next_step


# ---------------------------------------------------------------- together


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
    """Return how many positions of a source are read: for all steps cut together."""
    return min(step_rows_max * STEPS_TOGETHER_MAX, max(step_rows_max, ROWS_TOGETHER_MAX))


def plan_cuts(
    flow: FlowCuts,
    sources: Sequence[SourceView],
    shards: Sequence[ShardProgress],
    *,
    clock: datetime,
    checkpoint: Checkpoint,
    bounds: CutBounds = DEFAULT_BOUNDS,
) -> list[Cut] | NoCut:
    """Return the next cut, and behind it further ones that are full; or why there is none."""
    cuts = list[Cut]()
    while True:
        plan = plan_cut(flow, sources, shards, clock=clock, checkpoint=checkpoint, bounds=bounds)
        if isinstance(plan, NoCut):
            return cuts or plan
        if cuts and _is_too_much([*cuts, plan], bounds):
            return cuts
        cuts.append(plan)
        flow, sources = _behind(flow, sources, plan)
        # What does not fill a step may get more rows until that is cut.
        ahead = sum(end - begin for begin, end in map(_span, sources))
        is_full = ahead >= bounds.step_rows_max
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
    after = replace(flow, next_step=cut.step + 1, now=cut.now)
    if cut.is_checkpoint:
        after = replace(
            after, checkpoint_step=cut.step, checkpoint_at=cut.now, checkpoint_requested=False
        )
    return after, [replace(source, upto=cut.upto[source.name]) for source in sources]
