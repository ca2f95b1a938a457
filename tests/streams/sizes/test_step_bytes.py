"""Steps are bounded by bytes: a step of 10,000 rows of 1 MB would be 10 GB in memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import JSON, LargeBinary, String, Text, func, insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import SettingsError
from rowlock.streams import EventColumns, StepContext, Streams
from rowlock.streams.cut_plan import (
    BYTES_TOGETHER_MAX,
    Checkpoint,
    Cut,
    CutBounds,
    FlowCuts,
    ShardProgress,
    SourceView,
    plan_cut,
)
from rowlock.streams.cutter import KnownFlow
from rowlock.streams.flow_view import BEFORE_FIRST
from rowlock.streams.inputs.table_source import event_table
from rowlock.streams.shards import steps as steering
from rowlock.testing import TemporaryDatabase
from rowlock.testing.streams import recorded, run_flow

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LONG = 1_200


def cut(*sources: SourceView, step_bytes_max: int, step_rows_max: int = 100) -> Cut:
    found = plan_cut(
        FlowCuts(next_step=0),
        sources,
        [ShardProgress(0)],
        clock=NOON,
        checkpoint=Checkpoint(),
        bounds=CutBounds(step_rows_max, step_bytes_max),
    )
    assert isinstance(found, Cut)
    return found


def source(name: str, sizes: Sequence[int], positions: Sequence[int] | None = None) -> SourceView:
    ahead = range(1, len(sizes) + 1) if positions is None else positions
    return SourceView(name, 0, 1_000, ahead, sizes=sizes)


@pytest.mark.parametrize(
    ("sizes", "upto", "size"),
    [
        ([10, 10, 10], 3, 30),
        ([10, 10, 15], 2, 20),
        ([40, 10], 1, 40),
        ([10, 40], 1, 10),
        ([0, 0, 31], 2, 0),
    ],
)
def test_bytes_of_a_step(sizes: list[int], upto: int, size: int) -> None:
    """A step would be larger than memory; or a row that is larger than a step would never come."""
    found = cut(source("a", sizes), step_bytes_max=30)
    assert (found.upto["a"], found.bytes) == (1_000 if upto == len(sizes) else upto, size)
    assert found.rows == upto


def test_sources_share_the_bytes_of_a_step() -> None:
    """One source with large rows would keep those of another waiting for ever."""
    found = cut(source("a", [10] * 9), source("b", [1, 1]), step_bytes_max=42)
    assert found.upto == {"a": 4, "b": 1_000}
    found = cut(source("a", [10] * 9), source("b", [90, 1]), step_bytes_max=40)
    assert found.upto == {"a": 2, "b": 1}


def test_a_position_is_in_one_step() -> None:
    """Results of one step of another flow would be divided among two."""
    found = cut(source("a", [10] * 5, [1, 1, 2, 2, 2]), step_bytes_max=40)
    assert (found.upto, found.rows, found.bytes) == ({"a": 1}, 2, 20)


@given(
    st.lists(st.lists(st.integers(0, 20), max_size=8), min_size=1, max_size=3), st.integers(1, 60)
)
def test_steps_of_any_sizes_come_to_an_end(rows: list[list[int]], most: int) -> None:
    """A row would be passed over, or steps would be cut in which nothing is."""
    done = dict.fromkeys(range(len(rows)), 0)
    for _ in range(sum(map(len, rows)) + 1):
        views = [
            SourceView(str(n), done[n], 1_000, range(1, len(own) + 1), sizes=own)
            for n, own in enumerate(rows)
            if done[n] < 1_000
        ]
        if not any(view.upto < len(view.sizes) for view in views):
            break
        found = cut(*views, step_bytes_max=most)
        assert found.rows > 0
        assert found.bytes <= most + sum(max(view.sizes, default=0) for view in views)
        done |= {int(name): upto for name, upto in found.upto.items()}
    else:
        pytest.fail("there are rows that no step reaches")


async def test_steps_of_large_events(database: TemporaryDatabase) -> None:
    """A replica would be out of memory behind a burst of large events."""

    class Base(DeclarativeBase):
        pass

    streams = Streams(Base)
    log = streams.log("texts", str, key=lambda text: text[:1])
    flow = streams.flow("counts", log, shards=2, step_bytes_max=250)

    @flow.by_key(state=int)
    def count(step: StepContext, key: str, before: int | None, texts: Sequence[str]) -> int:
        return (before or 0) + len(texts)

    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        # Each is a JSON text of 100 bytes, and one of 1,000.
        await log.append(session, ["a".ljust(98, ".")] * 6 + ["b".ljust(998, ".")])
    record = await run_flow(database.session_factory, flow)
    assert record.states["count"] == {"a": 6, "b": 1}
    assert record == await recorded(database.session_factory, flow)
    steps = streams.tables.steps.c
    async with database.session_factory() as session:
        found = select(steps.bytes).where(steps.step > BEFORE_FIRST).order_by(steps.step)
        assert list(await session.scalars(found)) == [200, 200, 200, 1000]


async def test_what_counts_of_a_row(database: TemporaryDatabase) -> None:
    """Columns that are long would not count, or each row be read for the length of short ones."""

    class Base(DeclarativeBase):
        pass

    class Note(EventColumns, Base):
        __tablename__ = "notes"
        __stream_key__ = "name"
        name: Mapped[str] = mapped_column(String(50))
        text: Mapped[str | None] = mapped_column(Text)
        tags: Mapped[Any] = mapped_column(JSON)
        picture: Mapped[bytes | None] = mapped_column(LargeBinary)
        title: Mapped[str | None] = mapped_column(String(LONG))

    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        rows = [
            {"name": "a", "text": "äö", "tags": [], "picture": b"12345", "title": "x" * 7},
            {"name": "b" * 50, "text": None, "tags": [1], "picture": None, "title": None},
        ]
        for row in rows:
            await session.execute(insert(Note), [row])
    async with database.engine.connect() as connection:
        ahead = await event_table(Note).ahead(connection, after=0, upto=10, limit=5)
        assert await connection.scalar(select(func.count()).select_from(Note)) == 2
    assert ahead == ([1, 2], [4 + 2 + 5 + 7, 3])


def test_lagging_shards_do_fewer_large_steps_at_once() -> None:
    """Each of 32 steps would be bounded, and all of them be read at once."""

    class Base(DeclarativeBase):
        pass

    half = BYTES_TOGETHER_MAX // 2
    streams = Streams(Base)
    flow = streams.flow("counts", streams.log("a", str, key=str))
    known = KnownFlow(flow._declared)
    cuts = [
        Cut(step, {"a": step + 1}, NOON + timedelta(step), True, False, bytes=size)
        for step, size in enumerate([half, half, 1, 3 * half, 1])
    ]
    before = Cut(BEFORE_FIRST, {"a": 0}, NOON, True, False)
    sizes = []
    while cuts:
        taken = steering.together(known, before, cuts)
        sizes.append([one.bytes for one in taken])
        before, cuts = taken[-1], cuts[len(taken) :]
    assert sizes == [[half, half], [1], [3 * half], [1]]


def test_a_step_of_no_bytes_is_refused() -> None:
    """A setting that means nothing would be found when the flow stands still."""

    class Base(DeclarativeBase):
        pass

    streams = Streams(Base)
    log = streams.log("texts", str, key=str)
    with pytest.raises(SettingsError, match="step_bytes_max"):
        streams.flow("counts", log, step_bytes_max=0)
