"""What a request of a service writes to a row: its own columns, whoever holds the lease."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Update, event, func, inspect
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.orm.exc import StaleDataError

from rowlock import NOW_PLACEHOLDER, LockColumns, OutcomeError, request_update
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase

from ..host import Base, Run, Volume
from ..pipelines.scenes import add, change, read
from .ground import RUNS, VOLUMES, claimed

LATER = datetime(2040, 1, 1, tzinfo=UTC)


class OtherBase(DeclarativeBase):
    """Tables of this test alone."""


class Document(LockColumns, OtherBase):
    """A row that the host's other transactions guard by its version, and an attribute that is
    not called like its column.
    """

    __tablename__ = "documents"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column("caption", default="untitled")
    version: Mapped[int] = mapped_column(default=0)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


DOCUMENTS = LeasedTable.of(Document)


async def request(
    database: TemporaryDatabase, key: object, values: Any, leased: LeasedTable = VOLUMES
) -> bool:
    async with database.session_factory.begin() as session:
        return await request_update(session, leased.model, key, values)


def columns_of(row: Any) -> dict[str, Any]:
    """Return every column of `row` as it is in the instance, without asking the database."""
    state = inspect(row)
    return {
        attribute.key: state.dict.get(attribute.key, "not loaded")
        for attribute in state.mapper.column_attrs
    }


# ---------------------------------------------------------------- what is written


async def test_only_its_columns_are_written(database: TemporaryDatabase) -> None:
    """A request would undo what others wrote, or touch the lease of the one who works on the
    row.
    """
    other, row = await add(database, Volume(), Volume(disk_id="disk"))
    await claimed(database)
    before, before_other = (
        columns_of(await read(database, row)),
        columns_of(await read(database, other)),
    )
    assert before["lock_owner"] == "Me"
    assert await request(database, row.id, {Volume.status: "stopping", "size_gb": 7})
    assert columns_of(await read(database, row)) == before | {"status": "stopping", "size_gb": 7}
    assert columns_of(await read(database, other)) == before_other


async def test_the_row_is_due_now(database_with_clock: TemporaryDatabase) -> None:
    """What a service asks for would wait for the row's next turn, in an hour perhaps."""
    await add(
        database_with_clock,
        Run(id=1, due_at=LATER, attempts=3, last_error="no disk"),
        Run(id=2, due_at=LATER),
    )
    await request(database_with_clock, 1, {"status": "stopping"}, RUNS)
    row, other = (
        await read(database_with_clock, Run(id=1)),
        await read(database_with_clock, Run(id=2)),
    )
    assert (row.due_at, row.status) == (database_with_clock.clock.now, "stopping")
    assert (row.attempts, row.last_error, row.parked_at, row.last_processed_at) == (
        3,
        "no disk",
        None,
        None,
    )
    assert (other.due_at, other.status) == (LATER, "queued")


async def test_a_service_may_say_when(database: TemporaryDatabase) -> None:
    """A service that asks for tomorrow would be served at once."""
    await add(database, Run(id=1))
    await request(database, 1, {"status": "later", Run.due_at: LATER}, RUNS)
    assert (await read(database, Run(id=1))).due_at == LATER


async def test_all_times_of_a_request_are_one(
    sqlite_database_with_clock: TemporaryDatabase,
) -> None:
    """A row would be due after the time at which it says that it was asked for."""
    database = sqlite_database_with_clock
    clock = database.clock
    await add(database, Run(id=1))
    event.listen(
        database.engine.sync_engine, "after_cursor_execute", lambda *_: clock.advance(0.005)
    )
    values = {"deadline_at": NOW_PLACEHOLDER, "result": {"asked": [NOW_PLACEHOLDER]}}
    await request(database, 1, values, RUNS)
    row = await read(database, Run(id=1))
    assert row.deadline_at == row.due_at
    assert row.result == {"asked": [row.due_at.isoformat()]}


