"""Commands on real terminals, wide and narrow, plain and coloured, and one that is watched while
its database goes away.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rowlock.cli import may_embellish
from rowlock.testing import TemporaryDatabase

from ..insight.shop import SCENES, Scene, furnish
from .conftest import Command
from .forked import RUN_S_MAX, SHOP
from .terminal import Terminal, terminal

APP = "--app=app:pair"
HOSTILE = Scene(SCENES["parked"].volume | {"last_error": "\x1b[2J\x9b1m\nforged \u202e"})  # type: ignore[operator]


@contextmanager
def on_terminal(
    folder: Path, *words: str, columns: int = 80, rows: int = 24, **environment: str
) -> Iterator[Terminal]:
    """Run the command line on a terminal of that size."""
    kept = {name: one for name, one in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    kind = environment.pop("TERM", "xterm")
    everything = kept | {"NO_COLOR": ""} | environment
    with terminal(words, folder, everything, size=(columns, rows), kind=kind) as screen:
        yield screen


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 10)])
@pytest.mark.usefixtures("rowlock")
async def test_an_explanation_fits_its_terminal(
    sqlite_database: TemporaryDatabase, tmp_path: Path, columns: int, rows: int
) -> None:
    """Lines would be broken within a word, or an error in a row would clear the screen."""
    await furnish(sqlite_database, HOSTILE)
    with on_terminal(
        tmp_path, "explain", "Volume", "17", APP, columns=columns, rows=rows
    ) as screen:
        assert screen.exit_code() == 1
    text = "\n".join(screen.lines)
    assert "verdicts.md#parked" in text
    assert "rowlock unpark Volume 17" in text.replace("\n", "")
    assert b"\x1b[2J" not in screen.written
    assert b"\x1b[1m" in screen.written
    if rows == 24:
        assert screen.lines[1 if columns == 80 else 2].startswith(r"PARKED for ")
        assert r"\x1b[2J\x9b1m\x0aforged \u202e" in text.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "environment", "titles"),
    [
        (("status",), {"NO_COLOR": "1"}, ["PIPELINE", "DUE", "OLDEST"]),
        (("rows", "VolumePipeline", "--state", "failing"), {"TERM": "dumb"}, ["VolumePipeline"]),
    ],
)
@pytest.mark.usefixtures("rowlock")
async def test_a_plain_terminal_gets_no_escape(
    sqlite_database: TemporaryDatabase,
    tmp_path: Path,
    words: tuple[str, ...],
    environment: dict[str, str],
    titles: list[str],
) -> None:
    """A log of a terminal, or a reader that speaks, would be full of control characters."""
    await furnish(sqlite_database, SCENES["parked"])
    with on_terminal(tmp_path, *words, APP, **environment) as screen:
        assert screen.exit_code() in {0, 1}
    assert b"\x1b" not in screen.written
    assert any(line.split()[: len(titles)] == titles for line in screen.lines)


def replaced(file: Path, away: Path) -> None:
    """Take the file of a database away, and put into its place what is none."""
    file.rename(away)
    file.mkdir()


def put_back(file: Path, away: Path) -> None:
    file.rmdir()
    away.rename(file)


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 10)])
@pytest.mark.usefixtures("rowlock")
async def test_a_status_that_is_watched_survives_its_database(
    sqlite_database: TemporaryDatabase, tmp_path: Path, columns: int, rows: int
) -> None:
    """A person who watches through an outage would have to begin again after each look, or look at
    numbers of long ago.
    """
    await furnish(sqlite_database, SCENES["in_line"])
    file = Path(str(sqlite_database.url.database))
    away = file.with_suffix(".away")
    await sqlite_database.engine.dispose()
    watch = ("status", "--watch", "1", "--app=app:unpooled")
    with on_terminal(tmp_path, *watch, columns=columns, rows=rows) as screen:
        screen.until(lambda text: "VolumePipeline" in text and "FleetPipeline" in text)
        seen = screen.lines
        assert len(seen) < rows
        assert not any(len(line) > columns for line in seen)
        replaced(file, away)
        screen.until(lambda text: text.startswith("? no database"))
        assert "VolumePipeline" not in "\n".join(screen.lines)
        put_back(file, away)
        screen.until(lambda text: "VolumePipeline" in text)
        screen.signal(signal.SIGINT)
        assert screen.exit_code() == 130
        assert "Traceback" not in "\n".join(screen.lines)


async def test_a_status_that_is_piped_is_one_document_after_the_other(
    sqlite_database: TemporaryDatabase, rowlock: Command, tmp_path: Path
) -> None:
    """A script that follows a status would have to cut it out of a drawing."""
    await furnish(sqlite_database, SCENES["in_line"])
    refused = rowlock("status", "--watch", "0.1", APP)
    assert (refused.returncode, "from 1 to 3600" in refused.stderr) == (2, True)
    command = f"{sys.executable} -m rowlock status --watch 1 {APP} --json | head -n 2"
    path = os.pathsep.join([str(SHOP), os.environ.get("PYTHONPATH", "")])
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", command),
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(RUN_S_MAX):
        printed, errors = await process.communicate()
    documents = [json.loads(line) for line in printed.decode().splitlines()]
    assert [one["schema"] for one in documents] == ["rowlock.status/1"] * 2
    assert b"Traceback" not in errors


def test_a_watch_that_is_piped_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file would be full of what clears a screen."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert not may_embellish()
