"""A batch of outcomes that differ: one statement with arrays where the database has them."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import String, func, literal_column, select, text
from sqlalchemy.dialects.postgresql import UUID
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, aliased, mapped_column
from sqlalchemy.types import TypeDecorator

from rowlock import LockColumns
from rowlock.leases import apply as apply_module
from rowlock.leases.apply import RowWrite, Written, apply_locked, lock_for_apply, write_free
from rowlock.rows.assignments import UnlessChanged
from rowlock.rows.lease_values import unlocked_values
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase

from ..host import Run, Volume
from ..pipelines.scenes import faults_of
from .ground import RUNS, VOLUMES, add, claimed, row_of, transact


class Shouted(TypeDecorator[str]):
    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        return value and value.upper()


class Whispered(TypeDecorator[str]):
    """One that the database changes as it is bound, as it would encrypt it."""

    impl = String
    cache_ok = True

    def bind_expression(self, bindvalue: Any) -> Any:
        return func.lower(bindvalue)


class Base(DeclarativeBase):
    """The tables of this module alone."""


class Label(LockColumns, Base):
    __tablename__ = "labels"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")
    text: Mapped[str] = mapped_column(String(5), default="")
    shouted: Mapped[str] = mapped_column(Shouted(5), default="")
    whispered: Mapped[str] = mapped_column(Whispered(5), default="")
    held_token: Mapped[str | None]
    reference: Mapped[str | None] = mapped_column(
        String(36).with_variant(UUID(as_uuid=False), "postgresql")
    )


class Etag(LockColumns, Base):
    """A host's table that is stamped by the host's code: its rows are written one by one."""

    __tablename__ = "etags"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")
    stamp: Mapped[uuid.UUID] = mapped_column(default=uuid.uuid4, onupdate=uuid.uuid4)


class Part(LockColumns, Base):
    """One of its columns is called as one might be of ours."""

    __tablename__ = "parts"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")
    key: Mapped[str] = mapped_column(default="of the host")


LABELS = LeasedTable.of(Label)
ETAGS = LeasedTable.of(Etag)
TIME = datetime(2031, 5, 17, tzinfo=UTC)


async def written_together(database: TemporaryDatabase, leased: Any, writes_of: Any) -> list[Any]:
    """Claim all rows, write to each what `writes_of` gives for its number, and return the rows
    in that order.
    """
    items = await claimed(database, leased)
    writes = [
        (item, RowWrite({**writes_of(n), **unlocked_values(leased)}))
        for n, item in enumerate(items)
    ]

    async def work(connection: AsyncConnection) -> list[Written]:
        await lock_for_apply(connection, leased, items)
        return await apply_locked(connection, leased, writes)

    assert await transact(database, work, leased) == [Written.APPLIED] * len(items)
    return [await row_of(database, leased, item.id) for item in items]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("status", ["a", "it's", "ü"]),
        ("disk_id", ["a", None, "b"]),
        ("size_gb", [1, 2**31 - 1, -3]),
        ("active_at", [TIME, None, TIME + timedelta(microseconds=1000)]),
    ],
)
async def test_each_row_gets_its_own_value(
    database: TemporaryDatabase, name: str, values: list[Any]
) -> None:
    """Values would be swapped between rows, or change on their way through an array."""
    await add(database, *(Volume() for _ in values))
    rows = await written_together(database, VOLUMES, lambda n: {VOLUMES.column(name): values[n]})
    assert [getattr(row, name) for row in rows] == values
    assert {row.lock_token for row in rows} == {None}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("status", ["a\0b", "c"]),
        ("status", ["null", "true", '"', "1.0"]),
        ("size_gb", [2**62 + 1, -(2**63)]),
        ("status", [b"bytes", "text"]),
    ],
)
async def test_what_json_would_change_is_bound_by_itself(
    sqlite_database: TemporaryDatabase, name: str, values: list[Any]
) -> None:
    """A text would end at its first NUL, a large number become another one, within the JSON that
    brings a batch to SQLite.
    """
    await add(sqlite_database, *(Volume() for _ in values))
    rows = await written_together(
        sqlite_database, VOLUMES, lambda n: {VOLUMES.column(name): values[n]}
    )
    assert [getattr(row, name) for row in rows] == values


@pytest.mark.parametrize("value", [2**63, "half a letter: \ud800"])
async def test_what_sqlite_refuses_is_refused_in_a_batch(
    sqlite_database: TemporaryDatabase, value: Any
) -> None:
    """It would be written as something else beside other rows, and refused by itself."""
    await add(sqlite_database, Volume(), Volume())
    name = "size_gb" if isinstance(value, int) else "status"
    with pytest.raises((OverflowError, UnicodeEncodeError)):
        await written_together(
            sqlite_database,
            VOLUMES,
            lambda n: {VOLUMES.column(name): value if n else VOLUMES.column(name).default.arg},
        )


@pytest.mark.parametrize("name", ["text", "shouted"])
async def test_what_is_too_long_is_refused_as_it_is_alone(
    postgresql_database: TemporaryDatabase, name: str
) -> None:
    """Two outcomes that happen to be written together would lose what does not fit, without a
    word.
    """
    await add(postgresql_database, Label(id=1), Label(id=2))
    with pytest.raises(DBAPIError):
        await written_together(
            postgresql_database, LABELS, lambda n: {LABELS.column(name): f"too long: {n}"}
        )
    async with postgresql_database.session_factory() as session:
        assert list(await session.scalars(select(LABELS.column(name)))) == ["", ""]


async def test_texts_go_through_the_types_of_the_host(database: TemporaryDatabase) -> None:
    """What does fit would be lost, or not go through the host's own type."""
    await add(database, Label(id=1), Label(id=2))
    names = ("text", "shouted", "whispered")
    rows = await written_together(
        database, LABELS, lambda n: {LABELS.column(name): f"aBc{n}" for name in names}
    )
    assert [(row.text, row.shouted, row.whispered) for row in rows] == [
        ("aBc0", "ABC0", "abc0"),
        ("aBc1", "ABC1", "abc1"),
    ]