async def test_an_expression_is_evaluated_in_the_row(database: TemporaryDatabase) -> None:
    """Two services that each add one would add one together."""
    [row] = await add(database, Volume(size_gb=1))
    for _ in range(2):
        await request(database, row.id, {"size_gb": Volume.size_gb + 1})
    assert (await read(database, row)).size_gb == 3


async def test_a_missing_row(database: TemporaryDatabase) -> None:
    """A host could not tell its client that there is no such row."""
    [row] = await add(database, Volume())
    for values in ({"size_gb": 2}, {}):
        assert not await request(database, uuid.uuid4(), values)
        assert await request(database, row.id, values)


async def test_a_request_for_a_look_alone(database: TemporaryDatabase) -> None:
    """A service that only wants the row looked at would get a syntax error of the database."""
    await add(database, Run(id=1, due_at=LATER), row := Volume())
    before = columns_of(await read(database, row))
    assert await request(database, 1, {}, RUNS)
    assert await request(database, row.id, {})
    assert (await read(database, Run(id=1))).due_at < LATER
    assert columns_of(await read(database, row)) == before


async def test_the_version_moves(database: TemporaryDatabase) -> None:
    """A transaction of the host that read the row before would overwrite the request, though it
    guards by version.
    """
    await database.create_tables(OtherBase.metadata)
    async with database.session_factory.begin() as session:
        session.add(Document(id=1))
    async with database.session_factory() as session:
        stale = await session.get_one(Document, 1)
        await session.commit()
        assert await request(database, 1, {"title": "asked for"}, DOCUMENTS)
        stale.title = "from before"
        with pytest.raises(StaleDataError):
            await session.commit()
    async with database.session_factory() as session:
        assert (await session.get_one(Document, 1)).title == "asked for"


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("leased", "values", "text"),
    [
        (VOLUMES, {"lock_token": None}, "lock_token is written by rowlock"),
        (VOLUMES, {Volume.lock_owner: "me"}, "lock_owner is written by rowlock"),
        (VOLUMES, {"lock_expires_at": None}, "lock_expires_at is written by rowlock"),
        (VOLUMES, {"last_processed_at": None}, "last_processed_at is written by rowlock"),
        (RUNS, {"attempts": 0}, "attempts is written by rowlock"),
        (RUNS, {"parked_at": None}, "parked_at is written by rowlock"),
        (VOLUMES, {"stop": True}, "Volume has no column 'stop'"),
        (VOLUMES, {Run.status: "queued", "nothing": 1}, "no column"),
        (VOLUMES, {"id": uuid.uuid4()}, "is the primary key"),
        (VOLUMES, {"status": "a", Volume.status: "b"}, "twice"),
        (DOCUMENTS, {"title": "a", "caption": "b"}, "twice"),
    ],
)
async def test_what_a_service_may_not_write(
    sqlite_database: TemporaryDatabase, leased: LeasedTable, values: Any, text: str
) -> None:
    """A service would take a row out of its holder's hands, or be told by the database what it
    did wrong.
    """
    [row] = await add(sqlite_database, Volume())
    before = columns_of(await read(sqlite_database, row))
    async with sqlite_database.session_factory() as session:
        with pytest.raises(OutcomeError, match=text):
            await request_update(session, leased.model, row.id, values)
        assert not session.in_transaction()
    assert columns_of(await read(sqlite_database, row)) == before


# ---------------------------------------------------------------- the session's own instances


async def test_an_instance_of_the_session_shows_it(database: TemporaryDatabase) -> None:
    """A handler would answer with what the row was before the request it has just made."""
    await add(database, Run(id=1, due_at=LATER))
    async with database.session_factory.begin() as session:
        row = await session.get_one(Run, 1)
        stamped_at = row.updated_at
        await request_update(session, Run, 1, {"status": "stopping", "result": func.json("[1]")})
        shown = columns_of(row)
        assert (shown["status"], shown["result"]) == ("stopping", [1])
        assert shown["due_at"] < LATER
        assert shown["updated_at"] > stamped_at
        assert not session.dirty
    assert shown == columns_of(await read(database, row))


