"""``rowlock dashboard``: who gets in, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from httpx import AsyncClient

from rowlock.__main__ import main
from rowlock.cli import windows
from rowlock.dashboard.dashboard import KeyedDashboard, serve
from rowlock.errors import AppError
from rowlock.testing import TemporaryDatabase

from ..insight.shop import Base, insight_of
from .conftest import Command
from .forked import SHOP

WAIT_S = 60


async def test_who_has_the_key_gets_in(
    rowlock: Command, sqlite_database: TemporaryDatabase, tmp_path: Path
) -> None:
    """Another program of the machine, or a page in the browser, would look and act."""
    assert rowlock("dashboard", "--help").returncode == 0
    await sqlite_database.create_tables(Base.metadata)
    path = os.pathsep.join([str(SHOP), os.environ.get("PYTHONPATH", "")])
    words = ("-m", "rowlock", "dashboard", "--app=app:pair", "--port=0")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WAIT_S):
            address = (await process.stdout.readline()).decode().strip()
        front, key = address.removesuffix("/").rsplit("/", 1)
        async with AsyncClient(timeout=WAIT_S) as client:
            for wrong in ("/", "/api/status", f"/{key[::-1]}/", f"//{key}/", f"/?key={key}"):
                assert (await client.get(front + wrong)).status_code == 403
            page = await client.get(address)
            assert page.status_code == 200
            assert "VolumePipeline" in page.text
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(WAIT_S):
            assert await process.wait() in {0, 130}
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def test_a_port_that_is_taken_is_one_line(rowlock: Command) -> None:
    """A script would take it for an outage of the database, which has exit code 3."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = rowlock("dashboard", "--app=app:pair", f"--port={port}")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith(
        f"rowlock: the dashboard cannot listen on 127.0.0.1, port {port}"
    )
    assert answer.stderr.count("\n") == 1


async def test_an_address_of_the_sixth_version_can_be_opened(
    sqlite_database: TemporaryDatabase,
) -> None:
    """The address that is printed would be none."""
    told: list[str] = []

    def tell(address: str) -> None:
        told.append(address)
        raise EOFError

    app = KeyedDashboard(insight_of(sqlite_database), name="alice")
    try:
        with pytest.raises(EOFError):
            await serve(app, host="::1", port=0, told=tell)
    except AppError:
        pytest.skip("this machine has no such address")
    assert told[0].startswith("http://[::1]:")


def test_no_document_is_promised(capsys: pytest.CaptureFixture[str]) -> None:
    """A script would wait for a document, and get a server."""
    assert main(["dashboard", "--json"]) == 2
    answer = capsys.readouterr()
    assert answer.out == ""
    assert "rowlock status --json" in answer.err


def test_a_missing_extra_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback would be all that says what to install."""
    monkeypatch.setattr(windows, "find_spec", lambda _name: None)
    assert main(["dashboard"]) == 2
    assert 'pip install "rowlock[dashboard]"' in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["dashboard", "--port", "99999"])
