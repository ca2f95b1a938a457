"""What is large is worked on slice by slice, so the event loop is never busy for long, and memory
is bounded by bytes. Bounds are counted here; `python tests/bench streams-large` measures the time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import DeclarativeBase

from rowlock import Fetcher, PipelineManager
from rowlock.dialects.contract import ROWS as ROW_DIALECTS
from rowlock.streams import Streams
from rowlock.streams import snapshots as snapshot
from rowlock.streams.computing import encoding
from rowlock.streams.computing.compute import KeyState
from rowlock.streams.computing.encoding import Codec, slices
from rowlock.streams.dialects import stream_dialect as sliced_writes
from rowlock.streams.inputs import event_log
from rowlock.streams.key_states import PageBounds, read_snapshot, read_states, write_states
from rowlock.streams.shards import pipeline
from rowlock.streams.shards import runner as rounds
from rowlock.streams.shards import step_work as timers
from rowlock.streams.shards.runner import FlowRounds
from rowlock.testing import TemporaryDatabase
from rowlock.testing.streams import run_flow

from ..snapshots.reading import LONG_S, read, started_bank
from ..state.test_store import FLOW, KEYS, STAGE, new_table, write
from ..walk.flows import add_up, open_bank

pytestmark = pytest.mark.either_database(
    but=["test_states_are_written_and_read_in_slices", "test_an_append_is_written_in_slices"]
)

ROWS = 5
"""Most rows of a slice in these tests."""


@given(st.lists(st.integers(0, 12)), st.integers(1, 4), st.integers(1, 15))
def test_slices_are_bounded(sizes: list[int], rows_max: int, bytes_max: int) -> None:
    """A slice would be as large as all of it; or a row would be in none, or in two."""
    parts = [sizes[part] for part in slices(sizes, rows_max=rows_max, bytes_max=bytes_max)]
    assert [size for part in parts for size in part] == sizes
    for part in parts:
        assert 1 <= len(part) <= rows_max
        assert len(part) == 1 or sum(part) <= bytes_max


def test_slices_are_as_large_as_they_may_be() -> None:
    """Rows of usual size would be written one by one."""
    assert list(slices([1] * 10, rows_max=5, bytes_max=100)) == [slice(0, 5), slice(5, 10)]
    assert list(slices([40, 40, 40], rows_max=5, bytes_max=100)) == [slice(0, 2), slice(2, 3)]


@contextmanager
def inserts_into(engine: AsyncEngine, table: str) -> Iterator[list[int]]:
    """Count the rows of each execution of an INSERT into a table."""
    counts: list[int] = []

    def count(*call: Any) -> None:
        _, _, statement, parameters, _, is_many = call
        if f"INSERT INTO {table}" in statement:
            lists = [value for value in parameters if isinstance(value, list)]
            counts.append(len(parameters) if is_many else len(lists[0]) if lists else 1)

    event.listen(engine.sync_engine, "before_cursor_execute", count)
    try:
        yield counts
    finally:
        event.remove(engine.sync_engine, "before_cursor_execute", count)


@pytest.fixture
async def small_slices(database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have slices of `ROWS` rows."""
    async with database.engine.connect() as connection:
        monkeypatch.setattr(type(ROW_DIALECTS.of(connection)), "rows_max", ROWS)


@pytest.mark.usefixtures("small_slices")
async def test_an_append_is_written_in_slices(database: TemporaryDatabase) -> None:
    """The event loop would stand still for as long as the driver has to do with 10,000 rows."""

    class Base(DeclarativeBase):
        pass

    log = Streams(Base).log("numbers", int, key=str)
    await database.create_tables(Base.metadata)
    with inserts_into(database.engine, "rowlock_stream_log") as counts:
        async with database.session_factory.begin() as session:
            added = await log.append(session, range(2 * ROWS + 2))
    assert counts == [ROWS, ROWS, 2]
    assert added.last - added.first == 2 * ROWS + 1


