"""The states of a shard at its holder, what each event makes of them, and what its loop does next.

Pure functions, so that each pair of a state and an event can be tried. A state is not the row: the
row says what is written, the state what the loop of the holder is about to do. `at` is the step
that it does next.

| from | event | to |
|---|---|---|
| Stopped | claimed | Run, at the version; steps below `written` are replays |
| Run, Pause, Stop | did step `at` | unchanged, one step further; in Stop only below its end |
| Run | pause | Pause: steps that are cut are still done |
| Pause | top of the loop, all that is cut is done | Paused |
| Pause, Paused | resume | Run |
| Run, Pause, Paused | stop before a step | Stop |
| Stop | top of the loop | below its end unchanged; at it, with that version written, Stopped |
| any | lost | Stopped |

Any other pair is a `ShardStateError`, and nothing is changed. A shard that has failed so often at
one step is parked.

The order of the cases in `next_action` is the order in which they matter: first what was written
before is done again, then what is cut, then the shard is divided, and only then is a step cut or
waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, TypeAlias, assert_never

from rowlock.stream_errors import ShardStateError, StepPassedError
from rowlock.streams.computing.hashing import BUCKETS, BucketRange

FAILURES_MAX = 5
"""Attempts at one step before the shard is parked, by default."""


class StepFailures(NamedTuple):
    """How many attempts at `failed_step` failed, as a shard's row says."""

    failures: int = 0
    failed_step: int | None = None

    def at(self, step: int) -> int:
        """Return how many attempts at `step` failed: those at an earlier step do not count."""
        return self.failures if self.failed_step == step else 0

    def with_failure(self, step: int) -> StepFailures:
        return StepFailures(self.at(step) + 1, step)


def is_to_park(failures: StepFailures, step: int, *, failures_max: int = FAILURES_MAX) -> bool:
    return failures.at(step) >= failures_max


def is_last_attempt(failures: StepFailures, step: int, *, failures_max: int = FAILURES_MAX) -> bool:
    """Whether a shard is parked if the next attempt at `step` fails, so that this attempt moves the
    events of keys that fail to the dead letters, where the stage has those.
    """
    return failures.at(step) + 1 >= failures_max


@dataclass(frozen=True, slots=True)
class Stopped:
    """The shard is not held here."""


@dataclass(frozen=True, slots=True)
class Run:
    """Steps are done as they are cut.

    Attributes:
        at: the step that is done next.
        written: results of all steps below this one are written; those below it are replays.
    """

    at: int
    written: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Steps that are cut are still done; then the shard is `Paused`."""

    at: int
    written: int


@dataclass(frozen=True, slots=True)
class Paused:
    """All steps that are cut are done, and none is begun."""

    at: int
    written: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The steps below `end` are done, then its version is written and the lease released."""

    at: int
    written: int
    end: int


ShardState: TypeAlias = Stopped | Run | Pause | Paused | Stop
ActiveState: TypeAlias = Run | Pause | Stop
"""States in which a step may be done."""
HeldState: TypeAlias = Run | Pause | Paused | Stop


@dataclass(frozen=True, slots=True)
class Claimed:
    """The shard's row was claimed: its state is that at the start of the step `version`, and
    results of all steps below `step` are written.
    """

    version: int
    step: int


@dataclass(frozen=True, slots=True)
class StepDid:
    """A step was done: replayed, or written with its results."""

    step: int


