"""A pytest plugin: databases, clocks and steps as fixtures, and the check that nothing is left
behind.

The one idea: every fixture is a plain one. It is set up outside the test's loop and closed inside
it (`closing`), so it means the same under every runner of async tests.

It is loaded on request, by ``-p rowlock.testing.plugin`` or in the conftest.py of the root of the
tests:

    pytest_plugins = ["rowlock.testing.plugin"]

    @pytest.fixture(scope="session")
    def rowlock_metadata():
        return Base.metadata

| fixture | gives |
|---|---|
| `rowlock_metadata` | the tables that each database begins with; to be overridden |
| `rowlock_database` | a `TemporaryDatabase`; the test runs on SQLite and on PostgreSQL |
| `rowlock_sqlite_database`, `rowlock_postgresql_database` | the one named, or both |
| the three with ``_with_clock`` behind | the same; time stands still until `.clock.advance(31)` |
| `rowlock_virtual_database` | inline SQLite with the virtual loop's time, for `@virtual_time` |
| `rowlock_session_factory` | that of `rowlock_database` |
| `rowlock_steps` | `await rowlock_steps(VolumePipeline())`, which has `fetch_once` and so on |
| `rowlock_run_until_settled` | `await rowlock_run_until_settled(VolumePipeline(), ...)` |
| `rowlock_tidy` | nothing; a test that leaves tasks or connections behind fails |
| `rowlock_postgresql_url` | the administrative URL of the run's server |
| `rowlock_postgresql_server` | a factory of servers that a test may stop and restart |

``--rowlock-database=sqlite|postgresql|both``, or the setting ``rowlock_database``, chooses.
PostgreSQL comes from a wheel, one server for a whole run and all its parallel workers, started at
the first use, with its files in memory where there is room; with the setting
``rowlock_postgresql_url`` or the environment variable ROWLOCK_TEST_POSTGRESQL_URL another one is
used. ``--rowlock-driver=asyncpg|psycopg`` chooses the driver. Every database is real, empty, of one
test, and dropped.

Not here: how they are closed (`closing`), the databases themselves (`databases`), and the tests
that each pipeline should pass (`contract`).
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import pytest
from sqlalchemy import URL, MetaData, make_url

from rowlock.testing.contract import PipelineContract
from rowlock.testing.databases.clock import DatabaseClock
from rowlock.testing.databases.postgresql_server import (
    PostgresqlServer,
    new_server_directory,
    remove_server,
)
from rowlock.testing.databases.temporary import (
    Administration,
    TemporaryDatabase,
    inline_sqlite_database,
    open_sqlite_database,
)
from rowlock.testing.extras import need
from rowlock.testing.run_in_thread import run_in_thread
from rowlock.testing.stepping import run_until_settled, stepping
from rowlock.testing.virtual_time import run_virtual, virtual_time_now

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from contextlib import AsyncExitStack

    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

    from rowlock import Pipeline
    from rowlock.testing.stepping import Steps

pytest_plugins = ["rowlock.testing.teardown"]

ModelT = TypeVar("ModelT")

DATABASES: Final = ("sqlite", "postgresql")
DRIVERS: Final = ("asyncpg", "psycopg")
SERVER_VARIABLE: Final = "ROWLOCK_TEST_POSTGRESQL_URL"
_SERVER_DIRECTORY: Final = pytest.StashKey[Path]()
_WORKER_INPUT: Final = "rowlock_server_directory"


class OpenSteps(Protocol):
    """What `rowlock_steps` is."""

    async def __call__(
        self, pipeline: Pipeline[ModelT], *, beside: Sequence[Pipeline[Any]] = ()
    ) -> Steps[ModelT]:
        """Return the steps of `pipeline`; see `stepping`."""
        ...


# ---------------------------------------------------------------- the run


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice of the databases, and of the server."""
    group = parser.getgroup("rowlock")
    choices = (*DATABASES, "both")
    group.addoption(
        "--rowlock-database",
        dest="rowlock_database",  # said out loud, so that a host may have a shorter name for it
        choices=choices,
        default=None,
        help="run tests on this database only",
    )
    group.addoption(
        "--rowlock-driver", choices=DRIVERS, default=DRIVERS[0], help="how tests reach PostgreSQL"
    )
    parser.addini(
        "rowlock_database",
        "sqlite, postgresql or both: on which databases tests run",
        default="both",
    )
    parser.addini(
        "rowlock_postgresql_url", "a PostgreSQL server to use; else one is started", default=""
    )


