"""Which session factories can keep leases, seen without connecting."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from sqlalchemy import String, Uuid, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import StaticPool
from sqlalchemy.util import immutabledict

from rowlock import LockColumns
from rowlock.database.transaction import check_session_factory
from rowlock.errors import ConfigurationError, ModelError, UnsupportedDialectError
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase

from .kinds import Animal, ByUuid


async def test_a_factory_of_async_sessions_is_accepted(database: TemporaryDatabase) -> None:
    """A host that does as it is told would be refused."""
    leased = LeasedTable.of(ByUuid)
    check_session_factory(database.session_factory, leased)
    check_session_factory(lambda: AsyncSession(database.engine), leased)
    check_session_factory(async_sessionmaker(binds={ByUuid: database.engine}), leased)


@pytest.mark.parametrize(
    "factory",
    [
        None,
        "sqlite+aiosqlite:///app.db",
        AsyncSession,
        lambda: None,
        sessionmaker(create_engine("sqlite://")),
        object(),
    ],
    ids=["None", "a URL", "unbound", "nothing", "synchronous", "an object"],
)
def test_what_makes_no_async_sessions_is_refused(factory: Any) -> None:
    """A host would meet an AttributeError from within a loop that was started already."""
    with pytest.raises(
        ConfigurationError,
        match=r"pass async_sessionmaker\(engine\)|is bound to no engine for ByUuid",
    ):
        check_session_factory(factory, LeasedTable.of(ByUuid))


async def test_a_session_in_the_place_of_the_factory_is_refused(
    database: TemporaryDatabase,
) -> None:
    """All loops of the pipeline would share one session."""
    async with database.session_factory() as session:
        with pytest.raises(
            ConfigurationError, match="session_factory must make AsyncSession objects"
        ):
            check_session_factory(session, LeasedTable.of(ByUuid))


def test_a_factory_without_an_engine_for_the_model_is_refused(
    sqlite_database: TemporaryDatabase,
) -> None:
    """The first claim would fail, long after the start."""
    factory = async_sessionmaker(binds={Animal: sqlite_database.engine})
    with pytest.raises(
        ConfigurationError, match="the session factory is bound to no engine for ByUuid"
    ):
        check_session_factory(factory, LeasedTable.of(ByUuid))


@pytest.mark.parametrize(
    ("kept_as", "name"), [(String(36), r"\w*String"), (Uuid(as_uuid=False), r"\w*U[Uu]?[Ii][Dd]")]
)
async def test_a_token_that_is_another_type_on_this_database_is_refused(
    database: TemporaryDatabase, kept_as: Any, name: str
) -> None:
    """Its rows could be claimed and never written, and nobody be told which column to change."""

    class Base(DeclarativeBase):
        """The host's."""

    class Spelt(LockColumns, Base):
        __tablename__ = "spelt_tokens"
        id: Mapped[int] = mapped_column(primary_key=True)
        lock_token: Mapped[uuid.UUID | None] = mapped_column(
            Uuid().with_variant(kept_as, database.dialect_name)
        )

    says = (
        f"Spelt.lock_token has the type {name}.* on {database.dialect_name}; it must be Uuid on"
        " every database"
    )
    with pytest.raises(ModelError, match=says):
        check_session_factory(database.session_factory, LeasedTable.of(Spelt))


def _commits_every_statement(how: str, database: TemporaryDatabase) -> Any:
    options: Any = {"isolation_level": "AUTOCOMMIT"}
    match how:
        case "when it connects":
            return async_sessionmaker(database.create_engine(**options))
        case "engine made with options":
            return async_sessionmaker(database.create_engine(execution_options=options))
        case "options of the engine":
            return async_sessionmaker(database.engine.execution_options(**options))
        case "options for one model":
            return async_sessionmaker(binds={ByUuid: database.engine.execution_options(**options)})
        case "options of the session":
            factory = async_sessionmaker(database.engine)

            def make() -> AsyncSession:
                session = factory()
                # As `sessionmaker(execution_options=...)` leaves it, which older SQLAlchemy does
                # not know.
                session.sync_session.execution_options = immutabledict(options)
                return session

            return make
    autocommit = database.engine.execution_options(**options).sync_engine

    class RoutingSession(Session):
        def get_bind(self, *args: Any, **kw: Any) -> Any:
            return autocommit

    return async_sessionmaker(sync_session_class=RoutingSession)


@pytest.mark.parametrize(
    "how",
    [
        "when it connects",
        "engine made with options",
        "options of the engine",
        "options for one model",
        "options of the session",
        "where the session routes",
    ],
)
async def test_sessions_that_commit_every_statement_are_refused(
    database: TemporaryDatabase, how: str
) -> None:
    """An outcome would be committed, and what its `also` wrote with it would not, or the
    reverse.
    """
    with pytest.raises(ConfigurationError, match="every statement is committed by itself"):
        check_session_factory(_commits_every_statement(how, database), LeasedTable.of(ByUuid))


async def test_transactions_on_an_engine_that_has_none_are_accepted(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A host whose engine is under AUTOCOMMIT, with options for what needs a transaction, would
    be refused.
    """
    engine = postgresql_database.create_engine(isolation_level="AUTOCOMMIT")
    factory = async_sessionmaker(engine.execution_options(isolation_level="REPEATABLE READ"))
    check_session_factory(factory, LeasedTable.of(ByUuid))


@pytest.mark.parametrize("mode", ["rollback_only", "create_savepoint"])
async def test_sessions_of_one_connection_are_refused(
    database: TemporaryDatabase, mode: Any
) -> None:
    """The usual recipe for tests would have all loops share one transaction, and two threads one
    connection.
    """
    async with database.engine.connect() as connection:
        for factory in (
            async_sessionmaker(connection, join_transaction_mode=mode),
            async_sessionmaker(binds={ByUuid: connection}, join_transaction_mode=mode),
        ):
            with pytest.raises(
                ConfigurationError, match=r"bound to one connection .* pass async_sessionmaker"
            ):
                check_session_factory(factory, LeasedTable.of(ByUuid))


@pytest.mark.parametrize(
    "url", ["sqlite+aiosqlite://", "sqlite+aiosqlite:///:memory:", "sqlite+aiosqlite:///app.db"]
)
async def test_one_connection_for_all_is_refused(url: str) -> None:
    """All loops would share one transaction: a claim would be rolled back by somebody's failed
    write.
    """
    engine = (
        create_async_engine(url, poolclass=StaticPool)
        if url.endswith("app.db")
        else create_async_engine(url)
    )
    with pytest.raises(
        UnsupportedDialectError, match="share one connection, and with it one transaction"
    ) as caught:
        check_session_factory(async_sessionmaker(engine), LeasedTable.of(ByUuid))
    assert caught.value.dialect_name == "sqlite"
    await engine.dispose()
