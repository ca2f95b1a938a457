"""Fixtures for all tests: databases, clocks, and the check that nothing is left behind.

Async tests run on a loop of their own. Every database is real, empty, of this test alone, and dropped afterwards.

| fixture | gives a `TemporaryDatabase` |
|---|---|
| `database` | on SQLite (aiosqlite) and on PostgreSQL: the test runs twice |
| `sqlite_database`, `postgresql_database` | on the one named; both may be used in one test |
| `database_with_clock` | as `database`, and its time stands still: `database_with_clock.clock.advance(31)` |
| `sqlite_database_with_clock`, `postgresql_database_with_clock` | the same on the one named |
| `virtual_database` | on inline SQLite whose time follows the virtual loop's; for tests under `@virtual_time` |

    async def test_it(database):
        await database.create_tables(Base.metadata)
        async with database.session_factory() as session: ...
        other_replica = async_sessionmaker(database.create_engine())   # closed by the fixture

    @virtual_time                      # from rowlock.testing; an hour costs nothing; takes no async fixtures
    async def test_that(virtual_database):
        await asyncio.sleep(3600)

`postgresql_url` is the server's administrative URL; `postgresql_server` (a factory) starts one more server for tests
that stop or restart theirs. `--database=sqlite|postgresql|both` chooses. The server is started once for all workers,
at the first use; with `ROWLOCK_TEST_POSTGRESQL_URL` another one is used. A test fails if it leaves tasks alive or
connections checked out.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from sqlalchemy import URL, make_url

from rowlock.testing import DatabaseClock, PostgresqlServer, TemporaryDatabase, databases, run_virtual
from rowlock.testing.virtual_time import TasksLeftBehindError, virtual_time_now

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


class _WorkerNode(Protocol):
    """What we use of pytest-xdist's `WorkerController`."""

    config: pytest.Config
    workerinput: dict[str, Any]


DATABASES = ("sqlite", "postgresql")
SERVER_VARIABLE = "ROWLOCK_TEST_POSTGRESQL_URL"
server_directory_key = pytest.StashKey[Path]()


# ---------------------------------------------------------------- the run


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice of the databases."""
    parser.addoption("--database", choices=(*DATABASES, "both"), default="both", help="run tests on this database only")


def pytest_configure(config: pytest.Config) -> None:
    """Fix where the run's PostgreSQL server lives; it is started by the first test that needs it."""
    workerinput: dict[str, Any] | None = getattr(config, "workerinput", None)
    config.stash[server_directory_key] = (
        Path(workerinput["server_directory"]) if workerinput else _new_server_directory("rowlock-tests-")
    )
    # pytest-alembic binds its built-in tests to this very file, by a collector that fails under pytest 9.2.
    # Its fixtures are not affected; its tests can be imported where they are wanted.
    if hasattr(config.option, "pytest_alembic_tests_path"):
        config.option.pytest_alembic_tests_path = "none"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: _WorkerNode) -> None:
    """Tell a parallel worker where the server lives."""
    node.workerinput["server_directory"] = str(node.config.stash[server_directory_key])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the server, after all workers have ended."""
    if not hasattr(config, "workerinput"):
        _remove_server(PostgresqlServer(config.stash[server_directory_key]))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests with a `database` on each of the chosen ones."""
    if "database_name" in metafunc.fixturenames:
        metafunc.parametrize("database_name", _chosen(metafunc.config), scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that name a database which was not chosen."""
    unwanted = {name for name in DATABASES if name not in _chosen(config)}
    keep, drop = [], []
    for item in items:
        names = {name.split("_")[0] for name in getattr(item, "fixturenames", ())}
        (drop if names & unwanted else keep).append(item)
    if drop:
        config.hook.pytest_deselected(items=drop)
        items[:] = keep


def _chosen(config: pytest.Config) -> tuple[str, ...]:
    choice: str = config.getoption("--database")
    return DATABASES if choice == "both" else (choice,)


def _new_server_directory(prefix: str) -> Path:
    # Not TMPDIR: it may be long (a socket's path is limited) or below root's home, whose modes the server would change.
    return Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp" if Path("/tmp").is_dir() else None))


def _remove_server(server: PostgresqlServer) -> None:
    try:
        server.stop()
    finally:
        shutil.rmtree(server.directory, ignore_errors=True)


# ---------------------------------------------------------------- nothing is left behind


@pytest.fixture(autouse=True)
def no_tasks_left_behind(request: pytest.FixtureRequest) -> None:
    """Fail an async test that leaves tasks alive."""
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("_check_tasks")


@pytest.fixture
async def _check_tasks() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    if left:
        msg = f"cancel and await what you start; still alive after the test: {left}"
        raise TasksLeftBehindError(msg)


# ---------------------------------------------------------------- databases


@pytest.fixture(scope="session")
def postgresql_url(pytestconfig: pytest.Config) -> URL:
    """The URL of a PostgreSQL server's administrative database."""
    if given := os.environ.get(SERVER_VARIABLE):
        return make_url(given)
    return PostgresqlServer(pytestconfig.stash[server_directory_key]).start()


@pytest.fixture
def postgresql_server() -> Iterator[Callable[[], PostgresqlServer]]:
    """A factory of servers of the test's own, not started yet, stopped and removed afterwards."""
    servers: list[PostgresqlServer] = []

    def make() -> PostgresqlServer:
        servers.append(PostgresqlServer(_new_server_directory("rowlock-test-server-")))
        return servers[-1]

    yield make
    for server in servers:
        _remove_server(server)


@pytest.fixture
async def sqlite_database(tmp_path: Path) -> AsyncIterator[TemporaryDatabase]:
    """An SQLite file, through the real aiosqlite."""
    async with databases.sqlite_database(tmp_path / "test.db") as database:
        yield database


@pytest.fixture
async def sqlite_database_with_clock(tmp_path: Path) -> AsyncIterator[TemporaryDatabase]:
    """An SQLite file whose time is moved by its `clock`."""
    async with databases.sqlite_database(tmp_path / "test_with_clock.db", clock=DatabaseClock()) as database:
        yield database


@pytest.fixture
async def postgresql_database(postgresql_url: URL) -> AsyncIterator[TemporaryDatabase]:
    """A PostgreSQL database."""
    async with databases.postgresql_database(postgresql_url) as database:
        yield database


@pytest.fixture
async def postgresql_database_with_clock(postgresql_url: URL) -> AsyncIterator[TemporaryDatabase]:
    """A PostgreSQL database whose time is moved by its `clock`."""
    async with databases.postgresql_database(postgresql_url, clock=DatabaseClock()) as database:
        yield database


@pytest.fixture
def database(database_name: str, request: pytest.FixtureRequest) -> TemporaryDatabase:
    """A database of each chosen kind in turn."""
    return request.getfixturevalue(f"{database_name}_database")


@pytest.fixture
def database_with_clock(database_name: str, request: pytest.FixtureRequest) -> TemporaryDatabase:
    """A database of each chosen kind in turn, whose time is moved by its `clock`."""
    return request.getfixturevalue(f"{database_name}_database_with_clock")


@pytest.fixture
def virtual_database(tmp_path: Path) -> Iterator[TemporaryDatabase]:
    """An inline SQLite database whose time follows the virtual loop's, moved further by its `clock`."""
    database = databases.inline_sqlite_database(tmp_path / "virtual.db", clock=DatabaseClock(source=virtual_time_now))
    yield database
    run_virtual(database.aclose)
