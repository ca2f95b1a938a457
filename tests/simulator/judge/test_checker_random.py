"""The judge on random histories: whatever is legal is not blamed, and one illegal step among
many legal ones is found.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from .stories import LEASE_S, Story

KEYS = ("1", "2", "3")
SITE = "9"
STEPS_MAX = 40

steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["claim", "renew", "apply", "reset", "fail", "release", "lock", "hold", "die", "sweep"]
        ),
        st.sampled_from(KEYS),
        st.floats(min_value=0.0, max_value=12.0),
    ),
    max_size=STEPS_MAX,
)


class Legal:
    """Does of what is asked only what the library may do."""

    def __init__(self) -> None:
        self.story = Story()
        for key in KEYS:
            self.story.add(key)
        self.story.add(SITE, "sites", due_at=None, attempts=None)

    def do(self, what: str, key: str) -> None:
        row, story = self.story.state(key), self.story
        if what in ("claim", "hold", "lock") and self.is_free(key):
            self.claim(key, by_service=what == "hold", locks=what == "lock")
        elif row.lock_token is None:
            return
        elif what == "renew" and self.is_live(key):
            self.each_held(key, story.renew)
        elif what == "sweep" and self.is_free(key) and row.lock_expires_at is not None:
            self.each_held(key, story.free)
        elif row.lock_owner == "P" and what in ("apply", "reset", "fail"):
            attempts = (row.attempts or 0) + 1 if what == "fail" else 0
            story.apply(
                key,
                lock_owner="P" if what == "reset" else None,
                attempts=row.attempts if what == "reset" else attempts,
            )
            self.free_site(row.lock_token)
        elif what == "release":
            self.each_held(key, story.free)
        elif what == "die":
            story.wait(LEASE_S)

    def claim(self, key: str, *, by_service: bool, locks: bool) -> None:
        """Claim a row; what its dead holder had locked besides is freed with it."""
        dead = self.story.state(key).lock_token
        owner = f"service:{uuid.uuid4().hex[:8]}" if by_service else "P"
        token = self.story.claim(key, owner=owner)
        if dead is not None:
            self.free_site(dead)
        if locks and self.is_free(SITE, "sites"):
            until = self.story.state(key).lock_expires_at
            self.story.take(token, SITE, "sites", lock_owner=f"P:{key}", lock_expires_at=until)

    def each_held(self, key: str, act: Callable[..., None]) -> None:
        """Do the same to a row and to what is locked with it."""
        token = self.story.state(key).lock_token
        act(key)
        if token is not None and self.story.state(SITE, "sites").lock_token == token:
            act(SITE, "sites", together=True)

    def free_site(self, token: uuid.UUID) -> None:
        """Free the related row, if it is locked under that token."""
        if self.story.state(SITE, "sites").lock_token == token:
            self.story.free(SITE, "sites", together=True)

    def is_free(self, key: str, table: str = "jobs") -> bool:
        ends = self.story.state(key, table).lock_expires_at
        return ends is None or ends <= self.story.now

    def is_live(self, key: str) -> bool:
        return not self.is_free(key)


def played(moves: list[tuple[str, str, float]]) -> Legal:
    legal = Legal()
    for what, key, seconds in moves:
        legal.do(what, key)
        legal.story.wait(seconds)
    return legal


@given(steps)
def test_whatever_is_legal_is_not_blamed(moves: list[tuple[str, str, float]]) -> None:
    """The judge would cry wolf."""
    assert played(moves).story.broken() == set()


@settings(max_examples=50)
@given(steps, st.sampled_from(KEYS), steps)
def test_one_theft_among_many_steps_is_found(
    before: list[tuple[str, str, float]], key: str, after: list[tuple[str, str, float]]
) -> None:
    """A theft would be overlooked because of what went before or came after it."""
    legal = played(before)
    if not legal.is_live(key):
        legal.claim(key, by_service=False, locks=False)
    legal.story.take(uuid.uuid4(), key)
    for what, other, seconds in after:
        legal.do(what, other)
        legal.story.wait(seconds)
    assert "A2" in legal.story.broken()


@settings(max_examples=50)
@given(steps, st.sampled_from(KEYS), st.floats(min_value=0.0, max_value=30.0))
def test_one_late_renewal_among_many_steps_is_found(
    before: list[tuple[str, str, float]], key: str, late_s: float
) -> None:
    """A revived lease would be overlooked because of what went before."""
    legal = played(before)
    if legal.is_free(key):
        legal.claim(key, by_service=False, locks=False)
    legal.story.wait(LEASE_S + late_s)
    legal.story.renew(key)
    assert "A3" in legal.story.broken()
