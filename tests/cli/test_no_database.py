"""Commands that look, without a database that answers: each says so in one line, with the exit code
of an outage, and none takes it for a finding.
"""

from __future__ import annotations

import asyncio
import io
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from rowlock.__main__ import main
from rowlock.cli import commands
from rowlock.cli.answering import ANSWER_WITHIN_S
from rowlock.insight import Insight, InsightLimits
from rowlock.insight.apps import insight_of_app
from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX
from ..insight.shop import Scene, VolumePipeline, furnish, insight_of
from .conftest import Command

COMMANDS: Final = {
    "check": ("check",),
    "status": ("status",),
    "explain": ("explain", "Volume", "17"),
    "explain --pipeline": ("explain", "--pipeline", "VolumePipeline"),
    "rows": ("rows", "VolumePipeline"),
}
APP: Final = ("--app", "tests.cli.test_no_database:hasty")


def hasty() -> Insight:
    """Return an app whose questions have no time to lose; the command line names the database."""
    limits = InsightLimits(timeout=timedelta(seconds=0.2))
    sessions = async_sessionmaker(create_async_engine("sqlite+aiosqlite:///nowhere/at.all"))
    return Insight(sessions, [VolumePipeline()], limits=limits)


def printed(*words: str) -> tuple[int, str, str]:
    """Run the command line in this process; return its exit code and what it has printed."""
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        code = main(words)
    return code, out.getvalue(), error.getvalue()


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A server that takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def url_of(server: socket.socket) -> str:
    """Return the URL of a database at the address of a server."""
    return f"postgresql+asyncpg://alice@127.0.0.1:{server.getsockname()[1]}/shop"


@pytest.mark.parametrize("command", ["check", "status", "explain", "rows"])
def test_a_server_that_is_not_there(
    rowlock: Command, listening: socket.socket, command: str
) -> None:
    """CI would take an outage for a defect of the schema, or for a schema that is well."""
    url = url_of(listening)
    listening.close()
    ended = rowlock(*COMMANDS[command], "--app", "app:pair", "--database", url)
    assert (ended.returncode, ended.stdout) == (3, "")
    [line] = ended.stderr.splitlines()
    assert line.startswith("rowlock: no database: ConnectionRefusedError: ")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_that_never_answers(listening: socket.socket, command: str) -> None:
    """A command would hang for as long as the server does."""
    code, out, error = printed(*COMMANDS[command], *APP, "--database", url_of(listening))
    assert (code, out) == (3, "")
    assert error == (
        "rowlock: no answer from the database within 10 s: it is away, or a transaction keeps what"
        " was asked for; look at rowlock status\n"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_is_not_there(tmp_path: Path, command: str) -> None:
    """A script that reads JSON would find no document, or one of findings."""
    url = f"sqlite+aiosqlite:///{tmp_path}/nowhere/x.db"
    code, out, error = printed(*COMMANDS[command], *APP, "--database", url, "--json")
    document = json.loads(out)
    assert (code, error) == (3, "")
    assert (document["schema"], document["exit_code"]) == ("rowlock.error/1", 3)
    assert document["message"].startswith("no database: ")
    assert not (tmp_path / "nowhere").exists()


async def test_threads_of_drivers_end_before_the_loop_does() -> None:
    """A traceback of a thread's would stand before the one line of the error, most of the time."""
    ended, released = list[str](), threading.Event()

    def driver() -> None:
        released.wait(HANG_S_MAX)
        ended.append("driver")

    async def fail() -> None:
        async with insight_of_app(hasty, APP[1]):
            threading.Thread(target=driver, daemon=True).start()
            asyncio.get_running_loop().call_soon(released.set)
            raise ConnectionError

    with pytest.raises(ConnectionError):
        await fail()
    assert ended == ["driver"]


async def test_a_database_that_is_slow_is_asked_as_long_as_there_is_time(
    sqlite_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 3 a.m. a status of many pipelines would be an error, which says that the database is away,
    in place of the counts that there are.
    """
    assert timedelta(seconds=ANSWER_WITHIN_S) > commands.STATUS_WITHIN
    await furnish(sqlite_database, Scene())
    monkeypatch.setattr(commands, "STATUS_WITHIN", timedelta(0))
    answer = await commands.status_in_time(insight_of(sqlite_database))
    assert "? pipelines without counts" in answer.text()
