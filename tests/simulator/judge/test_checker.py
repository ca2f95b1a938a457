"""The judge: each broken promise is found, and what comes close to it in keeping with the
promise is not blamed.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from .checker import check
from .stories import LEASE_S, MOMENT, Story

SERVICE = "service:ab12cd34"


def test_a_plain_day_breaks_nothing(story: Story) -> None:
    """The judge would cry wolf: claim, renew, lock, apply, reset, release, take over from the
    dead, fail, park.
    """
    token = story.claim()
    story.take(token, "7", "disks")
    story.wait(20)
    story.renew()
    story.renew("7", "disks", together=True)
    story.apply()
    story.free("7", "disks", together=True)
    story.wait(20)
    story.claim()
    story.apply(lock_owner="P")
    story.claim()
    story.free()
    story.claim()
    story.wait(LEASE_S)
    story.claim()
    story.apply(attempts=2)
    story.claim()
    story.apply(attempts=3, parked_at=story.now + MOMENT)
    everything = {"stopped": True, "attempts_max": 3, "taken_within": timedelta(seconds=1)}
    assert story.broken(settled=lambda table, row: table == "disks", **everything) == set()


def test_a1_an_outcome_needs_a_lease(story: Story) -> None:
    """Twice applied would go unseen."""
    story.claim()
    story.apply()
    assert story.broken() == set()
    story.wait(1)
    story.change(last_processed_at=story.now)
    assert story.broken() == {"A1"}


def test_a1_an_outcome_ends_the_lease(story: Story) -> None:
    """An outcome that leaves the row locked would allow for another."""
    story.claim()
    story.change(last_processed_at=story.now)
    assert story.broken() == {"A1"}


def test_a1_a_stale_holder_does_not_free_its_heir(story: Story) -> None:
    """An outcome that replaces the heir's lease would be two results of one claim."""
    story.claim()
    story.wait(LEASE_S)
    story.claim(last_processed_at=story.now)
    assert story.broken() == {"A1"}


def test_a1_an_outcome_is_the_main_rows_own(story: Story) -> None:
    """A related row stamped as processed would wait for its own pipeline's next interval."""
    story.take(story.claim(), "7", "disks")
    story.apply("7", "disks", attempts=None)
    assert story.broken() == {"A1"}


def test_a1_a_service_has_no_outcomes(story: Story) -> None:
    """A result would be written by somebody whom no guard asks for a token."""
    story.claim(owner=SERVICE)
    story.apply()
    assert story.broken() == {"A1"}


@pytest.mark.parametrize("owner", ["P", SERVICE])
def test_a1_a_token_never_comes_back(story: Story, owner: str) -> None:
    """A write that came late would find its guard open again."""
    token = story.claim(owner=owner)
    story.free()
    story.take(token, "1", lock_owner=owner)
    assert story.broken() == {"A1"}


def test_a2_a_live_lease_is_not_taken(story: Story) -> None:
    """Two holders at once would go unseen."""
    story.claim()
    story.wait(LEASE_S - 0.001)
    story.claim()
    assert story.broken() == {"A2"}


@pytest.mark.parametrize(("late_s", "broken"), [(-0.001, set()), (0.0, {"A3"}), (5.0, {"A3"})])
def test_a3_an_expired_lease_stays_expired(story: Story, late_s: float, broken: set[str]) -> None:
    """A late heartbeat would take a row back that others had found free."""
    story.claim()
    story.wait(LEASE_S + late_s)
    story.renew()
    assert story.broken() == broken


def test_a3_a_related_row_may_be_locked_once_more(story: Story) -> None:
    """A related row that was not renewed, and is locked again under its main row's live lease,
    would be blamed.
    """
    token = story.claim()
    story.take(token, "7", "disks")
    story.wait(20)
    story.renew()
    story.wait(10)
    story.change("7", "disks", lock_expires_at=story.state("1").lock_expires_at)
    assert story.broken() == set()
    story.wait(30)
    story.claim()
    story.renew("7", "disks")
    assert "A3" in story.broken()


def test_a5_a_related_row_is_locked_under_a_live_main_row(story: Story) -> None:
    """Nobody would free a row that was locked for a main row that is somebody else's."""
    token = story.claim()
    story.free()
    story.take(token, "7", "disks")
    story.free("7", "disks")
    assert story.broken() == {"A5"}


def test_a5_a_related_row_is_not_locked_under_an_expired_main_row(story: Story) -> None:
    """It would be locked for a holder that is dead to everybody else."""
    token = story.claim()
    story.wait(LEASE_S)
    story.take(token, "7", "disks", lock_expires_at=story.state("1").lock_expires_at)
    story.free("7", "disks")
    assert story.broken() == {"A5"}


def test_a5_a_related_row_is_locked_no_longer_than_its_main_row(story: Story) -> None:
    """It would stay locked when the main row is free for the next."""
    token = story.claim()
    story.wait(1)
    story.take(token, "7", "disks")
    story.apply()
    story.free("7", "disks", together=True)
    assert story.broken() == {"A5"}


@pytest.mark.parametrize("end", ["apply", "free", "claim"])
def test_a5_a_related_row_is_freed_with_its_main_row(story: Story, end: str) -> None:
    """It would stay locked by an owner that never comes; whatever ends the main row's lease."""
    story.take(story.claim(), "7", "disks")
    if end == "claim":
        story.wait(LEASE_S)
    getattr(story, end)()
    assert story.broken() == {"A5"}
    story.free("7", "disks", together=True)
    assert story.broken() == set()


