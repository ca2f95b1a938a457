"""The lists of planted bugs fit the library: all that was promised is planted, and each named test
is there.

Whether the tests notice takes long, and has a session of its own (``nox -s planted``); here three
small ones show what it would tell.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from .planting import LISTS, check_of, replace, run_planted
from .reading import ROOT

DOOR = """
def is_open(hour, is_holiday):
    return 9 <= hour and not is_holiday
"""
DOOR_TESTS = """
from rowlock.door import is_open

def test_at_night():
    assert not is_open(3, is_holiday=False)

def test_at_noon():
    assert is_open(12, is_holiday=False)

def test_that_is_broken():
    assert is_open(3, is_holiday=False)
"""
DOOR_BUGS = """
from bug import Bug
DOOR = ("door.py", "is_open")
BUGS = (
    Bug("open at night", *DOOR, "9 <= hour", "True", ("tests/test_door.py::test_at_night",)),
    Bug("open on holidays", *DOOR, " and not is_holiday", "",
        ("tests/test_door.py::test_at_noon",)),
    Bug("always open", *DOOR, "9 <= hour and not is_holiday", "1", ("tests/test_door.py",)),
)
"""


@pytest.fixture
def door(tmp_path: Path) -> Path:
    """A small tree, with a bug that is found, one that nobody notices, and one whose tests fail
    without it.
    """
    shutil.copytree(
        ROOT / LISTS, tmp_path / LISTS, ignore=shutil.ignore_patterns("__pycache__", "*bugs.py")
    )
    replace(tmp_path / LISTS / "lists.py", "if ours not in names", "if not names")
    (tmp_path / LISTS / "bugs.py").write_text(DOOR_BUGS)
    (tmp_path / "tests" / "test_door.py").write_text(DOOR_TESTS)
    (tmp_path / "src" / "rowlock").mkdir(parents=True)
    (tmp_path / "src" / "rowlock" / "__init__.py").touch()
    (tmp_path / "src" / "rowlock" / "door.py").write_text(DOOR)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '-ra'\n")
    return tmp_path


def test_planted_test_that_was_renamed(tree: Path) -> None:
    """The check above would pass any name of a test, and pytest ends with an error for one that
    is not there.
    """
    replace(
        tree / "tests/leases/test_claim.py",
        "def test_a_schedule_is_kept",
        "def test_a_timetable_is_kept",
    )
    code, output = check_of(tree)
    assert code == 1
    assert "there is no test tests/leases/test_claim.py::test_a_schedule_is_kept" in output


def test_planted_promise_without_a_bug(tree: Path) -> None:
    """A bug that was promised to be planted could be dropped from its list, or go by the name of
    another.
    """
    replace(
        tree / LISTS / "bugs.py",
        '"the guard of the apply has no token"',
        '"the guard of the apply has no key"',
    )
    code, output = check_of(tree)
    assert code == 1
    assert (
        "drop the token from the guard: 'the guard of the apply has no token' is in no list"
        in output
    )
    assert "the guard of the apply has no key: there are 2 of this name" in output


def test_planted_bug_that_is_no_python(tree: Path) -> None:
    """Whatever imports the file would fail, and "find" a bug that nobody looks for."""
    replace(tree / LISTS / "speed_bugs.py", '"self.model",', '"self.model:",')
    code, output = check_of(tree)
    assert code == 1
    assert (
        "a table remembers all statements: with the bug rows/leased_table.py is no Python: "
        in output
    )


def test_what_is_told_of_planted_bugs(door: Path) -> None:
    """A promise that nobody keeps watch over would pass the night, or a test that fails anyway
    "find" what it names.
    """
    code, output = run_planted(door)
    assert code == 1, output
    verdicts = dict(
        re.findall(r"^(found|SURVIVED|TROUBLE) +[\d.]+ s  (.*)$", output, flags=re.MULTILINE)
    )
    assert verdicts == {
        "found": "open at night",
        "SURVIVED": "open on holidays",
        "TROUBLE": "always open: tests/test_door.py::test_that_is_broken fails without it",
    }
    assert re.search(r"3 planted in \d+ s, 2 survived\n  open on holidays\n  always open\n", output)
    code, output = run_planted(door, "open at night")
    assert code == 0, output


def test_tests_of_planted_bugs_that_cannot_be_run(door: Path) -> None:
    """Each bug would be tried for nothing, and the cause be told hundreds of times, after hours."""
    replace(door / "tests" / "test_door.py", "import is_open", "import is_closed")
    code, output = run_planted(door)
    assert code == 1
    assert output.startswith("without any bug pytest ended with 2\n")
    assert "cannot import name 'is_closed'" in output
