"""Law 10: each planted bug is anchored by file, function and one short snippet, so that to rename
something is a script.

The snippet stands once in the function that the list names, wherever else it stands: so it needs to
be no longer than what is taken out, and who moves a function within its file, or renames something
beside the snippet, need not touch the list.
"""

from __future__ import annotations

from pathlib import Path

from .planting import check_of, replace
from .reading import ROOT

ELIGIBILITY = "src/rowlock/rows/eligibility.py"
FREE = "expires_at.is_(None), expires_at <= database_now()"
OTHER = """
def is_free_or_not(expires_at):
    return expires_at <= database_now()
"""


def test_each_guard_stands_once_in_its_function() -> None:
    """A guard that moved would be planted nowhere, and the night would end with a crash instead
    of a verdict.
    """
    code, output = check_of(ROOT)
    assert code == 0, output


def test_planted_guard_that_is_gone(tree: Path) -> None:
    """The check above would pass any guard."""
    replace(tree / ELIGIBILITY, FREE, "expires_at.is_(None)")
    code, output = check_of(tree)
    assert code == 1
    assert (
        "live leases are claimed: the guard stands 0 times in is_free of rows/eligibility.py"
        in output
    )


def test_planted_function_that_is_gone(tree: Path) -> None:
    """A function that was renamed would be looked for in vain, and the guard with it."""
    replace(tree / ELIGIBILITY, "def is_free(", "def is_unlocked(")
    code, output = check_of(tree)
    assert code == 1
    assert "live leases are claimed: there is no is_free in rows/eligibility.py" in output


def test_planted_guard_that_stands_twice(tree: Path) -> None:
    """A bug would take out something else besides, and be found for that."""
    replace(tree / ELIGIBILITY, FREE, "expires_at <= database_now(), expires_at <= database_now()")
    code, output = check_of(tree)
    assert code == 1
    assert (
        "live leases are claimed: the guard stands 2 times in is_free of rows/eligibility.py"
        in output
    )


def test_planted_guard_that_stands_in_another_function_too(tree: Path) -> None:
    """Guards would have to be as long as it takes to tell them from everything else in the file."""
    path = tree / ELIGIBILITY
    path.write_text(path.read_text(encoding="utf-8") + OTHER, encoding="utf-8")
    code, output = check_of(tree)
    assert code == 0, output


def test_planted_file_that_is_no_python(tree: Path) -> None:
    """The check would end with a traceback, and say nothing of all other bugs."""
    path = tree / ELIGIBILITY
    path.write_text("def\n", encoding="utf-8")
    code, output = check_of(tree)
    assert code == 1
    assert "live leases are claimed: rows/eligibility.py is no Python: " in output
