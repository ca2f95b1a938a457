"""Keys that a script has spoilt, or that the host's own type refuses."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from sqlalchemy import Dialect, String, Text, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from rowlock import Apply, LockColumns, Pipeline, PipelineItem, ScheduleColumns, events
from rowlock.leases import claim_request
from rowlock.testing import Steps, TemporaryDatabase, stepping

from ..host import Attachment, RecordingPipeline, Volume, VolumePipeline, heard_events
from ..leases.test_claim_resumed import LONG_AGO
from ..lengths import at_length
from ..pipelines.scenes import add, is_free

ANOTHER = uuid.UUID("0ce54f70-4506-48fb-9e58-51395649c43a")
NO_KEYS: list[tuple[str, Any]] = [
    ("no uuid", "no uuid"),
    ("empty", ""),
    ("bytes", b"\x00\xff"),
    ("bytes that nobody can compare", ANOTHER.bytes),
    ("a number", 7),
    ("in another shape", str(ANOTHER)),
]
with_and_without_rows = pytest.mark.parametrize(
    "with_rows", [True, False], ids=["with rows", "without rows"]
)


async def spoil(database: TemporaryDatabase, *written: Any, last: str | None = None) -> None:
    values = [{"key": key, "last": last} for key in written]
    insert = (
        "INSERT INTO volumes (id, status, size_gb, last_processed_at) VALUES (:key, 'submitted', 1,"
        " :last)"
    )
    async with database.engine.begin() as connection:
        await connection.execute(text(insert), values)


async def statuses(database: TemporaryDatabase) -> dict[Any, str]:
    async with database.engine.connect() as connection:
        return dict(map(tuple, await connection.execute(text("SELECT id, status FROM volumes"))))


def claims_rows(steps: Steps[Any], *, with_rows: bool) -> None:
    steps.run.context.claims_rows = with_rows


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage() for record in caplog.records if ": skipping " in record.getMessage()
    ]


@pytest.mark.parametrize(
    ("written", "with_rows"),
    [
        pytest.param(written, with_rows, id=f"{name}-{with_rows}")
        for number, (name, written) in enumerate(NO_KEYS)
        for with_rows in at_length((number % 2 == 0,), (True, False))
    ],
)
async def test_a_key_that_is_none_costs_its_own_row_only(
    sqlite_database: TemporaryDatabase,
    caplog: pytest.LogCaptureFixture,
    written: Any,
    *,
    with_rows: bool,
) -> None:
    """One such row would fail every claim and stop the pipeline, or be claimed for ever; and
    nobody would be told which it is.
    """
    good = await add(sqlite_database, Volume(), Volume())
    await spoil(sqlite_database, written)
    with heard_events() as heard:
        async with stepping(sqlite_database.session_factory, VolumePipeline()) as steps:
            claims_rows(steps, with_rows=with_rows)
            items = await steps.fetch_once()
            assert {item.id for item in items} == {row.id for row in good}
            assert {item.has_row for item in items} == {with_rows}
            await steps.work_all()
            assert await steps.fetch_once() == []
    assert heard.of(events.FetchFailed) == []
    expected = {row.id.hex: "active" for row in good}
    found = await statuses(sqlite_database)
    assert {key: status for key, status in found.items() if status == "active"} == expected
    assert (len(found), len(told(caplog))) == (3, 1)


@with_and_without_rows
async def test_many_such_rows_at_the_head_starve_nobody(
    sqlite_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture, *, with_rows: bool
) -> None:
    """They would take all places of every claim, or one more claim each, and those behind would
    wait.
    """
    await add(sqlite_database, Volume(), Volume())
    await spoil(sqlite_database, *(f" no uuid {number}" for number in range(25)))
    async with stepping(sqlite_database.session_factory, VolumePipeline()) as steps:
        claims_rows(steps, with_rows=with_rows)
        for _ in range(2):
            assert len(await steps.fetch_once(1)) == 1
        await steps.work_all()
        assert await steps.fetch_once(1) == []
    assert sorted((await statuses(sqlite_database)).values()) == ["active"] * 2 + ["submitted"] * 25
    assert len(told(caplog)) == 25


async def test_a_claim_that_resumes_leaves_such_rows_alone(
    sqlite_database: TemporaryDatabase,
) -> None:
    """One in the midst of the line would end the walk there."""
    await add(sqlite_database, *(Volume(id=uuid.UUID(int=number)) for number in (1, 3)))
    await spoil(sqlite_database, f"{2:032}"[:-1] + "g")
    async with stepping(sqlite_database.session_factory, VolumePipeline()) as steps:
        fetcher: Any = steps.run.fetcher
        ids = []
        for _ in range(2):
            fetcher._start = fetcher._reached
            ids += [item.id for item in await steps.fetch_once(1)]
    assert ids == [uuid.UUID(int=1), uuid.UUID(int=3)]


async def test_a_key_in_another_shape_takes_no_lease_of_the_row_that_has_the_key(
    sqlite_database: TemporaryDatabase,
) -> None:
    """The lease of the one would be written over that of the other, while somebody works on it."""
    await add(sqlite_database, Volume(id=ANOTHER))
    async with stepping(sqlite_database.session_factory, VolumePipeline()) as steps:
        await steps.fetch_once()
        await spoil(sqlite_database, str(ANOTHER))
        assert await steps.fetch_once() == []
        await steps.work_all()
    assert await statuses(sqlite_database) == {ANOTHER.hex: "active", str(ANOTHER): "submitted"}


async def test_how_many_are_remembered_is_bounded(
    sqlite_database: TemporaryDatabase,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table full of such rows would be all of a claim's statement, and all of the log."""
    monkeypatch.setattr(claim_request, "SPOILT_KEYS_MAX", 3)
    await add(sqlite_database, Volume())
    await spoil(sqlite_database, *(f" no uuid {number}" for number in range(5)))
    async with stepping(sqlite_database.session_factory, VolumePipeline()) as steps:
        assert [len(await steps.fetch_once(limit)) for limit in (1, 1, 3)] == [0, 0, 1]
        await steps.work_all()
        assert len(steps.run.context.leased.spoilt_keys) == 3
    assert len(told(caplog)) == 3 + 1


