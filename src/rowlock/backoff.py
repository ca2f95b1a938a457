"""How long to wait next: pure functions, no clock and no sleeping.

The one idea: a delay is a function of how often we waited in vain, spread by jitter so that
replicas do not march in step.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

JITTER = 0.2
"""Largest relative deviation from a delay: ±20 %."""

EAGER_CHANCE = 0.1
"""How often a fetcher that is backing off tries the shortest delay instead: one time in ten."""


class Randomness(Protocol):
    """The two draws that backoff needs; `random.Random` and the module `random` both have them."""

    def random(self) -> float:
        """Return a number in [0, 1)."""
        ...

    def uniform(self, a: float, b: float) -> float:
        """Return a number between `a` and `b`."""
        ...


def jittered(delay_s: float, *, rng: Randomness = random) -> float:
    """Return `delay_s` moved by at most `JITTER` either way."""
    return delay_s * rng.uniform(1 - JITTER, 1 + JITTER)


def fetch_delay(
    delays_s: Sequence[float], empty_fetches: int, *, rng: Randomness = random
) -> float:
    """Return how long a fetcher rests after `empty_fetches` fetches in a row found nothing.

    Walks along `delays_s` and stays at the last. Now and then it is the first one after all, so
    that a replica that has backed off far still notices, sooner than its longest delay, work that
    nobody hinted.
    """
    if empty_fetches > 1 and rng.random() < EAGER_CHANCE:
        return jittered(delays_s[0], rng=rng)
    return jittered(delays_s[min(max(empty_fetches, 1), len(delays_s)) - 1], rng=rng)


def exponential(attempt: int, *, first_s: float, most_s: float, rng: Randomness = random) -> float:
    """Return the capped exponential delay after failed attempt number `attempt` (1-based), with
    jitter, never above `most_s`.
    """
    doublings = min(max(attempt, 1) - 1, 62)
    return min(jittered(min(first_s * 2.0**doublings, most_s), rng=rng), most_s)
