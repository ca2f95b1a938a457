"""Attempts of a shard at one step."""

from __future__ import annotations

from rowlock.streams.shards.states import FAILURES_MAX, StepFailures, is_last_attempt, is_to_park


def test_a_shard_is_parked_after_so_many_attempts_at_one_step() -> None:
    """A step that fails each time would be tried for ever."""
    row = StepFailures()
    for count in range(1, FAILURES_MAX):
        assert not is_to_park(row, 7)
        row = row.with_failure(7)
        assert row == (count, 7)
        assert is_last_attempt(row, 7) == (count == FAILURES_MAX - 1)
    assert is_to_park(row.with_failure(7), 7)


def test_failures_count_at_one_step() -> None:
    """A shard that now and then meets a deadlock would be parked after a year."""
    row = StepFailures(FAILURES_MAX - 1, 7)
    assert not is_last_attempt(row, 8)
    row = row.with_failure(8)
    assert row == (1, 8)
    assert not is_to_park(row, 8)
    assert not is_to_park(row, 7)


def test_number_of_attempts_can_be_set() -> None:
    """A host that wants to look at each failure would wait for four more."""
    assert is_last_attempt(StepFailures(), 0, failures_max=1)
    assert is_to_park(StepFailures(1, 0), 0, failures_max=1)
