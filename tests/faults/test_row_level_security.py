"""Row-level security: a host whose role sees the rows of one tenant only."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import ForeignKey, event, select, text, update
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from rowlock import Apply, LockColumns, PipelineManager, ScheduleColumns, events, hold_rows
from rowlock.testing import TemporaryDatabase, stepping

from ..host import RecordingPipeline, heard_events
from .patience import QUICK, RENEWED_SOON

TENANT = "acme"
LEFT = UUID(int=7)
SET_TENANT = text(f"SELECT set_config('app.tenant', '{TENANT}', true)")


class Base(DeclarativeBase):
    """The host's mapped classes."""


class Letter(LockColumns, ScheduleColumns, Base):
    __tablename__ = "letters"
    id: Mapped[int] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    status: Mapped[str] = mapped_column(default="new")


class Enclosure(LockColumns, Base):
    __tablename__ = "enclosures"
    id: Mapped[int] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    letter_id: Mapped[int] = mapped_column(ForeignKey("letters.id"))
    status: Mapped[str] = mapped_column(default="new")


class LetterPipeline(RecordingPipeline):
    model = Letter

    def ready(self) -> Any:
        return Letter.status == "new"

    def usual_answer(self, item: Any) -> Apply:
        return Apply({"status": "sent"})


class EnclosingPipeline(LetterPipeline):
    locks = (Enclosure,)

    async def process(self, item: Any) -> Apply:
        enclosed = await item.lock_related(Enclosure, Enclosure.letter_id == item.id)
        return Apply({"status": "sent"}, related={row: {"status": "sent"} for row in enclosed})


@pytest.fixture
async def restricted(postgresql_database: TemporaryDatabase) -> AsyncIterator[AsyncEngine]:
    """Return an engine of a role that sees no row, but those of the tenant that its transaction
    names.
    """
    database, role = postgresql_database, f"rowlock_{secrets.token_hex(4)}"
    await database.create_tables(Base.metadata)
    async with database.engine.begin() as connection:
        await connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'secret' NOBYPASSRLS"))
        for table in Base.metadata.tables:
            for statement in (
                f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role}",
                f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
                f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
                (
                    f"CREATE POLICY its_own ON {table} USING (tenant ="
                    " current_setting('app.tenant', true))"
                ),
            ):
                await connection.execute(text(statement))
    async with database.session_factory.begin() as session:
        session.add_all(
            Letter(id=n, tenant=tenant)
            for n, tenant in enumerate([TENANT, "other", TENANT], start=1)
        )
        await session.flush()
        session.add_all(Enclosure(id=n, tenant=TENANT, letter_id=n) for n in (1, 3))
    engine = create_async_engine(database.url.set(username=role, password="secret"))
    yield engine
    await engine.dispose()
    async with database.engine.begin() as connection:
        await connection.execute(text(f"DROP OWNED BY {role}"))
        await connection.execute(text(f"DROP ROLE {role}"))


def _on_connection(_session: Any, _transaction: Any, connection: Any) -> None:
    connection.execute(SET_TENANT)


def sessions_of(engine: AsyncEngine, how: str) -> async_sessionmaker[AsyncSession]:
    match how:
        case "of the session class":
            tenants = type("TenantSession", (Session,), {})
            event.listen(tenants, "after_begin", _on_connection)
            return async_sessionmaker(engine, sync_session_class=tenants)
        case "of the sessionmaker":
            maker = sessionmaker()
            event.listen(maker, "after_begin", _on_connection)
            return async_sessionmaker(engine, sync_session_class=maker)  # type: ignore[call-overload, no-any-return]
        case "of the engine's options":
            with_options = engine.execution_options(tenant=TENANT)
            event.listen(
                with_options.sync_engine, "begin", lambda connection: connection.execute(SET_TENANT)
            )
            return async_sessionmaker(with_options)
    event.listen(engine.sync_engine, "begin", lambda connection: connection.execute(SET_TENANT))
    return async_sessionmaker(engine)


