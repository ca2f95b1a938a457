"""The judge on what comes late and what is counted wrongly."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rowlock.rows.database_time import STAMP_SPREAD, STAMP_STEP

from .checker import check
from .stories import LEASE_S, MOMENT, Story


def test_a5_a_related_row_that_outlived_the_outcome_stays_a_leak_when_it_is_swept(
    story: Story,
) -> None:
    """A leak would be forgiven as soon as somebody cleared it away."""
    story.take(story.claim(), "7", "disks")
    story.apply()
    story.wait(LEASE_S)
    story.free("7", "disks")
    assert story.broken() == {"A5"}


def test_a5_a_related_row_that_outlived_the_outcome_stays_a_leak_when_it_is_taken(
    story: Story,
) -> None:
    """A row would wait for an expiry at every outcome, and nobody would notice."""
    story.take(story.claim(), "7", "disks")
    story.apply()
    story.wait(LEASE_S)
    story.claim("7", "disks", owner="D")
    assert story.broken() == {"A5"}


@pytest.mark.parametrize(("claims_between", "broken"), [(False, set()), (True, {"A5"})])
def test_a5_without_transactions_a_claim_in_between_tells(
    story: Story, *, claims_between: bool, broken: set[str]
) -> None:
    """SQLite does not name its transactions: the leak would pass there, or a slow transaction be
    blamed.
    """
    story.add("2")
    story.take(story.claim(), "7", "disks")
    story.apply()
    if claims_between:
        story.claim("2")
    story.wait(1)
    story.free("7", "disks")
    changes = [replace(change, transaction=None, transaction_at=None) for change in story.changes]
    assert {violation.promise for violation in check(changes)} == broken


@pytest.mark.parametrize(
    ("snapshot", "broken"), [("3:9:3,5", set()), ("2:3:", set()), ("3:9:3", {"A5"})]
)
def test_a5_a_related_row_may_be_taken_while_the_outcome_is_not_committed(
    story: Story, snapshot: str, broken: set[str]
) -> None:
    """A transaction that stalls before its COMMIT would be blamed for a lease that ended then."""
    story.take(story.claim(), "7", "disks")
    story.apply()
    story.wait(LEASE_S)
    story.claim("7", "disks", owner="D")
    assert story.changes[-2].transaction == 5
    story.changes[-1] = replace(story.changes[-1], snapshot=snapshot)
    assert story.broken() == broken


def test_a8_a_stamp_is_not_ahead_of_the_clock(story: Story) -> None:
    """A row would be passed over until the time has come."""
    story.claim()
    story.apply(last_processed_at=story.now + timedelta(milliseconds=1))
    assert story.broken() == set()
    story.claim()
    story.apply(last_processed_at=story.now + timedelta(seconds=1))
    assert story.broken() == {"A8"}


@pytest.mark.parametrize(
    ("goes_on", "broken"),
    [(STAMP_STEP, set()), (STAMP_STEP + STAMP_SPREAD, set()), (2 * STAMP_SPREAD, {"A8"})],
    ids=["a step", "a step and the spread", "more"],
)
def test_a8_a_stamp_that_is_ahead_goes_on_by_little(
    story: Story, goes_on: timedelta, broken: set[str]
) -> None:
    """Outcomes that differ by their stamps would be blamed, or a row be passed over for ever
    longer.
    """
    story.claim()
    story.apply()
    ahead = story.now
    story.wait(-60)
    story.change(due_at=story.now)
    story.claim()
    story.apply(last_processed_at=ahead + goes_on)
    assert story.broken() == broken


def test_b2_an_ended_lease_is_seen_to_before_the_history_ends(story: Story) -> None:
    """Rows of a dead replica would be forgotten, and the judge with them."""
    story.claim()
    story.wait(LEASE_S + 2)
    story.add("2")
    assert story.broken(taken_within=timedelta(seconds=2)) == set()
    assert story.broken(taken_within=timedelta(seconds=1.9)) == {"B2"}


def test_b2_a_lease_is_no_longer_than_its_pipelines(story: Story) -> None:
    """A dead replica's rows would be nobody's for hours."""
    long, service = timedelta(seconds=LEASE_S + 1), "service:ab12cd34"
    story.add("2")
    token = story.claim()
    story.take(token, "7", "disks", lock_owner="P:1")
    story.claim("2", owner=service, lock_expires_at=story.now + long)
    assert story.broken(lock_timeouts={"P": timedelta(seconds=LEASE_S)}) == set()
    story.change(lock_expires_at=story.now + long)
    assert story.broken(lock_timeouts={"P": timedelta(seconds=LEASE_S)}) == {"B2"}


def test_b4_a_row_given_back_keeps_its_attempts(story: Story) -> None:
    """Each shutdown would give a poison row all its attempts anew."""
    story.claim()
    story.apply(attempts=1)
    story.wait(1)
    story.claim()
    story.free()
    assert story.broken() == set()
    story.claim()
    story.free(attempts=0)
    assert story.broken() == {"B4"}


@pytest.mark.parametrize("way", [{"lock_owner": "P"}, {"parked": True}, {}])
def test_b4_only_reset_and_parked_rows_keep_their_attempts(
    story: Story, way: dict[str, Any]
) -> None:
    """A failure would not be counted, and the row be tried for ever."""
    story.claim()
    story.apply(attempts=1)
    story.claim()
    columns: dict[str, Any] = {"parked_at": story.now + MOMENT} if "parked" in way else way
    story.apply(attempts=1, **columns)
    assert story.broken() == (set() if way else {"B4"})


def test_b4_a_parked_row_is_left_alone(story: Story) -> None:
    """What was set aside would be worked on again and again."""
    story.change(parked_at=story.now)
    story.claim()
    assert story.broken() == {"B4"}


def test_b4_a_row_is_not_taken_before_it_is_due(story: Story) -> None:
    """A row that failed would not rest."""
    story.change(due_at=story.now + timedelta(seconds=10))
    story.wait(10)
    story.claim()
    story.apply(due_at=story.now + timedelta(seconds=10))
    assert story.broken() == set()
    story.wait(9)
    story.claim()
    assert story.broken() == {"B4"}


def test_b4_who_failed_too_often_is_parked_though_the_clock_stands(story: Story) -> None:
    """A clock that was set back would hide a poison row."""
    story.claim()
    story.free(attempts=1)
    assert story.broken(attempts_max=2) == set()
    story.claim()
    story.free(attempts=2)
    assert story.broken(attempts_max=2) == {"B4"}


def test_b4_each_pipeline_has_its_own_limit(story: Story) -> None:
    """A poison row would go on as long as those of the most patient pipeline."""
    story.claim()
    story.apply(attempts=1)
    assert story.broken(attempts_max={"P": 2, "Q": 1}) == set()
    assert story.broken(attempts_max={"P": 1, "Q": 2}) == {"B4"}
