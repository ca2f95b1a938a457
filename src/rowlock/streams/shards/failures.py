"""How often a shard has failed at one step, and when it is parked."""

from __future__ import annotations

from typing import NamedTuple

FAILURES_MAX = 5
"""Attempts at one step before the shard is parked, by default."""


class StepFailures(NamedTuple):
    """What a shard's row says of failures.

    Attributes:
        failures: how many attempts at `failed_step` failed.
        failed_step: the last step that failed; None if none did.
    """

    failures: int = 0
    failed_step: int | None = None

    def at(self, step: int) -> int:
        """Return how many attempts at `step` failed: those at an earlier step do not count."""
        return self.failures if self.failed_step == step else 0

    def with_failure(self, step: int) -> StepFailures:
        """Return what the row is to say after another attempt at `step` failed."""
        return StepFailures(self.at(step) + 1, step)


def is_to_park(failures: StepFailures, step: int, *, failures_max: int = FAILURES_MAX) -> bool:
    """Whether a shard has failed so often at `step` that it is parked."""
    return failures.at(step) >= failures_max


def is_last_attempt(failures: StepFailures, step: int, *, failures_max: int = FAILURES_MAX) -> bool:
    """Whether a shard is parked if the next attempt at `step` fails, so that this attempt moves the
    events of keys that fail to the dead letters, where the stage has those.
    """
    return failures.at(step) + 1 >= failures_max