@pytest.mark.parametrize(
    "half", [{"lock_token": None, "lock_owner": None}, {"lock_expires_at": None}]
)
def test_a5_there_is_no_half_lease(story: Story, half: dict[str, None]) -> None:
    """A token without an end, or an end without a token, would never be anybody's."""
    story.claim()
    story.change(**half)
    assert story.broken() == {"A5"}


def test_a6_services_own_columns_are_not_written_by_outcomes(story: Story) -> None:
    """What a service asked for while the row was worked on would be lost."""
    story.add("2", values={"wanted": 1})
    story.claim("2")
    story.change("2", values={"wanted": 2})
    story.apply("2")
    assert story.broken(services_own=["wanted"]) == set()
    story.claim("2")
    story.apply("2", values={"wanted": 1})
    assert story.broken(services_own=["wanted"]) == {"A6"}
    assert story.broken() == set()


def test_a6_services_own_columns_are_not_written_by_who_gives_the_row_back(story: Story) -> None:
    """What a service asked for would be lost at a shutdown, or with a hold of its own be blamed."""
    story.claim()
    story.free(values={"wanted": 1})
    assert story.broken(services_own=["wanted"]) == {"A6"}
    story.changes.clear()
    story.claim(owner=SERVICE)
    story.free(values={"wanted": 2})
    assert story.broken(services_own=["wanted"]) == set()


def test_a8_the_stamp_never_goes_back(story: Story) -> None:
    """A row would head the line again and again while the database's clock is set back."""
    story.claim()
    story.apply()
    story.wait(-10)
    story.change(due_at=story.now)
    story.claim()
    story.apply(lock_owner="P")
    assert story.broken() == set()
    story.claim()
    story.apply(last_processed_at=story.now)
    assert story.broken() == {"A8"}
    story.claim()
    story.apply(last_processed_at=None)
    assert len(check(story.changes)) == 2


def test_a8_one_transaction_has_one_time(story: Story) -> None:
    """Rows that were written together would seem to be written apart."""
    story.add("2")
    for key in ("1", "2"):
        story.claim(key)
    story.apply("1")
    story.apply("2", together=True)
    assert story.broken() == set()
    for key in ("1", "2"):
        story.claim(key)
    story.wait(2)
    story.apply("1")
    story.apply("2", together=True, last_processed_at=story.now - timedelta(seconds=1))
    assert story.broken() == {"A8"}


def test_a8_one_outcome_has_one_time(story: Story) -> None:
    """A row would be parked at another time than that of its last attempt."""
    story.claim()
    story.apply(parked_at=story.now)
    assert story.broken() == {"A8"}


def test_a9_an_owner_is_put_by_who_holds_the_row(story: Story) -> None:
    """A name on a free row would keep everybody else away."""
    story.change(lock_owner="P")
    assert story.broken() == {"A9"}


def test_a9_a_lease_has_a_name(story: Story) -> None:
    """Nobody could tell whose to recover it is."""
    story.claim(lock_owner=None)
    assert story.broken() == {"A9"}


def test_a9_a_name_is_not_overwritten(story: Story) -> None:
    """The holder would find its own row to be somebody else's."""
    token = story.claim()
    story.take(token, "7", "disks", lock_owner="P:1")
    story.change("7", "disks", lock_owner="P")
    assert story.broken() == set()
    story.change("7", "disks", lock_owner="Q")
    assert story.broken() == {"A9"}


@pytest.mark.parametrize(
    ("rest_s", "broken"), [(0, {"A9"}), (5.9, {"A9"}), (6, set()), (-1, set())]
)
def test_a9_a_reservation_is_kept_for_seconds(
    story: Story, rest_s: float, broken: set[str]
) -> None:
    """A pipeline that steps back would lose its place to another of the same model, and nobody
    would see it.
    """
    story.claim()
    story.apply(lock_owner="P", due_at=None)
    story.wait(rest_s)
    story.claim(owner="Q")
    assert story.broken() == broken


def test_a9_a_reset_keeps_the_owner_and_nothing_else_does(story: Story) -> None:
    """A row that was released would wait for one pipeline alone."""
    story.claim()
    story.apply(lock_owner="P")
    assert story.broken() == set()
    story.claim()
    story.wait(1)
    story.free(lock_owner="P")
    assert story.broken() == {"A9"}


def test_a9_a_related_row_is_given_back_to_who_waits_for_it(story: Story) -> None:
    """Who had reset the row would lose its turn, or a name be left that nobody answers to."""
    story.claim("7", "disks", owner="D")
    story.apply("7", "disks", lock_owner="D", attempts=None)
    token = story.claim()
    story.take(token, "7", "disks")
    story.free("7", "disks", lock_owner="D")
    assert story.broken() == set()
    story.take(token, "7", "disks")
    story.free("7", "disks", lock_owner="P")
    assert story.broken() == {"A9"}


def test_a9_a_service_leaves_no_name(story: Story) -> None:
    """Pipelines would be kept away by a service that is done."""
    story.claim(owner=SERVICE)
    story.free(lock_owner=SERVICE)
    assert story.broken() == {"A9"}
