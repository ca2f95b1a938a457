"""How long errors of the database that pass are waited out, and with what rests between the
tries.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from rowlock.backoff import exponential
from rowlock.clock import monotonic, sleep

RETRY_DELAY_S = 0.05
RETRY_DELAY_S_MAX = 1.0
"""First and longest rest between two tries, in seconds."""


class Retries:
    """The failed tries of one piece of work.

    Time counts from the first failure, not from the beginning: a try may have lasted as long as the
    host blocked its loop.

    Args:
        gives_up_at: given when the first try failed, says until when others may be made, on the
            monotonic clock. Asked each time.

    Attributes:
        count: how many tries have failed.
    """

    def __init__(self, gives_up_at: Callable[[float], float]) -> None:
        self.count = 0
        self._gives_up_at = gives_up_at
        self._failed_at = math.inf

    def failed(self) -> None:
        """Count a try that failed just now."""
        self.count += 1
        self._failed_at = min(self._failed_at, monotonic())

    @property
    def are_over(self) -> bool:
        """Whether the time for further tries is over."""
        return monotonic() >= self._gives_up_at(self._failed_at)

    async def rest(self) -> None:
        """Rest before the next try, longer after each."""
        await sleep(exponential(self.count, first_s=RETRY_DELAY_S, most_s=RETRY_DELAY_S_MAX))


def within(seconds: float) -> Callable[[float], float]:
    """Return the rule that tries are made for so long after the first failure."""
    return lambda failed_at: failed_at + seconds
