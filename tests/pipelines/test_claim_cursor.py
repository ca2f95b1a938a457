"""The cursor: when a claim resumes behind the last one, and when it looks at the head of the
order.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.leases.claim_request import Position
from rowlock.pipelines.claim_builder import (
    DEFERRED_PER_EXPENSIVE,
    EXPENSIVE_S,
    REMEMBERED,
    ClaimCursor,
)

DELAYS_S = (0.5, 1.0, 2.0, 5.0)
LOCK_TIMEOUT_S = 30.0
QUICK_S, DEAR_CLAIM_S = 0.001, 0.1


def position(number: int) -> Position:
    """Return a position that says when it was reached."""
    return Position(None, number)


class Claims:
    """Makes claims one after the other at times that it is told.

    Attributes:
        cursor: is asked and told.
        now: on a clock of its own.
        look_s: what a look at the head takes unless said otherwise.
    """

    def __init__(self, look_s: float = QUICK_S) -> None:
        self.cursor = ClaimCursor(DELAYS_S, LOCK_TIMEOUT_S)
        self.now = 1000.0
        self.look_s = look_s
        self._number = 0

    def make(
        self, *, hinted: bool = False, is_full: bool = True, takes_s: float | None = None
    ) -> Position | None:
        """Make one claim; return where it started."""
        start = self.cursor.start(self.now, hinted=hinted)
        if takes_s is None:
            takes_s = self.look_s if start is None else QUICK_S
        began_at, self.now = self.now, self.now + takes_s
        self._number += 1
        self.cursor.ended(
            start,
            began_at=began_at,
            ended_at=self.now,
            reached=position(self._number),
            is_full=is_full,
        )
        return start

    @classmethod
    def with_dear_looks(cls) -> Claims:
        """Claims that have just looked at the head, as often as it takes for looks to be spared."""
        claims = cls(look_s=DEAR_CLAIM_S)
        for _ in range(REMEMBERED - 1):
            claims.make()
            assert claims.make() is not None
            claims.now += max(DELAYS_S)
        claims.make()
        return claims


def test_the_first_claim_looks_at_the_head() -> None:
    """It would start nowhere."""
    assert Claims().make() is None


def test_a_claim_that_follows_a_full_one_resumes() -> None:
    """Each claim would walk past all rows that are leased."""
    claims = Claims()
    assert [claims.make() for _ in range(4)] == [None, position(1), position(2), position(3)]


def test_a_hint_is_followed_to_the_head() -> None:
    """A hinted row that heads the line would wait behind a backlog."""
    claims = Claims()
    claims.make()
    assert claims.make(hinted=True) is None
    assert claims.make() == position(2)


@pytest.mark.parametrize("resumed_before", [0, 1])
def test_after_a_short_claim_the_head_is_looked_at(resumed_before: int) -> None:
    """Rows that were freed before the cursor would wait although there is room for them."""
    claims = Claims()
    for _ in range(1 + resumed_before):
        claims.make()
    assert claims.make(is_full=False) is not None
    assert claims.make() is None
    claims.make(is_full=False, hinted=True)
    assert claims.make() is None


def test_after_a_failure_the_head_is_looked_at() -> None:
    """Rows that a claim leased whose answer was lost would be taken for rows that are still to
    come.
    """
    claims = Claims()
    claims.make()
    claims.cursor.failed()
    assert claims.make() is None


def test_the_head_is_looked_at_after_the_shortest_fetch_delay() -> None:
    """Under load the rows of a dead replica would not be recovered, for nobody hints them."""
    claims = Claims()
    claims.make(takes_s=0)
    claims.now += min(DELAYS_S) - 0.001
    assert claims.make(takes_s=0) is not None
    claims.now += 0.001
    assert claims.make(takes_s=0) is None


def test_dear_looks_are_spared() -> None:
    """With many rows in flight each insert would cost every replica a walk past all of them."""
    claims = Claims.with_dear_looks()
    began_at, looks = claims.now, 0
    for _ in range(2000):
        looks += claims.make(hinted=True) is None
    assert 0 < looks * DEAR_CLAIM_S <= (claims.now - began_at) / DEFERRED_PER_EXPENSIVE


def test_a_spared_look_stays_owed() -> None:
    """A hint for a row at the head would be forgotten once a claim that resumed had followed it."""
    claims = Claims.with_dear_looks()
    assert claims.make(hinted=True) is not None
    claims.now = claims.cursor.deferred_until - 0.001
    assert claims.make() is not None
    claims.now = claims.cursor.deferred_until
    assert claims.make() is None
    assert not claims.cursor.head_scan_due


def test_cheap_looks_are_never_spared() -> None:
    """A hinted row would wait although nothing is gained by it."""
    claims = Claims()
    for _ in range(2 * REMEMBERED):
        assert claims.make(hinted=True, takes_s=0.004 + EXPENSIVE_S) is None
        assert claims.make(takes_s=0.001 + EXPENSIVE_S) is not None


def test_one_slow_look_is_not_dear() -> None:
    """A pause of the machine would keep hinted rows waiting."""
    claims = Claims()
    for takes_s in (5.0, QUICK_S, 5.0, QUICK_S):
        assert claims.make(hinted=True, takes_s=takes_s) is None


def test_looks_are_not_spared_for_longer_than_a_fetch_delay() -> None:
    """Rows of the dead would not be recovered while the database is slow."""
    claims = Claims()
    for _ in range(REMEMBERED):
        claims.cursor.failed()
        claims.make(takes_s=60)
    assert claims.cursor.deferred_until == claims.cursor.resumes_until == claims.now + max(DELAYS_S)


@pytest.mark.parametrize(("takes_s", "looks_again_after_s"), [(0.0, 3.0), (60.0, 63.0)])
def test_claims_resume_for_no_longer_than_a_lease_lasts(
    takes_s: float, looks_again_after_s: float
) -> None:
    """A host that polls rarely would have the rows of the dead wait for its polling, though its
    workers are busy.
    """
    claims = Claims()
    claims.cursor = ClaimCursor((3600.0,), 3.0)
    for _ in range(REMEMBERED):
        claims.cursor.failed()
        began_at = claims.now
        claims.make(takes_s=takes_s)
    assert claims.cursor.resumes_until == began_at + looks_again_after_s


CLAIM = st.tuples(st.floats(0, 3), st.booleans(), st.booleans(), st.floats(0, 4), st.booleans())


@given(st.lists(CLAIM, max_size=40))
def test_looks_are_never_far_apart(story: list[tuple[float, bool, bool, float, bool]]) -> None:
    """Whatever came before, some rows at the head would wait for longer than a fetch delay for a
    claim that looks there.
    """
    claims = Claims()
    looked_until = claims.now
    owed = False
    for pause_s, hinted, is_full, takes_s, fails in story:
        claims.now += pause_s
        began_at = claims.now
        if fails:
            claims.cursor.failed()
        start = claims.make(hinted=hinted, is_full=is_full, takes_s=takes_s)
        owed = owed or hinted
        if start is not None:
            assert began_at < looked_until + max(DELAYS_S)
            assert not (owed and began_at >= claims.cursor.deferred_until)
            assert not fails
        else:
            looked_until, owed = claims.now, False
