"""A line of numbers as a small picture: SVG without styles, so that no policy forbids it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from rowlock.insight.observing.report import Sample

WIDTH: Final = 120
HEIGHT: Final = 24
POINTS_MAX: Final = 120
"""Most numbers of a line; the newest ones."""


def rates_between(samples: Sequence[Sample]) -> list[float]:
    """Return the outcomes a second between each two samples."""
    return [
        max(0.0, (later.settled() - earlier.settled()) / (later.at - earlier.at))
        for earlier, later in pairwise(samples)
        if later.at > earlier.at
    ]


def points_of(values: Sequence[float]) -> str:
    """Return the corners of the line, as the attribute ``points`` has them; empty if there are
    less than two numbers.
    """
    values = values[-POINTS_MAX:]
    if len(values) < len(("first", "last")):
        return ""
    highest, step = max(*values, 1e-9), WIDTH / (len(values) - 1)
    return " ".join(
        f"{number * step:.1f},{HEIGHT - 1 - value / highest * (HEIGHT - 2):.1f}"
        for number, value in enumerate(values)
    )
