"""What an observer does in all databases of its replica, side by side.

The one idea: a database that is away keeps the replica from no other: there it lives, and hears of
pauses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

from rowlock.insight.asking.concurrent_questions import asked_concurrently
from rowlock.insight.asking.databases import DATABASES_AT_ONCE_MAX
from rowlock.insight.asking.hosted_pipelines import Sessions
from rowlock.pipelines.pipeline import Pipeline

Act: TypeAlias = Callable[[Sessions, list[Pipeline[Any]]], Awaitable[list[Exception]]]
"""Acts in one database, for the pipelines that work there, and returns what went wrong."""


async def in_each_database(
    databases: Iterable[tuple[Sessions, list[Pipeline[Any]]]], act: Act
) -> None:
    """Do `act` in each of `databases`.

    Raises:
        Exception: the first of what went wrong, when it was done in all of them.
    """
    asks = [partial(_failures, act, *one) for one in databases]
    found = await asked_concurrently(asks, at_once=DATABASES_AT_ONCE_MAX)
    for failure in (one for failures in found for one in failures):
        raise failure


async def _failures(
    act: Act, sessions: Sessions, pipelines: list[Pipeline[Any]]
) -> list[Exception]:
    try:
        return await act(sessions, pipelines)
    except Exception as error:  # noqa: BLE001 - of a host's database, whatever it is
        return [error]
