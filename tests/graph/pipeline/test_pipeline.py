"""A pipeline with a graph by itself: what it is built with, and what becomes of one row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rowlock import Outcome, Park, PipelineManager, Retry
from rowlock.errors import ConfigurationError, GraphError
from rowlock.events import Event, subscribe
from rowlock.graph import (
    Flow,
    GraphCallTookLong,
    GraphDeadlocked,
    GraphPipeline,
    GraphRebuilt,
    Items,
    NodeStatus,
    Outcomes,
)
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..standing.scenes import Gate, custom, settled
from .documents import Document, Ingest, Outside, documents, put

pytestmark = pytest.mark.either_database


class Bare(GraphPipeline[Document]):
    model = Document
    ready = Ingest.ready  # type: ignore[assignment]
    of_test: Callable[[Flow[Any, Any]], Any]

    def __init__(self, of_test: Any, **settings: Any) -> None:
        self.of_test = of_test
        super().__init__(**settings)

    def build(self, items: Items[Document]) -> Outcomes:
        found: Outcomes = self.of_test(items)
        return found


def test_as_many_workers_as_places() -> None:
    """Rows would be claimed for which the graph has no place, or lanes have nothing to do."""
    ingest = Ingest()
    assert ingest.settings.workers_num == (1 + 12) + (1 + 6) + (1 + 3) + (1 + 6) + 1 - 1
    assert Ingest(workers_num=5).settings.workers_num == 5

    class Three(Ingest):
        workers_num = 3

    assert Three().settings.workers_num == 3
    assert (ingest.settings.queue_lower_limit_factor, ingest.settings.queue_upper_limit_factor) == (
        0.25,
        0.5,
    )
    wide = Bare(lambda items: items.buffer(100_000))
    assert wide.settings.workers_num == 10_000


PLACES: dict[str, tuple[Any, int]] = {
    "nothing": (lambda flow: flow, 1),
    "a lane": (lambda flow: flow.map(id), 1 + 1 + 1),
    "lanes": (lambda flow: flow.map(id, lanes=3), 1 + 3 + 3 + 3 + 1),
    "a buffer": (lambda flow: flow.buffer(7), 1 + 7 + 1),
    "parts": (lambda flow: flow.fan_out(list, lambda parts: parts.map(id)), 1 + 2 + 1),
    "parts of parts": (
        lambda flow: flow.fan_out(
            list, lambda parts: parts.fan_out(list, lambda inner: inner.map(id, lanes=9)), groups=5
        ),
        1 + 5 + 1,
    ),
    "shared": (
        lambda flow: flow.map_batch(list, size=4, within=1, lanes=2),
        1 + (4 + 2 * 3) + 2 + 2 * 4 + 3,
    ),
}


@pytest.mark.parametrize(("build", "places"), PLACES.values(), ids=PLACES)
def test_places(build: Any, places: int) -> None:
    """More rows would be claimed than the graph can hold, or fewer than keep it busy."""
    assert Bare(build).settings.workers_num == places


def test_mistakes() -> None:
    """A host would learn of its mistake from rows that fail."""

    class Without(GraphPipeline[Document]):
        model = Document

        def ready(self) -> Any:
            return Document.status == "new"

        def biuld(self) -> None:
            """Misspelt."""

    with pytest.raises(ConfigurationError, match=r"override build.*its biuld is never called"):
        Without()

    class TooLate(Ingest):
        def __init__(self) -> None:
            super().__init__()
            self.words = 3

        def build(self, items: Items[Document]) -> Outcomes:
            return items.amap(self.words)  # type: ignore[arg-type]

    with pytest.raises(ConfigurationError, match="before super"):
        TooLate()

    class NoneYet(TooLate):
        words: Any = None

    with pytest.raises(GraphError, match="None cannot be called") as caught:
        NoneYet()
    assert "what __init__ sets after that is not there yet" in caught.value.__notes__[0]
    with pytest.raises(GraphError, match="returns the flow"):
        Bare(lambda _items: None)
    with pytest.raises(AttributeError):
        Bare(lambda items: items.maap(id))


class Told:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        if type(event).__name__.startswith("Graph"):
            self.events.append(event)


@pytest.fixture
def told() -> Any:
    found = Told()
    end = subscribe(found)
    yield found
    end()


async def test_a_broken_node_has_its_rows_retried(database: TemporaryDatabase, told: Told) -> None:
    """A replica would work on nothing any more, and no one be told."""
    broken: list[str] = []

    def act(item: Any) -> NodeStatus | None:
        if item.row.url in broken:
            broken.clear()
            msg = "node"
            raise RuntimeError(msg)
        return NodeStatus.NEED_CONSUME if item.row.url == "stuck" else None

    await put(database, "one", "two")
    pipeline = Bare(lambda items: custom(items, act).map(lambda _item: None), retry_delay=60)
    async with stepping(database.session_factory, pipeline) as steps:
        broken.append("one")
        assert len(await steps.fetch_once()) == 2
        await steps.work_all()
    found = await documents(database)
    assert (found["one"].attempts, found["two"].attempts) == (1, 0)
    assert told.events == [GraphRebuilt("Bare", "RuntimeError: node")]
    await put(database, "stuck")
    told.events.clear()
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_all()
    (deadlocked,) = told.events
    assert isinstance(deadlocked, GraphDeadlocked)
    assert "custom: NEED_CONSUME" in deadlocked.text


@virtual_time
async def test_a_long_call_is_reported(
    virtual_database: TemporaryDatabase, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that hangs would be found by chance."""
    await put(virtual_database, "one")
    gate = Gate()
    pipeline = Bare(lambda items: items.amap(gate.passed, name="slow").map(lambda _item: None))
    async with PipelineManager(virtual_database.session_factory, [pipeline]):
        await gate.has_begun.wait()
        await asyncio.sleep(350)
        gate.open()
        await settled()
    assert [
        (one.operator, one.lane, round(one.seconds))
        for one in told.events
        if isinstance(one, GraphCallTookLong)
    ] == [("slow", 0, seconds) for seconds in (5, 10, 20, 40, 80, 160, 320)]
    (text,) = [one for one in caplog.messages if "takes very long" in one]
    assert "slow: ASYNC" in text


