"""Apps that hang, exit or fail where a command reads them, and outputs that take no answer."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from rowlock.cli import answering, windows
from rowlock.cli.answering import MISUSED, answered, watched
from rowlock.insight import Insight
from rowlock.testing import TemporaryDatabase

from ..insight.shop import Scene, furnish
from .conftest import Command
from .forked import RUN_S_MAX, SHOP

STRANGE: Final = """\
import asyncio
import sys
from contextlib import asynccontextmanager
from app import pair

async def hangs():
    await asyncio.sleep(30)
    return "longer than anybody waits"

async def has_no_file():
    open("settings that are not there")

async def has_no_broker():
    raise ConnectionRefusedError("no broker")

async def exits():
    sys.exit(0)

@asynccontextmanager
async def fails_at_its_end():
    yield pair
    raise RuntimeError("no broker")
"""

SLOW: Final = """\
import asyncio
from rowlock.insight import Insight

loop = asyncio.get_running_loop()
now = loop.time
loop.time = lambda: now() + 3600  # as if the import took an hour
nothing = Insight(None, [])
"""

STUBBORN: Final = """\
import asyncio, threading
from datetime import timedelta
from app import PlannedPipeline, sessions
from rowlock.cli import answering
from rowlock.insight import rehearsal

rehearsal.REHEARSAL_TIMEOUT = timedelta(milliseconds=50)
answering.ENDS_WITHIN_S = 0.1

class DeafPipeline(PlannedPipeline):
    async def process(self, item):
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

class HungPipeline(PlannedPipeline):
    def process(self, item):
        threading.Event().wait()

class StartingPipeline(PlannedPipeline):
    async def process(self, item):
        threading.Thread(target=threading.Event().wait).start()
        return await super().process(item)

deaf = sessions, [DeafPipeline()]
hung = sessions, [HungPipeline()]
starting = sessions, [StartingPipeline()]
"""


async def test_an_app_that_fails_at_its_end_keeps_no_answer_back(
    sqlite_database: TemporaryDatabase, rowlock: Command, tmp_path: Path
) -> None:
    """A person would not see the answer that was there."""
    await furnish(sqlite_database, Scene({"status": "active"}))
    (tmp_path / "strange.py").write_text(STRANGE, encoding="utf-8")
    ended = rowlock("explain", "Volume", "17", "--app", "strange:fails_at_its_end")
    assert ended.returncode == 0
    assert "NOT READY" in ended.stdout
    assert ended.stderr == "rowlock: the app did not close: RuntimeError: no broker\n"


@pytest.mark.parametrize("app", ["strange:exits", "leaving:app"])
def test_an_app_that_exits_is_no_answer(rowlock: Command, tmp_path: Path, app: str) -> None:
    """A script would take the exit of a program of the host's for a command that found nothing."""
    (tmp_path / "strange.py").write_text(STRANGE, encoding="utf-8")
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    ended = rowlock("status", "--app", app)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "SystemExit: 0" in ended.stderr


