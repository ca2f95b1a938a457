"""The judge of what must happen in the end (B1 to B5), and what it tells of a violation."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from rowlock.rows.lock_tokens import Deaths, with_deaths

from .checker import VIOLATIONS_MAX, check
from .history import RowState
from .stories import LEASE_S, Story


def settled(table: str, row: RowState) -> bool:
    return table == "disks" or row.last_processed_at is not None


def test_b1_everything_is_settled_in_the_end(story: Story) -> None:
    """A row that nobody ever took would be forgotten."""
    assert story.broken(settled=settled) == {"B1"}
    story.claim()
    story.apply()
    assert story.broken(settled=settled) == set()
    story.claim("7", "disks", owner="D")
    story.apply("7", "disks", lock_owner="D", attempts=None)
    assert story.broken(settled=settled) == {"B1"}


@pytest.mark.parametrize("end", ["claim", "apply"])
def test_b2_an_ended_lease_is_seen_to_in_time(story: Story, end: str) -> None:
    """A dead replica's rows would wait, and nobody would notice for how long."""
    story.claim()
    story.wait(LEASE_S + 2)
    getattr(story, end)()
    assert story.broken(taken_within=timedelta(seconds=2.1)) == set()
    assert story.broken(taken_within=timedelta(seconds=1.9)) == {"B2"}


def test_b4_attempts_are_counted_one_by_one(story: Story) -> None:
    """A poison row would be tried for ever, or parked before its time."""
    story.claim()
    story.apply(attempts=1)
    story.change(attempts=0)
    story.claim()
    story.apply(attempts=1)
    assert story.broken() == set()
    story.claim()
    story.apply(attempts=3)
    assert story.broken() == {"B4"}


def test_b4_attempts_move_with_an_attempt_alone(story: Story) -> None:
    """A row that waits would come nearer to being parked."""
    story.change(attempts=1)
    assert story.broken() == {"B4"}


@pytest.mark.parametrize(("wait_s", "attempts"), [(LEASE_S, 2), (None, 1)])
def test_b4_the_attempts_of_the_dead_count(
    story: Story, wait_s: float | None, attempts: int
) -> None:
    """A row that kills its process would be tried for ever."""
    if wait_s is not None:
        story.claim()
        story.wait(wait_s)
    story.claim(attempts=attempts)
    assert story.broken() == {"B4"}


@pytest.mark.parametrize("step", ["apply", "claim"])
@pytest.mark.parametrize("before", [Deaths(), Deaths(in_crowds=1)])
def test_b4_a_claim_that_dies_before_it_counts_comes_to_nothing(
    story: Story, before: Deaths, step: str
) -> None:
    """Deaths would stay uncounted: the row is worked on, or the next claim counts none either; or
    the judge would take the deaths before for one that this claim has counted.
    """
    for _ in range(2):
        story.claim(token=with_deaths(uuid4(), before, in_crowd=before.in_crowds > 0), attempts=0)
        story.wait(LEASE_S)
    assert story.broken() == set()
    if step == "apply":
        story.apply()
    else:
        story.claim(token=with_deaths(uuid4(), before, in_crowd=before.in_crowds > 0), attempts=0)
    assert story.broken() == {"B4"}


def test_b4_who_failed_too_often_is_parked(story: Story) -> None:
    """A poison row would go on for ever."""
    story.claim()
    story.apply(attempts=1)
    assert story.broken(attempts_max=2) == set()
    story.claim()
    story.apply(attempts=2)
    assert story.broken(attempts_max=2) == {"B4"}


def test_b5_nothing_is_locked_after_clean_shutdowns(story: Story) -> None:
    """Rows would wait for the end of a lease whose holder had said farewell."""
    story.claim("7", "disks", owner="D")
    story.apply("7", "disks", lock_owner="D", attempts=None)
    assert story.broken(stopped=True) == set()
    story.claim()
    assert story.broken() == set()
    assert story.broken(stopped=True) == {"B5"}


def test_a_violation_tells_the_rows_story(story: Story) -> None:
    """Who has to find the bug would have to read the whole history."""
    story.add("2")
    token = story.claim()
    story.claim("2")
    story.take(token, "7", "disks")
    story.wait(1)
    story.claim(values={"status": "done"})
    violation, _leak = check(story.changes)
    assert (violation.promise, violation.table, violation.key, violation.number) == (
        "A2",
        "jobs",
        "1",
        7,
    )
    head, *lines = str(violation).splitlines()
    assert head == "A2 broken: jobs 1, change 7: the lease of P was taken 29.000 s before its end"
    assert [line.split()[0] for line in lines] == ["1", "4", "6", "7"]
    assert f"disks 7: taken by P ({token.hex[:8]}) until 12:00:30.000000" in lines[2]
    assert "instead of P" in lines[3]
    assert "status None -> 'done'" in lines[3]


def test_violations_are_bounded() -> None:
    """A run in which everything fails would fill the disk."""
    story = Story()
    story.add()
    for _ in range(VIOLATIONS_MAX + 10):
        story.wait(1)
        story.change(last_processed_at=story.now)
    violations = check(story.changes)
    assert len(violations) == VIOLATIONS_MAX
    assert "changes before" in violations[-1].story