def fail(_value: Any) -> Any:
    msg = "no"
    raise ValueError(msg)


async def fail_all(_values: Any) -> Any:
    fail(_values)


def secret(_item: Any) -> str:
    return "a secret"


FAILING: dict[str, Any] = {
    "lane": lambda items: items.map(secret).map(fail),
    "shared": lambda items: items.map(secret).amap_batch(fail_all, size=2, within=0.01),
    "reading": lambda items: items.map(secret).fan_out(fail, lambda parts: parts).map(fail),
    "parts": lambda items: (
        items.map(secret).fan_out(str.split, lambda parts: parts.map(fail)).map(fail)
    ),
}


@pytest.mark.parametrize("build", FAILING.values(), ids=FAILING)
async def test_values_stay_out_of_the_log(
    build: Any, database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Contents of rows would stand in the log, in the notes on errors."""
    await put(database, "one")
    async with stepping(database.session_factory, Bare(build)) as steps:
        await steps.fetch_once()
        await steps.work_all()
    assert "ValueError: no" in caplog.text
    assert ", lane 0" in caplog.text
    assert "a secret" not in caplog.text


async def test_statistics_and_picture(database: TemporaryDatabase) -> None:
    """An operator could not see where rows are, and what is the bottleneck."""
    await put(database, "one", "two", "gone")
    ingest = Ingest()
    assert "download" in ingest.graph.mermaid()
    async with stepping(database.session_factory, ingest) as steps:
        await steps.fetch_once()
        await steps.work_all()
    counts = {one.name: (one.came, one.went) for one in ingest.graph_statistics().operators}
    assert counts["download"] == (3, 2)
    assert counts["store"] == (2, 0)


async def test_rows_that_leave_by_raising(database: TemporaryDatabase) -> None:
    """An operator could not park a row from deep inside its code."""

    def leave(item: Any) -> Outcome:
        if item.row.url == "park":
            raise Park("by hand")
        raise Retry(60, error="later")

    await put(database, "park", "retry")
    async with stepping(database.session_factory, Bare(lambda items: items.map(leave))) as steps:
        await steps.fetch_once()
        await steps.work_all()
    found = await documents(database)
    assert found["park"].parked_at is not None
    assert (found["retry"].attempts, found["retry"].last_error) == (1, "later")


async def test_the_outside_is_not_asked_for_a_parked_row(database: TemporaryDatabase) -> None:
    """A part that parks its row would let the other parts go on."""
    embedded: list[str] = []

    def part(word: str) -> Any:
        embedded.append(word)
        return Park("bad word") if word == "word-7" else word

    def build(items: Items[Document]) -> Any:
        return items.map(lambda _item: [f"word-{number}" for number in range(50)]).fan_out(
            list, lambda parts: parts.map(part)
        )

    await put(database, "one")
    async with stepping(database.session_factory, Bare(build)) as steps:
        await steps.fetch_once()
        await steps.work_all()
    assert (await documents(database))["one"].parked_at is not None
    assert len(embedded) < 15
    assert Outside().calls.total() == 0
