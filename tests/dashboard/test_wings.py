"""Pages about flows of streams and about standing graphs."""

from __future__ import annotations

import html
import re
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import PipelineManager
from rowlock.dashboard import Dashboard
from rowlock.dashboard.drawing.graph_drawing import HEIGHT, TITLE_CHARS_MAX, WIDTH, drawing_of
from rowlock.errors import ConfigurationError
from rowlock.graph import StandingGraph
from rowlock.graph.building.pictures import Arrow, Box, Picture
from rowlock.streams import EventColumns, StepContext, Streams
from rowlock.testing import TemporaryDatabase

from .shop_window import browser, everything


class Base(DeclarativeBase):
    """Classes of this host alone."""


class Payment(EventColumns, Base):
    """A fact."""

    __tablename__ = "payments"
    __stream_key__ = "account"
    account: Mapped[str] = mapped_column(String(40))
    cents: Mapped[int]


STREAMS = Streams(Base)
BALANCES = STREAMS.flow("balances", Payment, shards=4)


@BALANCES.by_key(state=int)
def add(step: StepContext, account: str, cents: int | None, payments: list[Payment]) -> int:
    """Add payments to the balance of their account."""
    return (cents or 0) + sum(payment.cents for payment in payments)


def edges(count: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Return edges between so many operators, none of which leads back."""
    return st.lists(st.sampled_from([(0, 0), *combinations(range(count), 2)])).map(
        lambda found: [edge for edge in found if edge != (0, 0)]
    )


async def pay(database: TemporaryDatabase) -> Payment:
    """Write a payment."""
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
        assert re.search(r'<path class="edge" d="M[^"]+" [^>]+/><text class="passed"[^>]*>1<', text)
        assert "This dashboard was given no streams." in (await client.get("/streams")).text


def picture(count: int, *arrows: tuple[int, int]) -> Picture:
    """Return what is drawn of a graph with so many operators."""
    boxes = [Box("n" * 60, 3, ("a" * 60,), is_bottleneck=True, is_joint=False)] * count
    return Picture(boxes, [Arrow(*arrow, passed=1) for arrow in arrows], left_out=1)


@given(st.integers(1, 9).flatmap(lambda count: st.tuples(st.just(count), edges(count))))
def test_values_flow_downwards_and_no_box_hides_another(
    drawn: tuple[int, list[tuple[int, int]]],
) -> None:
    """A picture would be a heap of boxes."""
    count, arrows = drawn
    drawing = drawing_of(picture(count, *arrows))
    for source, target in arrows:
        assert drawing.boxes[source].y + HEIGHT < drawing.boxes[target].y
    for one, other in combinations(drawing.boxes, 2):
        assert abs(one.x - other.x) >= WIDTH or abs(one.y - other.y) >= HEIGHT
    for box in drawing.boxes:
        assert 0 <= box.x <= drawing.width - WIDTH
        assert 0 <= box.y <= drawing.height - HEIGHT
        assert len(box.title) <= TITLE_CHARS_MAX


def test_a_picture_has_an_end() -> None:
    """A graph with a circle, or with hundreds of operators, would cost the page."""
    assert len(drawing_of(picture(3, (0, 1), (1, 2), (2, 0), (1, 1))).arrows) == 4
    large = drawing_of(picture(500, *((0, one) for one in range(1, 500))))
    assert (len(large.boxes), len(large.arrows), large.left_out) == (60, 59, 441)
    assert drawing_of(Picture([], [], 0)).boxes == ()


async def test_wings_are_what_they_are() -> None:
    """A mistake would be found by the first viewer."""
    strange: Any = [7]
    for how in ({"streams": strange}, {"graphs": strange}):
        with pytest.raises(ConfigurationError, match="a Dashboard takes streams="):
            Dashboard(lambda: strange, authorize=everything, **how)
