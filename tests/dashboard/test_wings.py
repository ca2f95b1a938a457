"""Pages about flows of streams and about standing graphs."""

from __future__ import annotations

import html
from typing import Any

import pytest
from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import PipelineManager
from rowlock.dashboard import Dashboard
from rowlock.errors import ConfigurationError
from rowlock.graph import StandingGraph
from rowlock.streams import EventColumns, StepContext, Streams
from rowlock.testing import TemporaryDatabase

from .shop_window import browser, everything

pytestmark = pytest.mark.either_database


class Base(DeclarativeBase):
    """Classes of this host alone."""


class Payment(EventColumns, Base):
    __tablename__ = "payments"
    __stream_key__ = "account"
    account: Mapped[str] = mapped_column(String(40))
    cents: Mapped[int]


STREAMS = Streams(Base)
BALANCES = STREAMS.flow("balances", Payment, shards=4)


@BALANCES.by_key(state=int)
def add(step: StepContext, account: str, cents: int | None, payments: list[Payment]) -> int:
    return (cents or 0) + sum(payment.cents for payment in payments)


async def pay(database: TemporaryDatabase) -> Payment:
    async with database.session_factory.begin() as session:
        session.add(payment := Payment(account="a", cents=5))
        BALANCES.hint_after_commit(session)
    return payment


async def test_flows_are_shown_with_what_they_wait_for(database: TemporaryDatabase) -> None:
    """A person would not see that a flow stands still, nor why."""
    manager = PipelineManager(database.session_factory, STREAMS.pipelines())
    app = Dashboard(manager, authorize=everything, streams=[STREAMS])
    async with browser(database, app=app) as client:
        page = await client.get("/streams")
        assert page.status_code == 200
        assert "The database" in page.text
        await database.create_tables(Base.metadata)
        async with manager:
            first = await pay(database)
            await BALANCES.wait_for(database.session_factory, first, timeout=60)
        await pay(database)
        app._recent.forget()
        text = html.unescape((await client.get("/streams")).text)
        async with database.session_factory() as session:
            status = await BALANCES.status(session)
        assert status.text in text
        assert "<dd>1 row," in text
        assert (await client.get("/")).text.count('href="/streams"') == 1


async def test_graphs_are_shown_with_what_they_do(sqlite_database: TemporaryDatabase) -> None:
    """A person would not see which operator holds the others up."""
    graph: StandingGraph[str, str] = StandingGraph(
        lambda texts: texts.map(str.strip, on="loop"), name="<b>texts</b>"
    )
    manager = PipelineManager(sqlite_database.session_factory, STREAMS.pipelines())
    app = Dashboard(manager, authorize=everything, graphs=[graph])
    async with browser(sqlite_database, app=app) as client, graph:
        assert await graph.submit(" a ") == "a"
        text = (await client.get("/graphs")).text
        assert "&lt;b&gt;texts&lt;/b&gt;" in text
        assert ">strip</text>" in text
        assert text.count("<polyline") == 2
        assert text.count('text-anchor="middle">1</text>') == 2
        assert "This dashboard was given no streams." in (await client.get("/streams")).text


async def test_wings_are_what_they_are() -> None:
    """A mistake would be found by the first viewer."""
    strange: Any = [7]
    for how in ({"streams": strange}, {"graphs": strange}):
        with pytest.raises(ConfigurationError, match="a Dashboard takes streams="):
            Dashboard(lambda: strange, authorize=everything, **how)
