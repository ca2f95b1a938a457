"""A pytest plugin: databases, clocks and steps as fixtures, and the check that nothing is left
behind.

The one idea: every fixture is a plain one. It is set up outside the test's loop and closed inside
it (`rowlock_opened`), so it means the same under every runner of async tests.

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

One fixture is async, and there is one of it for each that may run the test: pytest-asyncio, in
either mode and with a loop of any scope, anyio, or none. `rowlock_opened` picks the right one; all
others push what they open on its stack, and it is closed in the loop of the test.

Not here: the databases themselves (`databases`), and the tests that each pipeline should pass
(`contract`).
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import pytest
from sqlalchemy import URL, MetaData, make_url

from rowlock.testing.contract import PipelineContract
from rowlock.testing.database_clock import DatabaseClock
from rowlock.testing.databases import (
    Administration,
    PostgresqlServer,
    TemporaryDatabase,
    inline_sqlite_database,
    need,
    new_server_directory,
    open_sqlite_database,
    remove_server,
)
from rowlock.testing.stepping import run_until_settled, stepping
from rowlock.testing.virtual_time import (
    TasksLeftBehindError,
    run_in_thread,
    run_virtual,
    virtual_time_now,
)

try:
    import pytest_asyncio
except ImportError:  # anyio's plugin may run the tests as well
    pytest_asyncio = None  # type: ignore[assignment, unused-ignore]

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

    from rowlock import Pipeline
    from rowlock.testing.stepping import Steps

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


# ---------------------------------------------------------------- the end of a test


_ANYIO_OWN: Final = frozenset({"TestRunner._call_in_runner_task", "_shutdown_process_pool_on_exit"})
"""Tasks of anyio: a new one for each test that it runs, and one that ends worker processes."""
_WORKER: Final = "_connection_worker_thread"
"""Part of the names of aiosqlite's threads: their function."""
THREADS_END_WITHIN_S: Final = 10.0
"""Longest wait for those threads; that of an open connection does not end."""
_LOOK_EVERY_S: Final = 0.001
_LOOP_SCOPES: Final = ("function", "class", "module", "package", "session")


def _opened_in_loop() -> Callable[[], AsyncIterator[AsyncExitStack]]:
    """Return a new function each time: pytest-asyncio notes on it which loop it is for."""

    async def opened() -> AsyncIterator[AsyncExitStack]:
        """Close what the fixtures opened, in the loop of the test; then look for tasks left."""
        before, threads = asyncio.all_tasks(), set(threading.enumerate())
        async with AsyncExitStack() as stack:
            stack.push_async_callback(_driver_threads_end, threads)
            stack.callback(_check_tasks, before)
            yield stack

    return opened


async def _driver_threads_end(before: set[threading.Thread]) -> None:
    # One whose connection failed, or was cancelled while it was made, reports so by way of the
    # loop, and would fail another test if that is closed.
    begun = [one for one in threading.enumerate() if one not in before and _WORKER in one.name]
    with suppress(TimeoutError):
        async with asyncio.timeout(THREADS_END_WITHIN_S):
            while any(one.is_alive() for one in begun):  # noqa: ASYNC110 - a thread sets no event
                await asyncio.sleep(_LOOK_EVERY_S)


def _check_tasks(before: set[asyncio.Task[Any]]) -> None:
    alive = asyncio.all_tasks() - before - {asyncio.current_task()}
    left = {
        task for task in alive if getattr(task.get_coro(), "__qualname__", "") not in _ANYIO_OWN
    }
    if left:
        msg = f"cancel and await what you start; still alive after the test: {left}"
        raise TasksLeftBehindError(msg)


_rowlock_opened_under_anyio = pytest.fixture(_opened_in_loop())
if pytest_asyncio is not None:
    for _scope in _LOOP_SCOPES:
        globals()[f"_rowlock_opened_in_{_scope}"] = pytest_asyncio.fixture(loop_scope=_scope)(
            _opened_in_loop()
        )


@pytest.fixture
def _rowlock_opened_alone() -> Iterator[AsyncExitStack]:
    """Close what the fixtures opened, where no plugin runs async tests."""
    stack = AsyncExitStack()
    yield stack
    run_in_thread(stack.aclose)


@pytest.fixture
def rowlock_opened(request: pytest.FixtureRequest) -> AsyncExitStack:
    """The stack of what is closed after the test, in the loop that runs it."""
    stack: AsyncExitStack = request.getfixturevalue(_runner_of(request))
    return stack


def _runner_of(request: pytest.FixtureRequest) -> str:
    if "anyio_backend" in request.fixturenames:
        if request.getfixturevalue("anyio_backend_name") != "asyncio":
            pytest.fail(
                "rowlock runs on asyncio: have your fixture `anyio_backend` return 'asyncio'",
                pytrace=False,
            )
        return "_rowlock_opened_under_anyio"
    plugins = request.config.pluginmanager
    if pytest_asyncio is None or not any(map(plugins.hasplugin, ("asyncio", "pytest_asyncio"))):
        return "_rowlock_opened_alone"
    marker = request.node.get_closest_marker("asyncio")
    asked = marker.kwargs.get("loop_scope") or marker.kwargs.get("scope") if marker else None
    return f"_rowlock_opened_in_{asked or request.config.getini('asyncio_default_test_loop_scope')}"


@pytest.fixture
def rowlock_tidy(rowlock_opened: AsyncExitStack) -> None:
    """Fail the test if it leaves tasks alive."""
