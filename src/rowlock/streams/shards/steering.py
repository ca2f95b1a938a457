"""What wishes make of the states of shards, and which steps are done together: decisions alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from rowlock.streams.cutting.flow_view import FlowFacts, KnownFlow, RecordedCut
from rowlock.streams.shards.next_action import NextAction
from rowlock.streams.shards.own_shard import OwnShard
from rowlock.streams.shards.states import (
    HeldState,
    Pause,
    Paused,
    PauseRequested,
    ResumeRequested,
    Run,
    ShardState,
    Stop,
    StopRequested,
    TopReached,
    advance,
    earliest_end,
)
from rowlock.streams.shards.steps.steps_of import StepsOf

STEPS_TOGETHER_MAX = 32
"""Most steps that a lagging shard does in one transaction."""
ROWS_TOGETHER_MAX = 10_000
"""So many positions at most are in steps that are done in one transaction, unless it is one."""


def steered(shard: OwnShard, facts: FlowFacts, *, leaves: bool) -> ShardState:
    """Return the state of a shard at the top of the loop, after what is wished of it.

    Args:
        shard: which one.
        facts: the row of the flow.
        leaves: it is to be released: by a shutdown, or since it is another replica's.
    """
    state = shard.state
    if isinstance(state, Run | Pause | Paused):
        if facts.state == "stopped" or leaves:
            # A flow that stops does what is cut; who leaves hands the rest on.
            earliest = earliest_end(state, is_inside=False)
            end = facts.next_step if facts.state == "stopped" else max(earliest, state.written)
            return advance(state, StopRequested(end, facts.next_step))
        if facts.state == "paused" and isinstance(state, Run):
            state = advance(state, PauseRequested())
        elif facts.state == "running" and not isinstance(state, Run):
            state = advance(state, ResumeRequested())
    if isinstance(state, Pause) and state.at == facts.next_step:
        return advance(state, TopReached(facts.next_step, shard.version))
    return state


def steps_of(
    actions: Mapping[OwnShard, NextAction], known: KnownFlow, *, together_max: int
) -> list[StepsOf]:
    """Return what shards that have a step to do are to do now, those together that are at one step
    and alike.
    """
    groups: dict[tuple[int, int, bool], list[OwnShard]] = {}
    for shard, action in actions.items():
        if action in (NextAction.RUN, NextAction.REPLAY):
            state = shard.state
            assert isinstance(state, HeldState)
            is_replay = action is NextAction.REPLAY
            groups.setdefault((state.at, _end(state, is_replay), is_replay), []).append(shard)
    found = []
    for (at, end, is_replay), shards in groups.items():
        before = known.cut(at - 1)
        most = min(together_max, end - at)
        cuts = known.consecutive(at, most)
        if before is not None and cuts:
            found.append(StepsOf(shards, before, _together(before, cuts), is_replay))
    return found


def _end(state: HeldState, is_replay: bool) -> int:
    """Return the step before which the steps that are done now end."""
    if is_replay:
        return state.written
    return state.end if isinstance(state, Stop) else state.at + STEPS_TOGETHER_MAX


def _together(before: RecordedCut, cuts: Sequence[RecordedCut]) -> list[RecordedCut]:
    """Return the first of `cuts` that are done in one transaction: their states are written once,
    so the step of a snapshot is the last of them.
    """
    taken: list[RecordedCut] = []
    positions = 0
    for earlier, cut in pairwise([before, *cuts]):
        positions += sum(cut.upto[name] - earlier.upto[name] for name in cut.upto)
        if taken and (positions > ROWS_TOGETHER_MAX or taken[-1].is_snapshot):
            break
        taken.append(cut)
    return taken


def lowest(shards: Iterable[OwnShard]) -> int | None:
    """Return the lowest step that a shard does next; None if none is open."""
    ats = [shard.state.at for shard in shards if isinstance(shard.state, HeldState)]
    return min(ats, default=None)
