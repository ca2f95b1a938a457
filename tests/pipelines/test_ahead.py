"""Tests of how far a pipeline claims ahead of its workers: the rule by itself, without a
database.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.pipelines.item_queue import (
    AHEAD_MAX,
    CLAIM_S_MAX,
    GROWS_BELOW_S,
    SHRINKS_ABOVE_S,
    Ahead,
)
from rowlock.pipelines.loader import FRESH_S


def filled(capacity: int = 20) -> Ahead:
    """Return one that has grown from 20 to `capacity`, and whose last claim brought all that was
    asked for.
    """
    ahead = Ahead(20, 5)
    ahead.claimed(is_full=True)
    while ahead.capacity < capacity:
        ahead.started(0.0, 0.0)
        ahead.look(0.0, is_low=True)
        ahead.claimed(is_full=True)
    return ahead


def test_it_doubles_while_rows_start_at_once() -> None:
    """Work that takes microseconds would wait for a claim of twenty rows again and again."""
    ahead, found = filled(), []
    for _ in range(6):
        ahead.started(0.0, GROWS_BELOW_S)
        ahead.look(1.0, is_low=True)
        ahead.claimed(is_full=True)
        found.append((ahead.capacity, ahead.low_watermark))
    assert found == [
        (40, 10),
        (80, 20),
        (160, 40),
        (AHEAD_MAX, 50),
        (AHEAD_MAX, 50),
        (AHEAD_MAX, 50),
    ]


def test_the_longest_wait_decides() -> None:
    """The first rows of a claim start at once whatever they take, so that it would grow with
    work of any length.
    """
    ahead = filled()
    for wait_s in (0.0, 2 * GROWS_BELOW_S, 0.0):
        ahead.started(0.0, wait_s)
    ahead.look(1.0, is_low=True)
    assert ahead.capacity == 20


def test_a_wait_counts_for_one_claim() -> None:
    """One slow row would keep it from growing for ever."""
    ahead = filled()
    ahead.started(0.0, 2 * GROWS_BELOW_S)
    ahead.look(1.0, is_low=True)
    ahead.claimed(is_full=True)
    ahead.started(0.0, 0.0)
    ahead.look(1.0, is_low=True)
    assert ahead.capacity == 40


def test_it_does_not_grow_before_rows_have_run_out() -> None:
    """A hint for every row would have it grow with each of them, though the queue is full."""
    ahead = filled()
    ahead.started(0.0, 0.0)
    ahead.look(1.0, is_low=False)
    assert ahead.capacity == 20
    ahead.look(1.0, is_low=True)
    assert ahead.capacity == 40


def test_it_grows_once_for_each_claim() -> None:
    """It would be at its most after one claim, as often as the fetcher is woken."""
    ahead = filled()
    for _ in range(3):
        ahead.started(0.0, 0.0)
        ahead.look(1.0, is_low=True)
    assert ahead.capacity == 40


def test_nothing_is_known_before_a_row_has_started() -> None:
    """Rows that nobody begins would be taken for rows that start at once."""
    ahead = filled()
    ahead.look(1.0, is_low=True)
    assert ahead.capacity == 20


def test_it_is_halved_as_soon_as_rows_wait() -> None:
    """Rows would be leased for no good for as long as there are more of them."""
    ahead = filled(160)
    ahead.started(0.0, SHRINKS_ABOVE_S + 0.001)
    ahead.look(1.0, is_low=False)
    assert ahead.capacity == 80
    for queued_at in (0.5, 0.9):
        ahead.started(queued_at, 5.0)
        ahead.look(1.1, is_low=True)
    assert ahead.capacity == 80, "these were queued before it shrank"
    for _ in range(4):
        ahead.started(2.0, 5.0)
        ahead.look(2.0, is_low=False)
    assert (ahead.capacity, ahead.low_watermark) == (20, 5)


def test_a_claim_that_brings_less_ends_it() -> None:
    """A pipeline that has caught up would claim hundreds of rows when the next ones come,
    however long they take.
    """
    ahead = filled(160)
    ahead.claimed(is_full=False)
    assert (ahead.capacity, ahead.low_watermark) == (20, 5)


def test_a_claim_that_takes_long_shrinks_the_next() -> None:
    """Hundreds of wide rows would be claimed at once, or a database that is busy be kept so by
    ever larger claims.
    """
    ahead = filled(160)
    ahead.queued(CLAIM_S_MAX + 0.001)
    ahead.claimed(is_full=True)
    assert ahead.capacity == 80
    ahead.started(0.0, 0.0)
    ahead.look(1.0, is_low=True)
    assert ahead.capacity == 80
    ahead.queued(CLAIM_S_MAX)
    ahead.claimed(is_full=True)
    ahead.started(1.0, 1.0)
    ahead.look(1.0, is_low=True)
    assert ahead.capacity == 160


def test_a_large_queue_does_not_shrink_below_its_size() -> None:
    """A pipeline of many workers would get less than it has today."""
    ahead = Ahead(600, 150)
    ahead.claimed(is_full=True)
    ahead.started(0.0, 0.0)
    ahead.look(0.0, is_low=True)
    assert ahead.capacity == 600


def test_rows_still_come_with_their_claims() -> None:
    """A capacity that has doubled would shrink again, or rows be read a second time since they
    waited.
    """
    assert 2 * GROWS_BELOW_S < SHRINKS_ABOVE_S <= FRESH_S / 2


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("started"), st.floats(0, 1)),
        st.tuples(st.just("look"), st.booleans()),
        st.tuples(st.just("queued"), st.floats(0, 1)),
        st.tuples(st.just("claimed"), st.booleans()),
    ),
    max_size=60,
)


@given(size=st.integers(1, 1000), steps=STEPS)
def test_it_stays_within_its_bounds(size: int, steps: list[tuple[str, float]]) -> None:
    """Some order of claims and starts would have a pipeline lease more than it may, or fewer
    rows than without any of this.
    """
    ahead, now = Ahead(size, max(1, size // 4)), 0.0
    for name, value in steps:
        now += 0.1
        match name:
            case "started":
                ahead.started(now - value, now)
            case "look":
                ahead.look(now, is_low=bool(value))
            case "queued":
                ahead.queued(value)
            case _:
                ahead.claimed(is_full=bool(value))
        assert size <= ahead.capacity <= max(size, AHEAD_MAX)
        assert 1 <= ahead.low_watermark <= ahead.capacity


@pytest.mark.parametrize("capacity", [20, 40])
def test_repr_tells_its_state(capacity: int) -> None:
    """A log line about it would say nothing."""
    assert repr(filled(capacity)) == f"<Ahead {capacity}, at least 20>"