HOW = ("of the session class", "of the sessionmaker", "of the engine", "of the engine's options")


async def letters(database: TemporaryDatabase) -> list[Any]:
    async with database.session_factory() as session:
        found = select(Letter.id, Letter.status, Letter.lock_owner).order_by(Letter.id)
        return [tuple(row) for row in await session.execute(found)]


@pytest.mark.parametrize("how", HOW)
async def test_every_transaction_names_its_tenant(
    postgresql_database: TemporaryDatabase, restricted: AsyncEngine, how: str
) -> None:
    """Where one does not, no row is there: nothing is claimed, a lease is lost, an outcome is
    stale, a row stays locked.
    """
    database, sessions = postgresql_database, sessions_of(restricted, how)
    async with stepping(sessions, EnclosingPipeline(**QUICK)) as steps:
        items = await steps.fetch_once()
        assert sorted(item.id for item in items) == [1, 3]
        for item in items:
            item.trusted_until = item.claimed_at + 1
        await steps.beat_once()
        assert all(item.trusted_until > item.claimed_at + 1 for item in items)
        await steps.work_once()
        assert len([letter for letter in await letters(database) if letter[1] == "sent"]) == 1
    # What was not begun is released at the end.
    assert [owner for _, _, owner in await letters(database)] == [None] * 3
    assert [letter[1] for letter in await letters(database)].count("sent") == 1


@pytest.mark.parametrize("how", HOW)
async def test_a_service_holds_its_rows(
    postgresql_database: TemporaryDatabase, restricted: AsyncEngine, how: str
) -> None:
    """A service would hold nothing, and be told that it does."""
    sessions = sessions_of(restricted, how)
    async with hold_rows(sessions, Letter, [1, 2, 3]) as held:
        assert [row.id for row in held.rows] == [1, 3]
        assert [owner is None for _, _, owner in await letters(postgresql_database)] == [
            False,
            True,
            False,
        ]
    assert [owner for _, _, owner in await letters(postgresql_database)] == [None] * 3


@pytest.mark.parametrize("how", HOW)
async def test_what_was_left_behind_is_swept(
    postgresql_database: TemporaryDatabase, restricted: AsyncEngine, how: str
) -> None:
    """Rows of a pipeline that is gone would stay locked for ever."""
    async with postgresql_database.session_factory.begin() as session:
        gone = {
            "lock_token": LEFT,
            "lock_owner": "Gone",
            "lock_expires_at": text("now() - interval '1 year'"),
        }
        await session.execute(update(Letter).where(Letter.id != 3).values(status="old", **gone))
    async with stepping(sessions_of(restricted, how), LetterPipeline(**QUICK)) as steps:
        assert await steps.sweep_once() == 1
    assert [owner for _, _, owner in await letters(postgresql_database)] == [None, "Gone", None]


@pytest.mark.parametrize("how", HOW)
async def test_the_heartbeat_thread_names_it(
    postgresql_database: TemporaryDatabase, restricted: AsyncEngine, how: str
) -> None:
    """Every lease would be lost at its first renewal, since the thread sees no row."""
    database, sessions = postgresql_database, sessions_of(restricted, how)

    async def until_renewed(_item: Any) -> Apply:
        await heard.wait_for(events.LeasesRenewed, count=3)
        return Apply({"status": "sent"})

    pipeline = LetterPipeline(answer=until_renewed, **RENEWED_SOON, **QUICK)
    with heard_events() as heard:
        async with PipelineManager(sessions, [pipeline]) as manager:
            await heard.wait_for(events.ItemApplied, count=2)
            counters = manager.statistics()[pipeline.name].counters
    assert (counters["leases_lost"], counters["renewals_failed"], counters["stale"]) == (0, 0, 0)
    assert counters["renewals"] > 0
    assert await letters(database) == [(1, "sent", None), (2, "new", None), (3, "sent", None)]
