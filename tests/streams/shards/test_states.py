"""The states of a shard: each pair of a state and an event."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rowlock.stream_errors import ShardStateError, StepPassedError
from rowlock.streams.shards.states import (
    Claimed,
    Pause,
    Paused,
    PauseRequested,
    ResumeRequested,
    Run,
    ShardEvent,
    ShardLost,
    ShardState,
    StepDid,
    Stop,
    Stopped,
    StopRequested,
    TopReached,
    advance,
    earliest_end,
    is_replay,
)

RUN, PAUSE, PAUSED = Run(5, 3), Pause(5, 3), Paused(5, 3)
STOP, AT_END, PASSED = Stop(5, 3, 7), Stop(5, 3, 5), Stop(5, 3, 4)
STATES: tuple[ShardState, ...] = (Stopped(), RUN, PAUSE, PAUSED, STOP, AT_END, PASSED)
CLAIMED, DID, PAUSES, RESUMES = Claimed(2, 4), StepDid(5), PauseRequested(), ResumeRequested()
TO_STOP, TOP = StopRequested(6, next_step=8), TopReached(next_step=5, version=5)
EVENTS: tuple[ShardEvent, ...] = (CLAIMED, DID, PAUSES, RESUMES, TO_STOP, TOP, ShardLost())
TABLE: dict[tuple[ShardState, ShardEvent], ShardState] = {
    (Stopped(), CLAIMED): Run(2, 4),
    (RUN, DID): Run(6, 3),
    (PAUSE, DID): Pause(6, 3),
    (STOP, DID): Stop(6, 3, 7),
    (RUN, PAUSES): PAUSE,
    (PAUSE, TOP): PAUSED,
    (PAUSE, RESUMES): RUN,
    (PAUSED, RESUMES): RUN,
    (RUN, TO_STOP): Stop(5, 3, 6),
    (PAUSE, TO_STOP): Stop(5, 3, 6),
    (PAUSED, TO_STOP): Stop(5, 3, 6),
    (STOP, TOP): STOP,
    (AT_END, TOP): Stopped(),
    **{(state, ShardLost()): Stopped() for state in STATES},
}
"""The table of the module, with one shard of each kind."""


@pytest.mark.parametrize(("state", "event"), list(product(STATES, EVENTS)))
def test_each_pair(state: ShardState, event: ShardEvent) -> None:
    """A pair that no one thought of would leave a shard in a state that no loop serves."""
    if (state, event) in TABLE:
        assert advance(state, event) == TABLE[state, event]
    elif (state, event) == (PASSED, TOP):
        with pytest.raises(StepPassedError):
            advance(state, event)
    else:
        before = repr(state)
        with pytest.raises(ShardStateError, match=r"cannot happen"):
            advance(state, event)
        assert repr(state) == before


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (RUN, StepDid(4)),
        (RUN, StepDid(6)),
        (AT_END, StepDid(5)),
        (PAUSE, TopReached(next_step=6, version=5)),
        (AT_END, TopReached(next_step=9, version=4)),
        (AT_END, TopReached(next_step=9, version=6)),
        (Stopped(), Claimed(5, 4)),
        (Stopped(), Claimed(-1, 4)),
        (RUN, StopRequested(9, next_step=8)),
        (PAUSED, StopRequested(6, next_step=5, is_inside=True)),
    ],
    ids=str,
)
def test_pairs_with_other_numbers(state: ShardState, event: ShardEvent) -> None:
    """A step would be left out, done twice, or done behind the end; or a shard would be released
    whose state is not written.
    """
    with pytest.raises(ShardStateError):
        advance(state, event)


@pytest.mark.parametrize("state", [RUN, PAUSE])
def test_stop_inside_a_step(state: ShardState) -> None:
    """The step under way would be done behind the end, and dropped or lost."""
    assert earliest_end(state, is_inside=True) == 6
    assert earliest_end(state, is_inside=False) == 5
    with pytest.raises(StepPassedError) as caught:
        advance(state, StopRequested(5, next_step=8, is_inside=True))
    assert (caught.value.at, caught.value.end) == (6, 5)
    stopping = advance(state, StopRequested(6, next_step=8, is_inside=True))
    assert advance(stopping, StepDid(5)) == Stop(6, 3, 6)
    with pytest.raises(StepPassedError):
        advance(state, StopRequested(4, next_step=8))


def test_answer_of_a_shard_that_stops() -> None:
    """A second request would get an answer that contradicts the first."""
    assert earliest_end(STOP, is_inside=True) == 7
    with pytest.raises(ShardStateError):
        earliest_end(Stopped(), is_inside=False)


def test_replays() -> None:
    """Results that are written would be written again, or new ones compared with nothing."""
    state = advance(Stopped(), Claimed(2, 4))
    seen = []
    for step in range(2, 6):
        assert isinstance(state, Run)
        seen.append(is_replay(state))
        state = advance(state, StepDid(step))
    assert seen == [True, True, False, False]


class ShardLife(RuleBasedStateMachine):
    """A shard, its row and its flow, as one holder after another drives them."""

    def __init__(self) -> None:
        super().__init__()
        self.state: ShardState = Stopped()
        self.next_step = self.written = self.version = 0
        self.is_inside = False
        self.done: list[int] = []

    @rule()
    def cut(self) -> None:
        self.next_step += 1

    @rule()
    def claim(self) -> None:
        self.apply(Claimed(self.version, self.written), isinstance(self.state, Stopped))

    @rule()
    def begin(self) -> None:
        state = self.state
        if isinstance(state, Run | Pause | Stop) and state.at < self.next_step:
            self.is_inside = not isinstance(state, Stop) or state.at < state.end

    @precondition(lambda self: self.is_inside)
    @rule(checkpoint=st.booleans())
    def finish(self, checkpoint: bool) -> None:
        """The step that was begun is written, or compared."""
        assert not isinstance(self.state, Stopped)
        step, self.is_inside = self.state.at, False
        if not is_replay(self.state):
            assert step == self.written
            self.written += 1
            self.done.append(step)
            if checkpoint:
                self.version = self.written
        self.apply(StepDid(step), is_allowed=True)

    @rule()
    def pause(self) -> None:
        self.apply(PauseRequested(), isinstance(self.state, Run))

    @rule()
    def resume(self) -> None:
        self.apply(ResumeRequested(), isinstance(self.state, Pause | Paused))

    @rule(more=st.integers(0, 3))
    def stop(self, more: int) -> None:
        if isinstance(self.state, Run | Pause | Paused):
            end = earliest_end(self.state, is_inside=self.is_inside) + more
            event = StopRequested(end, self.next_step, self.is_inside)
            self.apply(event, end <= self.next_step)

    @precondition(lambda self: not self.is_inside)
    @rule()
    def reach_the_top(self) -> None:
        if isinstance(self.state, Stop) and self.state.at == self.state.end:
            self.version = self.state.at
        at_cut = isinstance(self.state, Pause) and self.state.at == self.next_step
        event = TopReached(self.next_step, self.version)
        self.apply(event, at_cut or isinstance(self.state, Stop))

    @rule()
    def lose(self) -> None:
        self.is_inside = False
        self.apply(ShardLost(), is_allowed=True)

    def apply(self, event: ShardEvent, is_allowed: bool) -> None:
        try:
            self.state = advance(self.state, event)
        except ShardStateError:
            assert not is_allowed
        else:
            assert is_allowed

    @invariant()
    def each_step_is_written_once(self) -> None:
        """No step is left out or written twice, and none that is not cut."""
        assert self.done == list(range(self.written))
        assert self.version <= self.written <= self.next_step

    @invariant()
    def a_state_is_where_it_can_be(self) -> None:
        """No shard is ahead of the cuts, or behind its end."""
        if not isinstance(self.state, Stopped):
            assert self.version <= self.state.at <= self.next_step
            assert not isinstance(self.state, Stop) or self.state.at <= self.state.end
            assert not isinstance(self.state, Paused) or not self.is_inside


def test_shard_lives() -> None:
    """A step would be left out or written twice, after pauses, stops and deaths in some order."""
    run_state_machine_as_test(
        ShardLife, settings=settings(max_examples=60, stateful_step_count=60, deadline=None)
    )