@dataclass(frozen=True, slots=True)
class PauseRequested:
    pass


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    pass


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The shard is to be released: by a shutdown, for a fair share, or because the flow stops.

    Attributes:
        end: the step before which it stops; `earliest_end` is always possible.
        next_step: the first step that is not cut.
        is_inside: the step `at` is under way.
    """

    end: int
    next_step: int
    is_inside: bool = False


@dataclass(frozen=True, slots=True)
class TopReached:
    """The loop is at its top: no step is under way.

    Attributes:
        next_step: the first step that is not cut.
        version: the step at the start of which the written state is.
    """

    next_step: int
    version: int


@dataclass(frozen=True, slots=True)
class ShardLost:
    """The lease was lost, or the holder ends without release: nothing more is written, and what is
    in memory is dropped.
    """


ShardEvent: TypeAlias = (
    Claimed | StepDid | PauseRequested | ResumeRequested | StopRequested | TopReached | ShardLost
)


def advance(state: ShardState, event: ShardEvent) -> ShardState:
    """Return the state after `event`.

    Raises:
        ShardStateError: the event cannot happen in this state; nothing is changed.
        StepPassedError: the shard was to stop before a step that it has begun or done;
            nothing may be written.
    """
    after = _after(state, event)
    if after is None:
        raise ShardStateError(f"{event} cannot happen to a shard in {state}")
    return after


def _after(state: ShardState, event: ShardEvent) -> ShardState | None:
    match event:
        case Claimed():
            return _claimed(state, event)
        case StepDid():
            return _did(state, event)
        case StopRequested():
            return _to_stop(state, event)
        case TopReached():
            return _at_top(state, event)
        case PauseRequested() | ResumeRequested():
            return _paused_or_resumed(state, event)
        case ShardLost():
            return Stopped()


def _claimed(state: ShardState, event: Claimed) -> Run | None:
    if isinstance(state, Stopped) and 0 <= event.version <= event.step:
        return Run(event.version, event.step)
    return None


def _paused_or_resumed(
    state: ShardState, event: PauseRequested | ResumeRequested
) -> Pause | Run | None:
    match event, state:
        case PauseRequested(), Run():
            return Pause(state.at, state.written)
        case ResumeRequested(), Pause() | Paused():
            return Run(state.at, state.written)
        case _:
            return None


def _did(state: ShardState, event: StepDid) -> ActiveState | None:
    if not isinstance(state, ActiveState) or event.step != state.at:
        return None
    if isinstance(state, Stop) and event.step >= state.end:
        return None
    return replace(state, at=state.at + 1)


def _to_stop(state: ShardState, event: StopRequested) -> Stop | None:
    if not isinstance(state, Run | Pause | Paused) or event.end > event.next_step:
        return None
    earliest = earliest_end(state, is_inside=event.is_inside)
    if event.end < earliest:
        raise StepPassedError(at=earliest, end=event.end)
    return Stop(state.at, state.written, event.end)


def _at_top(state: ShardState, event: TopReached) -> ShardState | None:
    match state:
        case Pause() if state.at == event.next_step:
            return Paused(state.at, state.written)
        case Stop() if state.at > state.end:
            raise StepPassedError(at=state.at, end=state.end)
        case Stop() if state.at < state.end:
            return state
        case Stop() if event.version == state.end:
            return Stopped()
        case _:
            return None


def earliest_end(state: ShardState, *, is_inside: bool) -> int:
    """Return the first step before which the shard can stop: the binding answer to a request, which
    is given at once. It is the step that is done next, or the one behind it where that step is
    under way.
    """
    if isinstance(state, Stopped):
        raise ShardStateError("a shard that is not held cannot stop")
    return state.end if isinstance(state, Stop) else state.at + is_inside


def is_replay(state: HeldState) -> bool:
    """Whether the step that is done next was written before, so that its results are compared and
    dropped.
    """
    return state.at < state.written


class NextAction(Enum):
    """What the loop of a shard does next.

    REPLAY: do the step `at` again, compare, and write no results.
    RUN: do the step `at`, which is cut, and write it.
    CUT: try to cut the step `at`.
    WAIT: until something changes.
    SPLIT: divide the shard; one half continues here.
    WRITE: write the state as the version `at`.
    LEAVE: release the lease; or end, where it is not held.
    """

    REPLAY = "replay"
    RUN = "run"
    CUT = "cut"
    WAIT = "wait"
    SPLIT = "split"
    WRITE = "write"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class FlowView:
    """What the loop of a shard needs to know of the flow's row.

    Attributes:
        next_step: the first step that is not cut.
        may_cut: the flow runs: what is found may be cut.
        shards_wanted: how many shards there are to be; a power of two.
    """

    next_step: int
    may_cut: bool
    shards_wanted: int


@dataclass(frozen=True, slots=True)
class ShardView:
    """What the loop needs to know of its shard's row.

    Attributes:
        version: the step at the start of which the written state is.
        has_sent: messages of the step that it does next are recorded as those of this range.
    """

    range: BucketRange
    version: int
    has_sent: bool = False


def next_action(state: ShardState, flow: FlowView, shard: ShardView) -> NextAction:
    """Return what the loop does next, at its top."""
    match state:
        case Stopped():
            return NextAction.LEAVE
        case Paused():
            return NextAction.WAIT
        case Stop():
            return _of_stop(state, shard)
        case Run() | Pause():
            return _of_run(state, flow, shard)
        case _:
            assert_never(state)


def _of_stop(state: Stop, shard: ShardView) -> NextAction:
    if state.at > state.end:
        raise StepPassedError(at=state.at, end=state.end)
    if state.at < state.end:
        return NextAction.REPLAY if is_replay(state) else NextAction.RUN
    return NextAction.LEAVE if shard.version == state.at else NextAction.WRITE


def _of_run(state: Run | Pause, flow: FlowView, shard: ShardView) -> NextAction:
    if state.at > flow.next_step or state.written > flow.next_step:
        msg = f"{state} is ahead of the flow, whose next step is {flow.next_step}"
        raise ShardStateError(msg)
    if is_replay(state):
        return NextAction.REPLAY
    is_wide = shard.range.width * flow.shards_wanted > BUCKETS
    # Halves of a range that has sent would send the same again.
    if isinstance(state, Run) and is_wide and not shard.has_sent:
        return NextAction.SPLIT if shard.version == state.at else NextAction.WRITE
    if state.at < flow.next_step:
        return NextAction.RUN
    return NextAction.CUT if isinstance(state, Run) and flow.may_cut else NextAction.WAIT