class Lowered(TypeDecorator[str]):
    impl = Text
    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else value.lower()


class Base(DeclarativeBase):
    """The tables of this module alone."""


class Tag(LockColumns, Base):
    """A row whose key may be written in large letters, and is found all the same."""

    __tablename__ = "tags"
    name: Mapped[str] = mapped_column(
        Lowered().with_variant(Lowered(collation="NOCASE"), "sqlite"), primary_key=True
    )
    status: Mapped[str] = mapped_column(default="new")


class TagPipeline(Pipeline[Tag]):
    model = Tag

    def ready(self) -> Any:
        return Tag.status == "new"

    async def process(self, item: PipelineItem[Tag]) -> Apply:
        return Apply({"status": "done"})


async def test_a_key_that_is_found_in_another_shape_is_not_left_alone(
    sqlite_database: TemporaryDatabase,
) -> None:
    """Rows would never be worked on although everything finds them, because their collation
    knows more than Python.
    """
    await add(sqlite_database, Tag(name="LARGE"))
    async with stepping(sqlite_database.session_factory, TagPipeline()) as steps:
        assert [item.id for item in await steps.fetch_once()] == ["large"]
        await steps.work_all()
    async with sqlite_database.engine.connect() as connection:
        assert (await connection.execute(text("SELECT name, status FROM tags"))).all() == [
            ("LARGE", "done")
        ]


LEFT = [None, "'VolumePipeline'", "'Gone'"]


@pytest.mark.parametrize("owner", LEFT, ids=str)
@pytest.mark.parametrize(
    "written", at_length(["gar", b"\xff"], ["gar", "no time", b"\xff"]), ids=repr
)
async def test_an_end_that_is_no_time_is_swept(
    sqlite_database: TemporaryDatabase, written: Any, owner: str | None
) -> None:
    """It stands behind all times, so that the lock would never end."""
    [volume] = await add(sqlite_database, Volume(lock_token=uuid.uuid4()))
    change = f"UPDATE volumes SET lock_expires_at = :written, lock_owner = {owner or 'NULL'}"
    async with sqlite_database.engine.begin() as connection:
        await connection.execute(text(change), {"written": written})
    async with stepping(sqlite_database.session_factory, VolumePipeline()) as steps:
        assert await steps.fetch_once() == []
        assert await steps.sweep_once() == 1
        [item] = await steps.fetch_once()
        await steps.work_all()
    async with sqlite_database.session_factory() as session:
        after = await session.get(Volume, volume.id)
    assert after is not None
    assert (item.id, after.status, is_free(after)) == (volume.id, "active", True)


class Ticking(TypeDecorator[str]):
    impl = String(40)
    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        if value is not None and "x" in value:
            raise ZeroDivisionError(value)
        return value


class Ticket(LockColumns, ScheduleColumns, Base):
    __tablename__ = "tickets"
    name: Mapped[str] = mapped_column(Ticking, primary_key=True)
    status: Mapped[str] = mapped_column(default="new")


