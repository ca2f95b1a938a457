"""Commands for programs: an assistant that asks, and a shell that completes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rowlock.__main__ import main
from rowlock.cli.without_app import SHELLS
from rowlock.testing import TemporaryDatabase

from .conftest import Command
from .forked import RUN_S_MAX, SHOP
from .test_steering import furnished

HELLO = {
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


def begun(folder: Path, **how: Any) -> subprocess.Popen[str]:
    """Begin the server beside the app of the test."""
    path = os.pathsep.join([str(SHOP), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", "rowlock", "mcp", "--app", "app:insight"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        text=True,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **{"stdout": subprocess.PIPE, **how},
    )


def ask(server: subprocess.Popen[str], number: int, **message: Any) -> Any:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, **message}) + "\n")
    server.stdin.flush()
    while True:
        answer = json.loads(server.stdout.readline())
        if answer.get("id") == number:
            return answer["result"]


async def test_an_assistant_asks_and_goes_away(
    sqlite_database: TemporaryDatabase, rowlock: Command, tmp_path: Path
) -> None:
    """An assistant could not ask; or its end would leave a traceback, or a server behind."""
    await furnished(sqlite_database)
    server = begun(tmp_path)
    assert ask(server, 1, **HELLO)["serverInfo"]["name"] == "rowlock"
    assert server.stdin is not None
    server.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
    called = {"name": "explain", "arguments": {"model": "Volume", "id": "17"}}
    answer = ask(server, 2, method="tools/call", params=called)
    assert "Volume 17" in answer["content"][0]["text"]
    _, errors = server.communicate(timeout=RUN_S_MAX)
    assert (server.returncode, errors) == (0, "")


@pytest.mark.at_length
@pytest.mark.parametrize("output", ["closed", "full"])
async def test_an_output_that_takes_nothing_ends_it(
    sqlite_database: TemporaryDatabase, rowlock: Command, tmp_path: Path, output: str
) -> None:
    """A client that has died would leave a server, or a page of a traceback."""
    await furnished(sqlite_database)
    if output == "full":
        full = os.open("/dev/full", os.O_WRONLY)
        server = begun(tmp_path, stdout=full)
        os.close(full)
    else:
        reading, writing = os.pipe()
        os.close(reading)
        server = begun(tmp_path, stdout=writing)
        os.close(writing)
    assert server.stdin is not None
    server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, **HELLO}) + "\n")
    server.stdin.flush()
    with server:
        try:
            code = server.wait(timeout=RUN_S_MAX)
        finally:
            server.kill()
        assert server.stderr is not None
        errors = server.stderr.read()
    assert "Traceback" not in errors
    assert (code != 0) is (output == "full")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_hears_of_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody would have to remember what the commands are called."""
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    # Options are beyond tcsh.
    for word in ("timeline", "explain", *(["--reason"] if shell != "tcsh" else [])):
        assert word in printed.out


def test_bash_completes_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed would be no program of the shell."""
    script = tmp_path / "completion.sh"
    assert main(["completion", "bash"]) == 0
    script.write_text(capsys.readouterr().out, encoding="utf-8")
    typed = (
        f'source "{script}"; COMP_WORDS=(rowlock timel); COMP_CWORD=1; _shtab_rowlock;'
        ' echo "${COMPREPLY[@]}"'
    )
    ended = subprocess.run(
        ["bash", "-c", typed], capture_output=True, text=True, timeout=RUN_S_MAX, check=False
    )
    assert ended.stdout.split() == ["timeline"]
