"""What a reference is: a flow over rows, what it came to, and a count of the same rows by other
means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock.streams import Output, StreamFlow

Sessions = async_sessionmaker[AsyncSession]
Rows = Counter[tuple[Any, ...]]
"""Results without an order; the same one twice is not the same as once."""
WITHOUT_BUCKET = 3
"""Of so many transactions one adds its rows without a bucket, as raw SQL does."""


class Fact(NamedTuple):
    """A row that is added to a source."""

    model: type[Any]
    values: Mapping[str, Any]


async def add(sessions: Sessions, facts: Sequence[Fact], number: int) -> None:
    """Add facts in one transaction, those of each table in their order."""
    by_model: dict[type[Any], list[Mapping[str, Any]]] = {}
    without = {"bucket": None} if number % WITHOUT_BUCKET == WITHOUT_BUCKET - 1 else {}
    for fact in facts:
        by_model.setdefault(fact.model, []).append({**fact.values, **without})
    async with sessions.begin() as session:
        for model, rows in by_model.items():
            await session.execute(insert(model), rows)


@dataclass(frozen=True)
class Supply:
    """Events, and the way of adding them."""

    name: str
    events: Callable[[int], Iterable[Any]]
    add: Callable[[Sessions, Sequence[Any], int], Awaitable[None]] = add


@dataclass(frozen=True)
class Reference:
    """A known query.

    Attributes:
        flow: which answers it.
        supply: what it reads.
        found: returns the answer of the flow.
        recount: returns the answer of code that knows nothing of the wing.
        has_timers: results are emitted by the time of the steps, too.
    """

    flow: StreamFlow[Any]
    supply: Supply
    found: Callable[[Sessions], Awaitable[Rows]] = field(repr=False)
    recount: Callable[[Sessions], Awaitable[Rows]] = field(repr=False)
    has_timers: bool = False

    async def difference(self, sessions: Sessions) -> tuple[Rows, Rows, int]:
        """Return what is missing in the answer of the flow, what it has too much, and how many
        results there should be.
        """
        found, expected = await self.found(sessions), await self.recount(sessions)
        return expected - found, found - expected, expected.total()


def by_sql(statement: str) -> Callable[[Sessions], Awaitable[Rows]]:
    async def read(sessions: Sessions) -> Rows:
        async with sessions() as session:
            return Counter(tuple(row) for row in await session.execute(text(statement)))

    return read


def emitted(output: Output[Any]) -> Callable[[Sessions], Awaitable[Rows]]:
    async def read(sessions: Sessions) -> Rows:
        rows: Rows = Counter()
        async for result in output.consume(sessions, follow=False):
            rows.update(tuple(value) for value in result.values)
        return rows

    return read


def last_of_keys(output: Output[int]) -> Callable[[Sessions], Awaitable[Rows]]:
    async def read(sessions: Sessions) -> Rows:
        last: dict[str | None, int] = {}
        async for result in output.consume(sessions, follow=False):
            last |= {row.key: row.value for row in result.rows}
        return Counter(last.items())

    return read


def chunks(events: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [events[begin : begin + size] for begin in range(0, len(events), size)]
