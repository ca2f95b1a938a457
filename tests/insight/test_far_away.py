"""Questions to a database that is far away: side by side, and in as few statements as can be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import event

from rowlock.insight import Insight, insight_tables
from rowlock.insight.asking import QUESTIONS_AT_ONCE_MAX, asked_concurrently
from rowlock.testing import TemporaryDatabase

from .shop import Base, FleetPipeline, Scene, VolumePipeline, furnish, insight_of
from .test_places import connections_of

TABLES = insight_tables(Base.metadata)
ASKED = QUESTIONS_AT_ONCE_MAX + 1
STEPS_MAX = 1_000


class Asked:
    """Questions that end when they are let go, each with its number."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.cancelled: list[int] = []
        self.ends = [asyncio.Event() for _ in range(ASKED)]
        self.fails: int | None = None

    async def ask(self, number: int) -> int:
        """Begin, wait to be let go, and give the number."""
        self.begun.append(number)
        try:
            await self.ends[number].wait()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        if number == self.fails:
            raise LookupError(number)
        return number

    def under_way(self) -> asyncio.Task[list[int]]:
        asks = [lambda number=number: self.ask(number) for number in range(ASKED)]
        return asyncio.create_task(asked_concurrently(asks))

    async def until_begun(self, count: int) -> None:
        """Wait until so many were begun, and see that no more are."""
        for _ in range(STEPS_MAX):
            await asyncio.sleep(0)
        assert self.begun == list(range(count))


async def test_answers_stand_in_the_order_of_their_questions() -> None:
    """The counts of one pipeline would stand in the line of another; or all would be asked at once,
    and have the whole pool of the host.
    """
    asked = Asked()
    under_way = asked.under_way()
    await asked.until_begun(QUESTIONS_AT_ONCE_MAX)
    asked.ends[2].set()
    await asked.until_begun(ASKED)
    for end in reversed(asked.ends):
        end.set()
        await asyncio.sleep(0)
    assert await under_way == list(range(ASKED))


async def test_the_error_of_one_is_the_error_of_all() -> None:
    """Who asks would get a group of errors, which no exit code is for; and what was begun beside it
    would go on, in connections of the host.
    """
    asked = Asked()
    asked.fails = 1
    under_way = asked.under_way()
    await asked.until_begun(QUESTIONS_AT_ONCE_MAX)
    asked.ends[1].set()
    with pytest.raises(LookupError) as raised:
        await under_way
    assert sorted(asked.cancelled) == [0, 2, 3]
    assert raised.value.__context__ is None


async def test_who_goes_away_leaves_no_question_behind() -> None:
    """A page that was closed would have its questions go on."""
    asked = Asked()
    under_way = asked.under_way()
    await asked.until_begun(QUESTIONS_AT_ONCE_MAX)
    under_way.cancel()
    with pytest.raises(asyncio.CancelledError):
        await under_way
    assert sorted(asked.cancelled) == [0, 1, 2, 3]


@contextmanager
def statements_of(database: TemporaryDatabase) -> Iterator[list[str]]:
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    engine = database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    yield sent
    event.remove(engine, "before_cursor_execute", note)


def many(database: TemporaryDatabase) -> Insight:
    """Return the questions to an app with more pipelines than are asked at once."""
    pipelines = [
        type(f"Number{number}Pipeline", (VolumePipeline,), {})() for number in range(2 * ASKED)
    ]
    return insight_of(database, pipelines=[*pipelines, FleetPipeline()], tables=TABLES)


async def test_a_status_is_one_statement_for_each_pipeline(
    database_with_clock: TemporaryDatabase, database_name: str
) -> None:
    """From far away a status would take as long as thrice as many questions; or it would have more
    of the pool than questions may have.
    """
    await furnish(database_with_clock, Scene(before=3))
    insight = many(database_with_clock)
    await insight.status()
    with statements_of(database_with_clock) as sent, connections_of(database_with_clock) as used:
        status = await insight.status()
    assert [one.pipeline for one in status.pipelines] == list(insight.pipelines)
    assert [one.counts.due for one in status.pipelines] == [*[4] * 2 * ASKED, 0]
    # And on PostgreSQL one that sets how long it may take; the replicas are asked for, too.
    asked = len(status.pipelines) + 1
    assert len(sent) == asked * (1 if database_name == "sqlite" else 2)
    assert max(used) <= QUESTIONS_AT_ONCE_MAX


async def test_what_there_was_no_time_for_is_said(database_with_clock: TemporaryDatabase) -> None:
    """A status of a slow database would end in an error, or a pipeline that was not asked would
    seem to have nothing that waits.
    """
    await furnish(database_with_clock, Scene())
    insight = many(database_with_clock)
    status = await insight.status(within=timedelta(0))
    assert [one.pipeline for one in status.pipelines] == list(insight.pipelines)
    assert {one.counts.due for one in status.pipelines} == {None}
    assert "? pipelines without counts" in status.text()
    assert status.replicas.known == ()