@pytest.mark.parametrize("autoflush", [True, False])
async def test_what_is_pending_in_the_session_is_written_first(
    database: TemporaryDatabase, autoflush: bool
) -> None:
    """A row that was just added would not be found, and a pending change would be lost or undo
    the request.
    """
    [row] = await add(database, Volume())
    async with database.session_factory.begin() as session:
        session.sync_session.autoflush = autoflush
        mine = await session.get_one(Volume, row.id)
        mine.status = "pending"
        mine.disk_id = "pending"
        assert await request_update(session, Volume, row.id, {"status": "stopping"})
        session.add(new := Volume(id=uuid.uuid4()))
        assert await request_update(session, Volume, new.id, {"size_gb": 9})
        assert new.size_gb == 9
        assert mine.status == "stopping"
    after = await read(database, row)
    assert (after.status, after.disk_id) == ("stopping", "pending")


async def test_an_expired_instance_stays_whole(database: TemporaryDatabase) -> None:
    """Of an instance whose values are to be read again, the other columns would be missing or
    old.
    """
    [row] = await add(database, Volume())
    async with database.session_factory.begin() as session:
        mine = await session.get_one(Volume, row.id)
        session.expire(mine)
        await change(database, row, disk_id="changed meanwhile")
        await request_update(session, Volume, row.id, {"status": "stopping"})
        await session.refresh(mine)
        assert (mine.status, mine.disk_id) == ("stopping", "changed meanwhile")


async def test_a_savepoint_takes_it_back(database: TemporaryDatabase) -> None:
    """The session would show what was taken back, and the host's next write would fail by its
    version.
    """
    await database.create_tables(OtherBase.metadata)
    async with database.session_factory.begin() as session:
        session.add(Document(id=1))
    async with database.session_factory.begin() as session:
        mine = await session.get_one(Document, 1)
        savepoint = await session.begin_nested()
        await request_update(session, Document, 1, {"title": "taken back"})
        assert (mine.title, mine.version) == ("taken back", 2)
        await savepoint.rollback()
        await session.refresh(mine, ["version"])
        assert (await mine_title(session, mine), mine.version) == ("untitled", 1)
        mine.title = "written"
    async with database.session_factory() as session:
        assert (await session.get_one(Document, 1)).title == "written"


async def mine_title(session: AsyncSession, document: Document) -> str:
    return await session.run_sync(lambda _: document.title)


async def test_a_session_that_routes_writes_in_one_place(
    sqlite_database: TemporaryDatabase, tmp_path: Any
) -> None:
    """The time of a request would be that of a replica for reading."""
    reader = TemporaryDatabase(sqlite_database.url.set(database=str(tmp_path / "reader.db")))
    await reader.create_tables(Base.metadata)
    asked: list[str] = []
    event.listen(
        reader.engine.sync_engine, "before_cursor_execute", lambda *args: asked.append(args[2])
    )

    class RoutingSession(Session):
        def get_bind(
            self, mapper: Any = None, *, clause: Any = None, bind: Any = None, **kw: Any
        ) -> Any:
            writes = self._flushing or isinstance(clause, Update)
            return bind or (sqlite_database if writes else reader).engine.sync_engine

    await add(sqlite_database, Run(id=1))
    async with async_sessionmaker(sync_session_class=RoutingSession).begin() as session:
        assert await request_update(session, Run, 1, {"deadline_at": NOW_PLACEHOLDER})
        assert await request_update(session, Run, 1, {})
    await reader.aclose()
    assert asked == []


async def test_the_callers_transaction_decides(database: TemporaryDatabase) -> None:
    """A request would stand although the service's transaction has failed."""
    [row] = await add(database, Volume())
    async with database.session_factory() as session:
        assert await request_update(session, Volume, row.id, {"status": "stopping"})
        await session.rollback()
    assert (await read(database, row)).status == "submitted"