def pytest_configure(config: pytest.Config) -> None:
    """Fix where the run's server lives; the first test that needs it starts it."""
    _chosen(config)
    workerinput: dict[str, Any] | None = getattr(config, "workerinput", None)
    config.stash[_SERVER_DIRECTORY] = (
        Path(workerinput[_WORKER_INPUT]) if workerinput else new_server_directory("rowlock-tests-")
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a parallel worker where the server lives."""
    node.workerinput[_WORKER_INPUT] = str(node.config.stash[_SERVER_DIRECTORY])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the server, after all workers have ended."""
    directory = config.stash.get(_SERVER_DIRECTORY, None)
    if directory is not None and not hasattr(config, "workerinput"):
        remove_server(PostgresqlServer(directory))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests with a `rowlock_database` on each of the chosen ones."""
    if "rowlock_database_name" in metafunc.fixturenames:
        metafunc.parametrize("rowlock_database_name", _chosen(metafunc.config), scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that name a database which was not chosen."""
    unwanted = {
        f"rowlock_{name}_database{suffix}"
        for name in DATABASES
        if name not in _chosen(config)
        for suffix in ("", "_with_clock")
    }
    drop = [one for one in items if not unwanted.isdisjoint(getattr(one, "fixturenames", ()))]
    if drop:
        config.hook.pytest_deselected(items=drop)
        items[:] = [one for one in items if one not in drop]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test of a contract in one sentence where its sessions are missing."""
    contract = getattr(item, "cls", None)
    if isinstance(contract, type) and issubclass(contract, PipelineContract):
        known = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009 - not public
        if "session_factory" not in known:
            pytest.fail(
                f"{contract.__name__} needs a fixture session_factory: write one that takes"
                " rowlock_session_factory and returns it",
                pytrace=False,
            )


def _chosen(config: pytest.Config) -> tuple[str, ...]:
    choice: str = config.getoption("--rowlock-database") or config.getini("rowlock_database")
    if choice not in (*DATABASES, "both"):
        raise pytest.UsageError(
            f"rowlock_database must be sqlite, postgresql or both, not {choice!r}"
        )
    return DATABASES if choice == "both" else (choice,)


# ---------------------------------------------------------------- PostgreSQL


@pytest.fixture(scope="session")
def rowlock_postgresql_url(pytestconfig: pytest.Config) -> URL:
    """The URL of a PostgreSQL server's administrative database."""
    driver = str(pytestconfig.getoption("--rowlock-driver"))
    for module in (DRIVERS[0], driver):
        need(
            module,
            what_for="a test on PostgreSQL",
            otherwise="Without it: pytest --rowlock-database=sqlite",
        )
    given = os.environ.get(SERVER_VARIABLE) or pytestconfig.getini("rowlock_postgresql_url")
    own = PostgresqlServer(pytestconfig.stash[_SERVER_DIRECTORY])
    server = make_url(given) if given else own.start()
    return server.set(drivername=f"{server.get_backend_name()}+{driver}")


@pytest.fixture
def rowlock_postgresql_server() -> Iterator[Callable[[], PostgresqlServer]]:
    """A factory of servers of the test's own, not started yet, stopped and removed afterwards."""
    servers: list[PostgresqlServer] = []

    def make() -> PostgresqlServer:
        servers.append(PostgresqlServer(new_server_directory("rowlock-test-server-")))
        return servers[-1]

    yield make
    for server in servers:
        remove_server(server)


# ---------------------------------------------------------------- databases


@pytest.fixture(scope="session")
def rowlock_metadata() -> MetaData | None:
    """The tables that each database begins with: override it and return your own metadata."""
    return None


OpenDatabase: TypeAlias = "Callable[[DatabaseClock | None], TemporaryDatabase]"


@pytest.fixture
def _open_sqlite(
    tmp_path: Path, rowlock_metadata: MetaData | None, rowlock_opened: AsyncExitStack
) -> OpenDatabase:
    def open_it(clock: DatabaseClock | None) -> TemporaryDatabase:
        path = tmp_path / ("rowlock.db" if clock is None else "rowlock_with_clock.db")
        database = open_sqlite_database(path, clock=clock)
        rowlock_opened.push_async_callback(database.aclose)
        return _with_tables(database, rowlock_metadata)

    return open_it


@pytest.fixture(scope="session")
def _rowlock_administration(rowlock_postgresql_url: URL) -> Iterator[Administration]:
    with Administration(rowlock_postgresql_url) as administration:
        yield administration


@pytest.fixture
def _open_postgresql(
    _rowlock_administration: Administration,
    rowlock_metadata: MetaData | None,
    rowlock_opened: AsyncExitStack,
) -> OpenDatabase:
    def open_it(clock: DatabaseClock | None) -> TemporaryDatabase:
        database = _rowlock_administration.create(clock)
        rowlock_opened.callback(_rowlock_administration.drop, database)
        rowlock_opened.push_async_callback(database.aclose)
        return _with_tables(database, rowlock_metadata)

    return open_it


def _with_tables(database: TemporaryDatabase, metadata: MetaData | None) -> TemporaryDatabase:
    if metadata is not None:
        run_in_thread(partial(_create_tables, database.url, metadata))
    return database


async def _create_tables(url: URL, metadata: MetaData) -> None:
    # An engine of its own: connections of the test's engine belong to the test's loop.
    first = TemporaryDatabase(url)
    try:
        await first.create_tables(metadata)
    finally:
        await first.aclose()


@pytest.fixture
def rowlock_sqlite_database(_open_sqlite: OpenDatabase) -> TemporaryDatabase:
    """An SQLite file, through the real aiosqlite."""
    return _open_sqlite(None)


@pytest.fixture
def rowlock_sqlite_database_with_clock(_open_sqlite: OpenDatabase) -> TemporaryDatabase:
    """An SQLite file whose time is moved by its `clock`."""
    return _open_sqlite(DatabaseClock())


@pytest.fixture
def rowlock_postgresql_database(_open_postgresql: OpenDatabase) -> TemporaryDatabase:
    """A PostgreSQL database."""
    return _open_postgresql(None)


@pytest.fixture
def rowlock_postgresql_database_with_clock(_open_postgresql: OpenDatabase) -> TemporaryDatabase:
    """A PostgreSQL database whose time is moved by its `clock`."""
    return _open_postgresql(DatabaseClock())


@pytest.fixture
def rowlock_database(rowlock_database_name: str, request: pytest.FixtureRequest) -> Any:
    """A database of each chosen kind in turn."""
    return request.getfixturevalue(f"rowlock_{rowlock_database_name}_database")


@pytest.fixture
def rowlock_database_with_clock(rowlock_database_name: str, request: pytest.FixtureRequest) -> Any:
    """A database of each chosen kind in turn, whose time is moved by its `clock`."""
    return request.getfixturevalue(f"rowlock_{rowlock_database_name}_database_with_clock")


@pytest.fixture
def rowlock_virtual_database(
    tmp_path: Path, rowlock_metadata: MetaData | None
) -> Iterator[TemporaryDatabase]:
    """Inline SQLite whose time follows the virtual loop's, moved further by its `clock`."""
    database = inline_sqlite_database(
        tmp_path / "rowlock_virtual.db", clock=DatabaseClock(source=virtual_time_now)
    )
    yield _with_tables(database, rowlock_metadata)
    run_virtual(database.aclose)


# ---------------------------------------------------------------- pipelines


@pytest.fixture
def rowlock_session_factory(
    rowlock_database: TemporaryDatabase,
) -> async_sessionmaker[AsyncSession]:
    """Sessions on `rowlock_database`; override it if your sessions are of a kind of their own."""
    return rowlock_database.session_factory


@pytest.fixture
def rowlock_steps(
    rowlock_session_factory: async_sessionmaker[AsyncSession], rowlock_opened: AsyncExitStack
) -> OpenSteps:
    """Take pipelines one step at a time; after the test, what is still queued is released."""

    async def open_steps(
        pipeline: Pipeline[ModelT], *, beside: Sequence[Pipeline[Any]] = ()
    ) -> Steps[ModelT]:
        return await rowlock_opened.enter_async_context(
            stepping(rowlock_session_factory, pipeline, beside=beside)
        )

    return open_steps


@pytest.fixture
def rowlock_run_until_settled(
    rowlock_session_factory: async_sessionmaker[AsyncSession],
) -> Callable[..., Awaitable[int]]:
    """Fetch and work until nothing is due any more; return how many items were worked on."""

    async def run(*pipelines: Pipeline[Any]) -> int:
        return await run_until_settled(rowlock_session_factory, pipelines)

    return run