@pytest.mark.at_length
async def test_events_are_encoded_in_turns(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything else in the loop would wait until 10,000 events are texts."""
    monkeypatch.setattr(event_log, "ENCODED_AT_ONCE", ROWS)
    trace: list[str] = []

    class Base(DeclarativeBase):
        pass

    def key(number: int) -> str:
        trace.append("x")
        return str(number)

    async def be_there() -> None:
        while True:
            trace.append(" ")
            await asyncio.sleep(0)

    log = Streams(Base).log("numbers", int, key=key)
    await database.create_tables(Base.metadata)
    other = asyncio.create_task(be_there())
    async with database.session_factory.begin() as session:
        await log.append(session, range(3 * ROWS))
    other.cancel()
    assert max(map(len, "".join(trace).split())) == ROWS


@pytest.mark.usefixtures("small_slices")
async def test_states_are_written_and_read_in_slices(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of 10,000 keys, or of large states, would keep the loop busy; a part would be lost."""
    table, engine = await new_table(database), database.engine
    states = {key: KeyState(f'"{key}"', None) for key in KEYS}
    async with engine.begin() as connection:
        with inserts_into(engine, table.name) as counts:
            rows = [write(key, 1, state, None) for key, state in states.items()]
            await write_states(connection, table, FLOW, states=rows)
            assert counts == [ROWS, ROWS, len(KEYS) - 2 * ROWS]
            monkeypatch.setattr(sliced_writes, "WRITTEN_BYTES_MAX", 20)
            await write_states(connection, table, FLOW, states=rows[:4])
            assert counts[3:] == [2, 2]
        found = await read_states(connection, table, FLOW, name=STAGE, keys=KEYS)
    assert found == states


@pytest.mark.usefixtures("small_slices")
async def test_results_are_written_in_slices(database: TemporaryDatabase) -> None:
    """A step of 10,000 results would keep the loop busy."""
    bank = await open_bank(database, shards=1)
    add_up(bank)
    await bank.pay(30, accounts=12)
    with inserts_into(database.engine, "rowlock_stream_outputs") as counts:
        await run_flow(bank.sessions, bank.flow)
    assert max(counts) == ROWS
    assert sum(counts) == await bank.count("outputs")
    assert await bank.balances() == bank.paid


async def test_a_page_of_a_snapshot_is_bounded_by_bytes(database: TemporaryDatabase) -> None:
    """A thousand states of 1 MiB would be a page of a gigabyte; one that is too large for a page
    would end the iteration.
    """
    table = await new_table(database)
    sizes = [4, 4, 4, 50, 4, 9, 9, 1]
    async with database.engine.begin() as connection:
        rows = [
            write(f"k{number}", 1, KeyState("x" * size, None), None)
            for number, size in enumerate(sizes)
        ]
        await write_states(connection, table, FLOW, states=rows)
        pages: list[list[int]] = []
        after: str | None = None
        while page := await read_snapshot(
            connection, table, FLOW, name=STAGE, version=1, after=after, most=PageBounds(1_000, 12)
        ):
            pages.append([len(state.value) for _, state in page])
            after = page[-1][0]
    assert pages == [[4, 4, 4], [50], [4], [9], [9, 1]]


async def test_a_snapshot_of_large_states_is_whole(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States behind a page that was cut short would be left out."""
    monkeypatch.setattr(snapshot, "PAGE_BYTES", 3)
    bank = await started_bank(database)
    async with (
        PipelineManager(bank.sessions, bank.streams.pipelines()),
        bank.flow.snapshot(bank.sessions, timeout=LONG_S) as frozen,
    ):
        assert await read(frozen) == bank.paid


async def test_shards_are_claimed_some_at_a_time(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica of 1,024 shards would begin all of them in one turn of the loop; or hold as many as
    it claims at once.
    """
    monkeypatch.setattr(pipeline, "CLAIMED_AT_ONCE", ROWS)
    claim, limits = Fetcher.fetch_once, list[int]()

    async def fetch_once(self: Fetcher[Any], limit: int) -> int:
        limits.append(limit)
        return await claim(self, limit)

    monkeypatch.setattr(Fetcher, "fetch_once", fetch_once)
    bank = await open_bank(database, shards=16)
    add_up(bank)
    await bank.pay(60)
    await run_flow(bank.sessions, bank.flow)
    assert await bank.balances() == bank.paid
    assert max(limits) == ROWS
    assert len(limits) >= 4


async def test_shards_are_opened_some_in_a_transaction(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far from the database, a replica of 1,024 shards would run out of time while it opens them,
    again and again.
    """
    monkeypatch.setattr(rounds, "OPENED_AT_ONCE", ROWS)
    together: list[int] = []

    async def open_timers(connection: Any, program: Any, shard: Any, **options: Any) -> None:
        together[-1] += 1
        await timers.open_timers(connection, program, shard, **options)

    async def open_some(self: FlowRounds, connection: Any, closed: Any) -> None:
        together.append(0)
        await opens(self, connection, closed)

    opens = FlowRounds._open
    monkeypatch.setattr(FlowRounds, "_open", open_some)
    monkeypatch.setattr(rounds, "open_timers", open_timers)
    bank = await open_bank(database, shards=16)
    add_up(bank)
    await bank.pay(60)
    await run_flow(bank.sessions, bank.flow)
    assert await bank.balances() == bank.paid
    assert max(together) == ROWS
    assert sum(together) >= 16


@pytest.mark.parametrize(
    ("texts_max", "bytes_max", "calls"), [(5, 1000, 5), (1000, 30, 4), (1000, 1000, 1)]
)
def test_texts_are_parsed_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch, texts_max: int, bytes_max: int, calls: int
) -> None:
    """A call that parses all texts of a step keeps the interpreter from the event loop."""
    monkeypatch.setattr(encoding, "PARSED_TEXTS_MAX", texts_max)
    monkeypatch.setattr(encoding, "PARSED_BYTES_MAX", bytes_max)
    loads, seen = json.loads, list[str]()

    def count(text: str, **options: Any) -> Any:
        seen.append(text)
        return loads(text, **options)

    monkeypatch.setattr(json, "loads", count)
    values = list(range(1000, 1000 + 11))
    assert Codec(int).decode_many([*map(str, values)] * 2) == values * 2
    assert len(seen) == calls
