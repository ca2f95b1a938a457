"""Fixtures for all tests: those of `rowlock.testing.plugin` under shorter names, and the check that
no test leaves tasks behind.

Async tests run on a loop of their own. Every database is real, empty, of this test alone, and
emptied or dropped afterwards.

    async def test_it(database):
        await database.create_tables(Base.metadata)
        async with database.session_factory() as session: ...
        other_replica = async_sessionmaker(database.create_engine())   # closed by the fixture

    @virtual_time                      # from rowlock.testing; an hour costs nothing; takes no async
    fixtures async def test_that(virtual_database):
        await asyncio.sleep(3600)

`--database=sqlite|postgresql|both` chooses. Unless it does, tests that are marked
`either_database`, since their promise is kept above the database, run on SQLite alone, which is
quicker; ``but=["test_a"]`` names tests of a module that are not meant. Where cases are many and
each database counts, `databases_in_turn` runs each case on one of them, by turns; ``first=1``
begins with PostgreSQL, so that tests of the same cases meet both. In the folders `ABOVE_DIALECTS`
a test meets one of them, half of the tests each, unless it is marked `both_databases`.

What is marked `at_length` runs before a release: it takes seconds, and something that is quicker
keeps its promise with each change.
"""

from __future__ import annotations

import gc
import inspect
import logging
import signal
from typing import TYPE_CHECKING
from zlib import crc32

import pytest
from hypothesis import settings

from rowlock import logs, pipeline_hinter

from .databases import KeptDatabases, keep_statements
from .lengths import at_length
from .well_told import ToldLines, look_at_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import URL

    from rowlock.testing import PostgresqlServer, TemporaryDatabase

pytest_plugins = ["rowlock.testing.plugin"]

# On a starved machine an example takes a second, and no promise is about that.
settings.register_profile("rowlock", settings(deadline=None, max_examples=at_length(30, 100)))
settings.load_profile("rowlock")
keep_statements()

