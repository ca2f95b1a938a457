"""``rowlock explain``: the answer alone on stdout, and what the exit code says."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from rowlock.testing import TemporaryDatabase

from ..insight.shop import SCENES, Scene, furnish
from .conftest import Command


async def test_the_answer_is_that_of_the_api(
    database: TemporaryDatabase, rowlock_on_both: Command
) -> None:
    """A person at a terminal would read something else than the page says; or have one replica more
    work on the row, which tells of its start here.
    """
    await furnish(database, Scene({"status": "active"}))
    ended = rowlock_on_both("explain", "Volume", "17", "--app", "app:manager")
    assert (ended.returncode, ended.stderr) == (0, "")
    title, headline, *_ = ended.stdout.splitlines()
    assert re.fullmatch(r"Volume 17 · VolumePipeline +\d{4}-.* UTC, by the database", title)
    assert headline == "NOT READY: status = 'submitted' is false: status is 'active'"


@pytest.mark.parametrize(
    ("scene", "code"), [("parked", 1), ("nobody_runs", 1), ("no_row", 4), ("not_ready", 0)]
)
async def test_the_exit_code_says_whether_a_person_is_needed(
    sqlite_database: TemporaryDatabase, rowlock: Command, scene: str, code: int
) -> None:
    """A script could not tell a parked row from one that is in line."""
    await furnish(sqlite_database, SCENES[scene])
    ended = rowlock("explain", "Volume", "17", "--app", "app:pair")
    assert ended.returncode == code, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    "app", ["manager", "insight", "pair", "made", "awaited", "entered", "twice"]
)
async def test_an_app_is_given_in_any_way(
    sqlite_database: TemporaryDatabase, rowlock: Command, app: str
) -> None:
    """A host would have to be written for the command."""
    await furnish(sqlite_database, Scene({"status": "active"}))
    ended = rowlock("explain", "volumes", "17", ROWLOCK_APP=f"app:{app}")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ("entered\nleft\n" if app == "entered" else "")


async def test_the_project_names_the_app(
    sqlite_database: TemporaryDatabase, rowlock: Command, tmp_path: Path
) -> None:
    """Everybody would have to type where the pipelines are."""
    await furnish(sqlite_database, Scene({"status": "active"}))
    (tmp_path / "pyproject.toml").write_text('[tool.rowlock]\napp = "app:pair"\n', "utf-8")
    ended = rowlock("explain", "Volume", "17")
    assert ended.returncode == 0
    assert ended.stderr == f"rowlock: the app is app:pair, named by {tmp_path}/pyproject.toml\n"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may chown")
@pytest.mark.parametrize("whose", ["folder", "file", "link"])
def test_a_project_of_another_user_names_no_app(
    rowlock: Command, tmp_path: Path, whose: str
) -> None:
    """`rowlock` imports no module by the project file of a folder that another owner owns."""
    project, below = tmp_path / "pyproject.toml", tmp_path / "below"
    project.write_text('[tool.rowlock]\napp = "planted:pair"\n', "utf-8")
    (tmp_path / "planted.py").write_text("print('imported')\n", "utf-8")
    below.mkdir()
    if whose == "link":
        project.rename(below / "pyproject.toml")
        project.symlink_to(below / "pyproject.toml")
    os.chown(tmp_path if whose == "folder" else project, 65534, -1, follow_symlinks=False)
    for folder in (tmp_path,) if whose == "link" else (tmp_path, below):
        ended = rowlock("explain", "Volume", "17", folder=folder)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.startswith(
            f"rowlock: {project} names the app planted:pair, which is not"
        )
    assert rowlock("explain", "Volume", "17", "--app", "app:pair").returncode != 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "say where the pipelines are"),
        (("--app", "app"), "an app is module:attribute"),
        (("--app", "nowhere:manager"), "nowhere cannot be imported"),
        (("--app", "app:nothing"), "app has no nothing"),
        (("--app", "app:number"), "app:number is a int; an app is a PipelineManager"),
        (("--app", "app:needs"), "app:needs must need no arguments"),
        (("--app", "app:returns_nothing"), "app:returns_nothing returns None; an app is a Pipel"),
        (("--app", "app:fails_within"), "rowlock: TypeError: object of type 'int' has no len()"),
        (("--app", "app:pair", "--database", "x://y"), "the database cannot be used"),
    ],
)
def test_without_an_app_one_line_says_what_to_write(
    rowlock: Command, words: tuple[str, ...], told: str
) -> None:
    """A person would read a traceback of rowlock's."""
    ended = rowlock("explain", "Volume", "17", *words)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_json_is_one_document(sqlite_database: TemporaryDatabase, rowlock: Command) -> None:
    """A script would have to cut the answer out of texts."""
    await furnish(sqlite_database, Scene({"status": "active"}))
    ended = rowlock("explain", "Volume", "17", "--app", "app:pair", "--json")
    assert json.loads(ended.stdout)["schema"] == "rowlock.explanation/1"
    ended = rowlock("explain", "Nothing", "17", "--app", "app:pair", "--json")
    document = json.loads(ended.stdout)
    assert ended.returncode == document["exit_code"] == 2
    assert (document["schema"], document["error"]) == ("rowlock.error/1", "app-error")


def test_a_database_that_is_away(rowlock: Command, tmp_path: Path) -> None:
    """A script could not tell an outage from a wrong word."""
    url = f"sqlite+aiosqlite:///{tmp_path}/nowhere/x.db"
    ended = rowlock("explain", "Volume", "17", "--app", "app:pair", "--database", url)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.startswith("rowlock: no database: OperationalError")
    traced = rowlock("explain", "Volume", "17", "--app=app:pair", "--traceback", "--database", url)
    assert "Traceback" in traced.stderr


async def test_a_file_that_another_process_has(
    sqlite_database: TemporaryDatabase, rowlock: Command
) -> None:
    """A person would look for a database that is there, and only locked."""
    await furnish(sqlite_database, Scene({"status": "active"}))
    async with sqlite_database.engine.connect() as other:
        await other.exec_driver_sql("PRAGMA locking_mode = EXCLUSIVE")
        await other.exec_driver_sql("BEGIN EXCLUSIVE")
        ended = rowlock("explain", "Volume", "17", "--app", "app:hasty")
        await other.rollback()
        await other.invalidate()
    assert ended.returncode == 3
    assert ended.stderr.startswith("rowlock: another transaction keeps the database locked: ")
