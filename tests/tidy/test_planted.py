"""The lists of planted bugs fit the library: each guard stands where its list says, once, and each named test is there.

Whether the tests notice takes long, and has a session of its own (``nox -s planted``).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .reading import ROOT

LISTS = Path("tests", "planted")
GUARD = "return or_(expires_at.is_(None), expires_at <= database_now())"


def check_of(root: Path) -> tuple[int, str]:
    """Return the exit code of the check of a tree, and what it says."""
    command = [sys.executable, str(root / LISTS), "--check"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return run.returncode, run.stdout + run.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of all that the check reads."""
    for part in ("src", "tests"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def replace(path: Path, old: str, new: str) -> None:
    """Change a file of the copy."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_lists_fit_the_library() -> None:
    """A guard that moved would be planted nowhere, and the night would end with a crash instead of a verdict."""
    code, output = check_of(ROOT)
    assert code == 0, output


def test_planted_guard_that_moved(tree: Path) -> None:
    """The check above would pass any guard."""
    replace(tree / "src/rowlock/rows/eligibility.py", GUARD, "return True")
    code, output = check_of(tree)
    assert code == 1
    assert "live leases are claimed: the guard stands 0 times in rows/eligibility.py" in output


def test_planted_test_that_was_renamed(tree: Path) -> None:
    """The check above would pass any name of a test, and pytest ends with an error for one that is not there."""
    replace(tree / "tests/leases/test_claim.py", "def test_a_schedule_is_kept", "def test_a_timetable_is_kept")
    code, output = check_of(tree)
    assert code == 1
    assert "there is no test tests/leases/test_claim.py::test_a_schedule_is_kept" in output


def test_planted_promise_without_a_bug(tree: Path) -> None:
    """A bug that was promised to be planted could be dropped from its list, or go by the name of another."""
    replace(tree / LISTS / "bugs.py", '"the guard of the apply has no token"', '"the guard of the apply has no key"')
    code, output = check_of(tree)
    assert code == 1
    assert "drop the token from the guard: 'the guard of the apply has no token' is in no list" in output
    assert "the guard of the apply has no key: there are 2 of this name" in output