class TicketPipeline(RecordingPipeline):
    model = Ticket

    def ready(self) -> Any:
        return Ticket.status == "new"


async def add_tickets(database: TemporaryDatabase, *names: str) -> None:
    await add(database, *(Ticket(name=name, due_at=LONG_AGO) for name in names))


@with_and_without_rows
async def test_a_key_that_its_type_cannot_read_costs_its_own_row_only(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture, *, with_rows: bool
) -> None:
    """The other rows are worked on before the first lease ends; the bad one is left alone and
    told once, in the log and in `health()`.
    """
    await add_tickets(database, "a", "bx", "c", "dx", "e")
    pipeline = TicketPipeline(answer=Apply({"status": "done"}), lock_timeout=3600)
    with heard_events() as heard:
        async with stepping(database.session_factory, pipeline) as steps:
            claims_rows(steps, with_rows=with_rows)
            items = await steps.fetch_once()
            assert {item.has_row for item in items} == {with_rows}
            await steps.work_all()
            assert await steps.fetch_once() == []
            assert steps.run.health().unreadable == 2
    assert heard.of(events.FetchFailed) == []
    assert [(item.id, item.attempt) for item in pipeline.items] == [("a", 1), ("c", 1), ("e", 1)]
    assert [line.split(": ")[-1] for line in told(caplog)] == [
        f"its key {name!r} cannot be read back" for name in ("bx", "dx")
    ]
    async with database.engine.connect() as connection:
        columns = "status, lock_token, lock_owner, lock_expires_at, attempts, parked_at"
        left = await connection.execute(text(f"SELECT {columns} FROM tickets WHERE name LIKE '%x'"))
        assert [tuple(row) for row in left] == [("new", None, None, None, 0, None)] * 2


async def test_only_such_rows_at_the_head_starve_no_row(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those behind them would wait for one more fetch for each; and where no more are remembered,
    for the end of their leases.
    """
    await add_tickets(database, "1x", "2x", "3x", "4")
    pipeline = TicketPipeline(answer=Apply({"status": "done"}), lock_timeout=3600)
    async with stepping(database.session_factory, pipeline) as steps:
        assert [item.id for item in await steps.fetch_once(1)] == ["4"]
        await steps.work_all()
    monkeypatch.setattr(claim_request, "SPOILT_KEYS_MAX", 1)
    await add_tickets(database, "5")
    async with stepping(database.session_factory, TicketPipeline(lock_timeout=3600)) as steps:
        assert [[item.id for item in await steps.fetch_once(limit)] for limit in (1, 1, 3)] == [
            *([], []),
            ["5"],
        ]
        assert len(steps.run.context.leased.spoilt_keys) == 1
        await steps.work_all()


async def test_such_a_key_in_a_claim_that_is_one_transaction_with_others(
    database: TemporaryDatabase,
) -> None:
    """Pipelines that lock related rows would fail for ever."""

    class Locking(TicketPipeline):
        locks = (Attachment,)

    await add_tickets(database, "a", "bx")
    pipeline = Locking(answer=Apply({"status": "done"}))
    async with stepping(database.session_factory, pipeline) as steps:
        assert [item.id for item in await steps.fetch_once()] == ["a"]
        await steps.work_all()


async def test_such_a_row_whose_holder_died(database: TemporaryDatabase) -> None:
    """Its death would be counted against it at each fetch."""
    died_with: dict[str, Any] = {"lock_token": uuid.uuid4(), "lock_owner": "TicketPipeline"}
    await add(database, Ticket(name="ax", due_at=LONG_AGO, **died_with), Ticket(name="b"))
    pipeline = TicketPipeline(answer=Apply({"status": "done"}))
    async with stepping(database.session_factory, pipeline) as steps:
        assert [item.id for item in await steps.fetch_once()] == ["b"]
        await steps.work_all()
    async with database.engine.connect() as connection:
        [row] = await connection.execute(text("SELECT attempts FROM tickets WHERE name = 'ax'"))
    assert row.attempts == 0


async def test_a_key_that_finds_no_row_is_left_alone(
    postgresql_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A key that is read otherwise than it is written would be leased for ever, and lost."""
    await add(postgresql_database, Tag(name="LARGE"), Tag(name="small"))
    async with stepping(postgresql_database.session_factory, TagPipeline()) as steps:
        assert [item.id for item in await steps.fetch_once()] == ["small"]
        await steps.work_all()
    assert len(told(caplog)) == 1