def test_an_app_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command waits some seconds for an app that is opened, and says that it was the app."""
    (tmp_path / "hanging.py").write_text(
        STRANGE.replace("from app import pair\n", ""), encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    options = argparse.Namespace(
        app="hanging:hangs", database=None, json=False, traceback=False, no_colour=True
    )
    monkeypatch.setattr(answering, "ANSWER_WITHIN_S", 0.1)
    assert answered(options, Insight.status) == MISUSED
    assert watched(options, Insight.status, every_s=1) == MISUSED
    assert windows.run_mcp(options) == MISUSED
    options = argparse.Namespace(**vars(options), host="127.0.0.1", port=0, look_only=True)
    assert windows.run_mcp(options) == MISUSED
    lines = capsys.readouterr().err.splitlines()
    hint = "the app hanging:hangs was not open within 0.1 s"
    assert [hint in line for line in lines] == [True] * 4


@pytest.mark.parametrize("app", ["has_no_file", "has_no_broker"])
def test_an_app_that_does_not_open_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], app: str
) -> None:
    """A file or a service that the app lacks would be an outage of the database."""
    module = f"closed_{app}"
    text = STRANGE.replace("from app import pair\n", "")
    (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    options = argparse.Namespace(
        app=f"{module}:{app}", database=None, json=False, traceback=False, no_colour=True
    )
    assert answered(options, Insight.status) == MISUSED
    assert watched(options, Insight.status, every_s=1) == MISUSED
    lines = capsys.readouterr().err.splitlines()
    hint = f"rowlock: the app {module}:{app} was not open ("
    assert [line.startswith(hint) for line in lines] == [True] * 2


async def replicas_soon(insight: Insight) -> Any:
    """Ask what needs no database, after the event loop has looked at its timers."""
    await asyncio.sleep(0)
    return await insight.replicas()


def test_an_import_takes_as_long_as_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit of a command begins behind the import of the app."""
    (tmp_path / "slow_app.py").write_text(SLOW, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    options = argparse.Namespace(
        app="slow_app:nothing", database=None, json=False, traceback=False, no_colour=True
    )
    assert answered(options, replicas_soon) == answering.WELL, capsys.readouterr().err


@pytest.mark.parametrize(
    ("app", "code", "text", "is_left"),
    [
        ("deaf", 1, "Retry: TimeoutError", True),
        ("hung", 1, "Retry: TimeoutError", False),
        ("starting", 0, "Apply", True),
    ],
)
async def test_code_that_goes_on_keeps_no_answer_back(
    sqlite_database: TemporaryDatabase,
    rowlock: Command,
    tmp_path: Path,
    app: str,
    code: int,
    text: str,
    is_left: bool,
) -> None:
    """A `process` that ignores its cancellation, or a thread, would keep the command for ever."""
    await furnish(sqlite_database, Scene())
    (tmp_path / "stubborn.py").write_text(STUBBORN, encoding="utf-8")
    name = f"{app.title()}Pipeline"
    ended = rowlock("plan", name, "17", "--app", f"stubborn:{app}")
    assert ended.returncode == code, ended.stderr
    assert f"Volume 17: {text}" in ended.stdout
    # Python waits for no thread in which a plain `process` runs.
    assert is_left is ("rowlock: code of the app goes on, and is left behind" in ended.stderr)


async def exits(insight: Insight) -> Any:
    """Leave the process, as a value of the host's may."""
    sys.exit(0)


async def lasts(insight: Insight) -> Any:
    await asyncio.Event().wait()


def test_what_ends_no_question_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script would take an exit for an answer; or a person look for the database's trouble where
    a hundred rows were too many.
    """
    app = "from rowlock.insight import Insight\nnothing = Insight(None, [])\n"
    (tmp_path / "empty_app.py").write_text(app, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    options = argparse.Namespace(
        app="empty_app:nothing", database=None, json=False, traceback=False, no_colour=True
    )
    assert answered(options, exits) == answering.MISUSED
    monkeypatch.setattr(answering, "ANSWER_WITHIN_S", 0.01)
    assert answered(options, lasts, within_s=0.02) == answering.MISUSED
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "SystemExit: 0" in printed.err
    assert "not done within 0.02 s: take fewer rows" in printed.err


async def test_an_output_of_another_encoding_gets_the_answer(
    sqlite_database: TemporaryDatabase, rowlock: Command
) -> None:
    """A person with an old locale would get a traceback, and a script the code of a trouble."""
    await furnish(sqlite_database, Scene({"status": "active"}))
    words = ("explain", "Volume", "17", "--app", "app:pair")
    ended = rowlock(*words, PYTHONIOENCODING="ascii")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("Volume 17 \\xb7 VolumePipeline")
    document = json.loads(rowlock(*words, "--json", PYTHONIOENCODING="ascii").stdout)
    assert document["schema"] == "rowlock.explanation/1"


def explained_into(ending: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a shell, its output as `ending` says."""
    command = f"{sys.executable} -m rowlock explain Volume 17 --app app:pair {ending}"
    return subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(SHOP), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )


@pytest.mark.parametrize(("ending", "code"), [("> /dev/full", 2), ("| true", 0), (">&-", 0)])
async def test_an_output_that_takes_nothing_is_told_in_a_line(
    sqlite_database: TemporaryDatabase, rowlock: Command, tmp_path: Path, ending: str, code: int
) -> None:
    """A full disk, or a reader that has seen enough, would look like a row that needs a person."""
    await furnish(sqlite_database, Scene({"status": "active"}))
    ended = explained_into(ending, tmp_path)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stderr.count("\n") == (1 if code else 0)
