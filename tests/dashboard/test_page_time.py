"""A page has one time, and so has all that it asks: nothing behind it waits for longer."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import TransactionTimeout
from rowlock.dashboard import Dashboard, dashboard
from rowlock.insight import Insight, InsightLimits
from rowlock.insight.asking import wanted_within
from rowlock.tasks import finish
from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX
from ..insight.shop import VolumePipeline
from .shop_window import browser, everything, furnished
from .test_hung_questions import HangingPipeline

pytestmark = pytest.mark.either_database

LONG = timedelta(hours=2)
SILENT = timedelta(seconds=30)
"""For how long a database says nothing; a page that waits for it has a test fail, not hang."""
LIMITS = InsightLimits(timeout=LONG, statement_timeout=LONG, count_timeout=LONG)


def insight_of(database: TemporaryDatabase) -> Insight:
    return Insight(database.session_factory, [VolumePipeline()], limits=LIMITS)


async def test_a_page_is_not_kept_by_a_transaction_that_cannot_be_ended(
    sqlite_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a connection that is silent a page would take its own time, and then that of the
    transaction; a person at night would look at an empty window.
    """
    monkeypatch.setattr(dashboard, "PAGE_S_MAX", 0.05)
    insight, silence = insight_of(sqlite_database), asyncio.Event()
    questions: list[asyncio.Task[Any]] = []

    async def hang(*_what: Any) -> None:
        questions.append(asyncio.current_task())  # type: ignore[arg-type]
        await finish(silence.wait(), purpose="hang", timeout=SILENT)

    monkeypatch.setattr(insight, "explain", hang)
    app = Dashboard(insight, authorize=everything)
    async with browser(sqlite_database, app=app) as client:
        answer = await client.get("/rows/Volume/17")
    assert (answer.status_code, silence.is_set()) == (503, False)
    assert "The database does not answer." in answer.text
    [question] = questions
    assert not question.done()
    silence.set()
    await asyncio.wait(questions)
    assert question.cancelled()


async def test_all_questions_end_with_the_time_of_their_page(database: TemporaryDatabase) -> None:
    """Each has a limit of its own: several in a row, or one that begins late, would outlast the
    page, and keep connections of the host's pool for nobody.
    """
    await furnished(database)
    insight = insight_of(database)
    leased = insight.pipelines["VolumePipeline"].leased

    async def longest_s(connection: AsyncConnection) -> float:
        if connection.dialect.name != "postgresql":
            return 0.0
        shown = "SELECT setting FROM pg_settings WHERE name = 'statement_timeout'"
        return float(await connection.scalar(text(shown)) or "nan") / 1000

    with wanted_within(HANG_S_MAX):
        assert await insight.read(leased, longest_s) <= HANG_S_MAX
        # In what a page begins and does not await, too.
        with wanted_within(0):
            question = asyncio.create_task(insight.read(leased, longest_s))
        with pytest.raises(TransactionTimeout):
            await question
    with wanted_within(0), pytest.raises(TransactionTimeout):
        await insight.make_due("Volume", 17, by="alice", reason="late")
    assert await insight.read(leased, longest_s) in {0.0, LONG.total_seconds()}


async def test_parts_of_what_hangs_fit_into_a_page(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pipelines whose `ready` hangs would take all the time of a page, and there would be none:
    what hangs is asked as a whole, and then stands in several parts.
    """
    await furnished(postgresql_database)
    limits = InsightLimits(statement_timeout=timedelta(seconds=0.4))
    insight = Insight(postgresql_database.session_factory, [HangingPipeline()], limits=limits)
    timeouts, read = [], insight.read

    async def noted(*what: Any, **how: Any) -> Any:
        timeouts.append(how.get("statement_timeout"))
        return await read(*what, **how)

    monkeypatch.setattr(insight, "read", noted)
    [told] = (await insight.explain("Volume", 17)).pipelines
    assert "statement timeout" in told.headline
    assert timeouts == [None, timedelta(seconds=0.1)]