# A shell has what it runs in the background ignore interrupts, and children inherit that: programs
# that tests start and interrupt would go on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add a shorter name for the choice of the databases, and a way to renew pages of the docs."""
    parser.addoption(
        "--database",
        dest="rowlock_database",
        choices=("sqlite", "postgresql", "both"),
        default=None,
    )
    parser.addoption(
        "--renew-pages",
        action="store_true",
        help="write into pages of the docs what they are compared with",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep another plugin from collecting this very file."""
    # pytest-alembic binds its built-in tests to this very file, by a collector that fails under
    # pytest 9.2. Its fixtures are not affected; its tests can be imported where they are wanted.
    if hasattr(config.option, "pytest_alembic_tests_path"):
        config.option.pytest_alembic_tests_path = "none"


LONGEST = ("tests/chaos/", "tests/streams/references/", "tests/simulation/", "tests/failpoints/")
"""What takes long begins first, or one worker would still be at it when the others have ended."""


DATABASES = ("sqlite", "postgresql")
ABOVE_DIALECTS = tuple(
    f"tests/{folder}/"
    for folder in ("dashboard", "dispatch", "insight", "pipelines", "streams", "testing", "walks")
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the second run of tests that either database will do for, and what is long."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
    is_short = at_length(usual=True, long=False)
    takes_turns = config.getoption("rowlock_database") is None
    runs, left_out = [], []
    for item in items:
        waits = is_short and item.get_closest_marker("at_length")
        (left_out if waits or (takes_turns and is_second_run(item)) else runs).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = runs


def is_second_run(item: pytest.Item) -> bool:
    """Whether a test does on PostgreSQL what it does on SQLite, and either would do; or the other
    database has its turn.
    """
    call = getattr(item, "callspec", None)
    name = None if call is None else call.params.get("rowlock_database_name")
    if call is None or name is None:
        return False
    test = getattr(item, "originalname", "")
    case = sum(call.indices.values()) - call.indices["rowlock_database_name"]
    if in_turn := item.get_closest_marker("databases_in_turn"):
        return name != DATABASES[(case + in_turn.kwargs.get("first", 0)) % 2]
    mark = item.get_closest_marker("either_database")
    if mark and test not in mark.kwargs.get("but", ()):
        return name == "postgresql"
    if not item.nodeid.startswith(ABOVE_DIALECTS) or item.get_closest_marker("both_databases"):
        return False
    return name != DATABASES[(case + crc32(test.encode())) % 2]


def pytest_collection_finish() -> None:
    """Leave what was collected out of what the garbage collector looks through."""
    # Half a million objects for ten thousand tests: each full collection takes 0.3 s with them.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_lines_of_others() -> None:
    """Have each test begin with nothing counted in the log: a test that drains would be told of
    what others counted.
    """
    logs.forget()


@pytest.fixture(scope="session")
def told_lines() -> ToldLines:
    lines = ToldLines()
    look_at_errors(lines.wrong)
    return lines


@pytest.fixture(autouse=True)
def whole_lines(told_lines: ToldLines) -> Iterator[None]:
    """Fail a test in which a line of the log, or an error, says nothing where it should name its
    pipeline, its row or a reason.
    """
    logger = logging.getLogger("rowlock")
    told_lines.wrong.clear()
    logger.addHandler(told_lines)
    yield
    logger.removeHandler(told_lines)
    assert not told_lines.wrong


@pytest.fixture(autouse=True)
def no_listeners_left_behind() -> Iterator[None]:
    """Fail the test that leaves a pipeline running, and not the ones behind it that hint."""
    yield
    left, pipeline_hinter._wakes = pipeline_hinter._wakes, {}
    relays, pipeline_hinter._relays = pipeline_hinter._relays, []
    assert not left
    assert not relays


@pytest.fixture(autouse=True)
def no_tasks_left_behind(request: pytest.FixtureRequest) -> None:
    """Fail an async test that leaves tasks alive."""
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("rowlock_tidy")


@pytest.fixture(scope="session")
def postgresql_url(rowlock_postgresql_url: URL) -> URL:
    """The URL of a PostgreSQL server's administrative database."""
    return rowlock_postgresql_url


@pytest.fixture(scope="session")
def _rowlock_administration(postgresql_url: URL) -> Iterator[KeptDatabases]:
    """Make the fixtures of the plugin empty databases of PostgreSQL where they would drop them."""
    with KeptDatabases(postgresql_url) as databases:
        yield databases


@pytest.fixture
def postgresql_server(
    rowlock_postgresql_server: Callable[[], PostgresqlServer],
) -> Callable[[], PostgresqlServer]:
    """A factory of servers of the test's own."""
    return rowlock_postgresql_server


@pytest.fixture(scope="session")
def database_name(rowlock_database_name: str) -> str:
    """`sqlite` or `postgresql`: the kind of `database`."""
    return rowlock_database_name


@pytest.fixture
def database(rowlock_database: TemporaryDatabase) -> TemporaryDatabase:
    """A database of each chosen kind in turn."""
    return rowlock_database


@pytest.fixture
def sqlite_database(rowlock_sqlite_database: TemporaryDatabase) -> TemporaryDatabase:
    """An SQLite file, through the real aiosqlite."""
    return rowlock_sqlite_database


@pytest.fixture
def postgresql_database(rowlock_postgresql_database: TemporaryDatabase) -> TemporaryDatabase:
    """A PostgreSQL database."""
    return rowlock_postgresql_database


@pytest.fixture
def database_with_clock(rowlock_database_with_clock: TemporaryDatabase) -> TemporaryDatabase:
    """A database of each chosen kind in turn, whose time is moved by its `clock`."""
    return rowlock_database_with_clock


@pytest.fixture
def sqlite_database_with_clock(
    rowlock_sqlite_database_with_clock: TemporaryDatabase,
) -> TemporaryDatabase:
    """An SQLite file whose time is moved by its `clock`."""
    return rowlock_sqlite_database_with_clock


@pytest.fixture
def postgresql_database_with_clock(
    rowlock_postgresql_database_with_clock: TemporaryDatabase,
) -> TemporaryDatabase:
    """A PostgreSQL database whose time is moved by its `clock`."""
    return rowlock_postgresql_database_with_clock


@pytest.fixture
def virtual_database(rowlock_virtual_database: TemporaryDatabase) -> TemporaryDatabase:
    """An inline SQLite database whose time follows the virtual loop's."""
    return rowlock_virtual_database
