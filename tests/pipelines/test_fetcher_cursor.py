"""The cursor: when a claim resumes behind the last one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.leases.claim_request import Position
from rowlock.pipelines.fetcher import ClaimCursor

DELAYS_S = (0.5, 1.0, 2.0, 5.0)
LOCK_TIMEOUT_S = 30.0
QUICK_S = 0.001


def position(number: int) -> Position:
    return Position(None, number)


class Claims:
    """Makes claims one after the other at times that it is told.

    Attributes:
        cursor: is asked and told.
        now: on a clock of its own.
    """

    def __init__(self) -> None:
        self.cursor = ClaimCursor(DELAYS_S, LOCK_TIMEOUT_S)
        self.now = 1000.0
        self._number = 0

    def make(
        self, *, hinted: bool = False, is_full: bool = True, takes_s: float = QUICK_S
    ) -> Position | None:
        """Make one claim; return where it started."""
        start = self.cursor.start(self.now, hinted=hinted)
        began_at, self.now = self.now, self.now + takes_s
        self._number += 1
        self.cursor.ended(start, began_at=began_at, reached=position(self._number), is_full=is_full)
        return start


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


def test_claims_resume_for_no_longer_than_a_lease_lasts() -> None:
    """A host that polls rarely would have the rows of the dead wait for its polling, though its
    workers are busy.
    """
    claims = Claims()
    claims.cursor, began_at = ClaimCursor((3600.0,), 3.0), claims.now
    claims.make()
    assert claims.cursor.resumes_until == began_at + 3.0


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
            assert not owed
            assert not fails
        else:
            looked_until, owed = claims.now, False
