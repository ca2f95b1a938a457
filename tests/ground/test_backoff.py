"""Tests of the delays: bounded, spread, and eager now and then."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.clock import EAGER_CHANCE, JITTER, exponential, fetch_delay, jittered

DELAYS_S = (0.5, 1.0, 2.0, 5.0)
SECONDS = st.floats(min_value=0.001, max_value=10_000)


@dataclass
class Dice:
    """Draws that are known: `at` is the place in the range, 0 the lower and 1 the upper end."""

    at: float = 0.5
    drawn: float = 0.99

    def random(self) -> float:
        return self.drawn

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self.at


@given(SECONDS, st.integers())
def test_jitter_is_bounded(delay_s: float, seed: int) -> None:
    """A heartbeat could come after its lease has ended."""
    moved_s = jittered(delay_s, rng=random.Random(seed))
    assert delay_s * (1 - JITTER) <= moved_s <= delay_s * (1 + JITTER)


def test_jitter_goes_both_ways() -> None:
    """Replicas would march in step."""
    assert jittered(10, rng=Dice(at=0)) == pytest.approx(8)
    assert jittered(10, rng=Dice(at=1)) == pytest.approx(12)
    assert len({jittered(10) for _ in range(20)}) > 1


@pytest.mark.parametrize(
    ("empty", "delay_s"), [(0, 0.5), (1, 0.5), (2, 1.0), (3, 2.0), (4, 5.0), (5, 5.0), (10**9, 5.0)]
)
def test_fetch_delay_walks_to_the_last(empty: int, delay_s: float) -> None:
    """An idle fetcher would ask too often, or fall off the end of its delays."""
    assert fetch_delay(DELAYS_S, empty, rng=Dice()) == delay_s


def test_fetch_delay_is_spread() -> None:
    """All idle replicas would ask at the same moment."""
    assert fetch_delay(DELAYS_S, 4, rng=Dice(at=1)) == pytest.approx(6)
    assert fetch_delay(DELAYS_S, 2, rng=Dice(at=0, drawn=0)) == pytest.approx(0.4)


def test_fetch_delay_is_eager_now_and_then() -> None:
    """Unhinted work would always wait for the longest delay."""
    assert fetch_delay(DELAYS_S, 9, rng=Dice(drawn=EAGER_CHANCE - 0.01)) == 0.5
    assert fetch_delay(DELAYS_S, 9, rng=Dice(drawn=EAGER_CHANCE)) == 5.0
    rng = random.Random(1)
    eager = sum(fetch_delay(DELAYS_S, 9, rng=rng) < 1 for _ in range(10_000))
    assert 0.08 < eager / 10_000 < 0.12


def test_fetch_delay_of_one() -> None:
    """A pipeline with a single delay could not rest."""
    assert fetch_delay((3.0,), 7, rng=Dice()) == 3.0


@pytest.mark.parametrize(
    ("attempt", "delay_s"), [(-1, 1), (0, 1), (1, 1), (2, 2), (3, 4), (7, 64), (9, 256), (10, 300)]
)
def test_exponential_doubles_to_its_cap(attempt: int, delay_s: float) -> None:
    """A failing row would be tried at a pace that nobody chose."""
    assert exponential(attempt, first_s=1, most_s=300, rng=Dice()) == delay_s


@given(st.integers(min_value=-10, max_value=10**12), SECONDS, SECONDS, st.integers())
def test_exponential_is_never_above_its_cap(
    attempt: int, first_s: float, most_s: float, seed: int
) -> None:
    """The promised longest delay would not hold, or a high count would overflow."""
    delay_s = exponential(attempt, first_s=first_s, most_s=most_s, rng=random.Random(seed))
    assert 0 < delay_s <= most_s


def test_exponential_is_spread_below_its_cap() -> None:
    """Rows that failed together would come back together for ever."""
    assert exponential(30, first_s=1, most_s=300, rng=Dice(at=0)) == pytest.approx(240)
    assert exponential(2, first_s=1, most_s=300, rng=Dice(at=1)) == pytest.approx(2.4)
