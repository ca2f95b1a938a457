"""What a measure is: a coroutine from a place and a scale to figures, under a name that can be
asked for.

A measure that has a limit (the drivers alone, doing the same writes) takes it in the same round;
rounds take turns in which of the two comes first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Figures = dict[str, float]
"""By name with its unit: ``{"rows/s": 9_000.0}``."""
SQLITE, POSTGRESQL, NOWHERE = "SQLite", "PostgreSQL", "no database"


@dataclass(frozen=True)
class Place:
    """A database that is empty, or may be emptied; or none, without a URL."""

    name: str
    url: str


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        rows: how many are drained.
        quick: smaller and shorter, to see that a measure works.
        limit_first: whether the limit comes before what is measured in this round.
    """

    rows: int
    quick: bool
    limit_first: bool

    def pick(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True)
class Measure:
    """One line of the table.

    Attributes:
        name: by which it is asked for.
        title: what is measured.
        run: measures once.
        databases: where it means something.
        rounds_max: how often at most, for one that is long and steady.
    """

    name: str
    title: str
    run: Callable[[Place, Scale], Awaitable[Figures]]
    databases: tuple[str, ...] = (SQLITE, POSTGRESQL)
    rounds_max: int = 100


async def until(holds: Callable[[], bool]) -> None:
    """Wait until `holds`; looks ten times a second, for what nobody tells."""
    while not holds():  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0.1)


async def beside(
    limit: Callable[[], Awaitable[Figures]],
    measured: Callable[[], Awaitable[Figures]],
    *,
    limit_first: bool,
) -> tuple[Figures, Figures]:
    """Run both, one after the other, and return the figures of `limit`, then those of
    `measured`.
    """
    if limit_first:
        first = await limit()
        return first, await measured()
    second = await measured()
    return await limit(), second