async def test_texts_that_are_something_else_here_are_written_in_one_statement(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A column that is a text on one database and a UUID on another would be refused, or cost a
    statement for each row.
    """
    await add(postgresql_database, *(Label(id=number) for number in range(1, 5)))
    references = [str(uuid.UUID(int=number)) for number in range(4)]
    with faults_of(postgresql_database.engine) as faults:
        rows = await written_together(
            postgresql_database, LABELS, lambda n: {LABELS.column("reference"): references[n]}
        )
    assert [row.reference for row in rows] == references
    assert faults.count(lambda statement: "SET reference=" in statement) == 1


async def test_host_code_stamps_each_row(database: TemporaryDatabase) -> None:
    """Rows that are written together would share what their host makes anew for each: an etag, a
    revision.
    """
    await add(database, *(Etag(id=number) for number in range(1, 5)))
    rows = await written_together(database, ETAGS, lambda _: {ETAGS.column("status"): "done"})
    assert len({row.stamp for row in rows}) == 4


async def test_names_of_ours_are_the_hosts_to_use(database: TemporaryDatabase) -> None:
    """A host could not work on a table because of what one of its columns is called."""
    await add(database, Label(id=1), Label(id=2))
    rows = await written_together(database, LABELS, lambda n: {LABELS.column("held_token"): str(n)})
    assert [row.held_token for row in rows] == ["0", "1"]


async def test_documents_are_written_row_by_row(database: TemporaryDatabase) -> None:
    """What no array holds on every driver would not be written at all."""
    documents = [{"n": 1}, [1, None], "text", None]
    await add(database, *(Run(id=n + 1) for n in range(len(documents))))
    rows = await written_together(database, RUNS, lambda n: {RUNS.column("result"): documents[n]})
    assert [row.result for row in rows] == documents


async def test_times_that_depend_on_the_row_do_so_in_a_batch(database: TemporaryDatabase) -> None:
    """A due time that a service asked for would be lost, since others were written with it."""
    later = TIME + timedelta(days=1)
    await add(
        database,
        Run(id=1, due_at=TIME - timedelta(days=9000)),
        Run(id=2, due_at=TIME - timedelta(days=8999)),
    )
    due = RUNS.column("due_at")
    as_read = [TIME - timedelta(days=9000), TIME]
    rows = await written_together(
        database, RUNS, lambda n: {due: UnlessChanged(later, as_read=as_read[n])}
    )
    assert [row.due_at for row in rows] == [later, TIME - timedelta(days=8999)]


@pytest.mark.parametrize("differ", [False, True])
async def test_one_statement_writes_them_all(
    postgresql_database: TemporaryDatabase, differ: bool
) -> None:
    """A batch would cost the server one execution for each row."""
    await add(postgresql_database, *(Volume() for _ in range(5)))
    with faults_of(postgresql_database.engine) as faults:
        await written_together(
            postgresql_database,
            VOLUMES,
            lambda n: {VOLUMES.column("disk_id"): f"disk-{n}" if differ else "disk"},
        )
        updates = [
            statement for _, statement in faults.sent if statement.startswith("UPDATE volumes SET")
        ]
    assert len(updates) == 1
    assert "unnest" in updates[0]


@pytest.mark.parametrize("differ", [False, True], ids=["alike", "each its own"])
async def test_a_statement_is_built_once_for_each_shape(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch, *, differ: bool
) -> None:
    """To build a statement takes longer than to execute it: half of the speed would be lost, and
    nothing else show it.
    """
    built: list[Any] = []
    set_clause = apply_module.set_clause
    monkeypatch.setattr(
        apply_module, "set_clause", lambda *shape: (built.append(shape), set_clause(*shape))[1]
    )
    await add(database)
    leased = LeasedTable.of(Volume)  # which has built nothing yet
    for turn in range(3):
        async with database.session_factory.begin() as session:
            session.add_all(Volume() for _ in range(2))
        status = f"{'differs' if differ else 'alike'} {turn}"
        rows = await written_together(
            database,
            leased,
            lambda n, status=status: {leased.column("status"): f"{status} {n if differ else ''}"},
        )
        assert [row.status for row in rows] == [f"{status} {n if differ else ''}" for n in range(2)]
    assert len(built) == 1


@pytest.mark.parametrize("differ", [False, True], ids=["alike", "each its own"])
async def test_expressions_of_one_structure_share_a_statement(
    database: TemporaryDatabase, *, differ: bool
) -> None:
    """Outcomes with an expression would cost a round trip each, and be a tenth as fast; or one
    row get another one's value.
    """
    await add(database, *(Label(id=n + 1, held_token=f"s{n}", text=f"t{n}") for n in range(5)))
    token, text = LABELS.column("held_token"), LABELS.column("text")
    with faults_of(database.engine) as faults:
        rows = await written_together(
            database,
            LABELS,
            lambda n: {
                token: Label.held_token + f"+{n if differ else 'x'}",
                text: func.replace(Label.text, f"t{n}", "T"),
            },
        )
    assert [row.held_token for row in rows] == [f"s{n}+{n if differ else 'x'}" for n in range(5)]
    assert [row.text for row in rows] == ["T"] * 5
    assert (
        faults.count(
            lambda statement: statement.startswith("UPDATE labels SET") and "replace(" in statement
        )
        == 1
    )


async def test_an_expression_reads_another_row_by_its_own_value(
    database: TemporaryDatabase,
) -> None:
    """A subquery of a host's would be that of another row."""
    await add(database, *(Label(id=n, held_token=f"s{n}") for n in range(1, 5)))
    other = aliased(Label)

    def of_the_next(n: int) -> Any:
        return (
            select(other.held_token).where(other.id == n + 2).scalar_subquery() if n < 3 else "none"
        )

    rows = await written_together(
        database, LABELS, lambda n: {LABELS.column("text"): of_the_next(n)}
    )
    assert [row.text for row in rows] == ["s2", "s3", "s4", "none"]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_what_one_statement_has_written_is_told_whatever_the_key_is(
    postgresql_database: TemporaryDatabase, driver: str
) -> None:
    """What was written would be taken for lost, and be cleaned up after, since psycopg reads no
    array of a domain; or a column of the host's be taken for one of the statement's.
    """
    pytest.importorskip(driver)
    database, leased = postgresql_database, LeasedTable.of(Part)
    await add(database, *(Part(id=number) for number in (7, 8, 9, 10)))
    async with database.engine.begin() as connection:
        await connection.execute(text("CREATE DOMAIN number AS int"))
        await connection.execute(text("ALTER TABLE parts ALTER id TYPE number"))
    items, leased.has_places = await claimed(database, leased), True
    values = {leased.column("status"): literal_column("key"), **unlocked_values(leased)}
    was = [{leased.column("key"): value} for value in ("of the host", "of the host", "other")]
    guards = zip(items, [was[0], was[1], {}, was[2]], strict=True)
    writes = [((item.id, item.lock_token), values, guard) for item, guard in guards]
    engine = create_async_engine(database.url.set(drivername=f"postgresql+{driver}"))
    locked = select(Part).where(Part.id == items[1].id).with_for_update()
    async with database.session_factory() as session, engine.begin() as connection:
        await session.execute(locked)
        assert await write_free(connection, leased, writes) == {0, 2}
    await engine.dispose()
    rows = [await row_of(database, leased, item.id) for item in items]
    left = "submitted"
    assert [row.status for row in rows] == ["of the host", left, "of the host", left]
