"""``python -m rowlock run``: what stands on a page is pasted, and runs."""

from __future__ import annotations

import os
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from .forked import command

PROGRAM = """\
import asyncio

class Two:

    def answer(self):

        return 2

print(await asyncio.sleep(0, Two().answer()), __name__)
"""


def rowlock_run(*arguments: str, pasted: str, folder: Path) -> CompletedProcess[str]:
    return command(("run", *arguments), folder, dict(os.environ), pasted=pasted)


@pytest.mark.parametrize("is_pasted", [True, False])
def test_await_and_empty_lines_may_stand_anywhere(tmp_path: Path, *, is_pasted: bool) -> None:
    """A page could not be pasted as it is."""
    (tmp_path / "page.py").write_text(PROGRAM, "utf-8")
    ended = rowlock_run(
        *([] if is_pasted else ["page.py"]), pasted=PROGRAM if is_pasted else "", folder=tmp_path
    )
    assert (ended.returncode, ended.stdout) == (0, "2 __main__\n"), ended.stderr


def test_files_beside_it_are_found(tmp_path: Path) -> None:
    """A page of the how-tos would not find the files of the tutorial."""
    (tmp_path / "volumes.py").write_text("SIZE = 3\n", "utf-8")
    ended = rowlock_run(pasted="from volumes import SIZE\nprint(SIZE)\n", folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "3\n"), ended.stderr


def test_an_error_of_the_program_is_its_own(tmp_path: Path) -> None:
    """A page that fails would look as if it had worked."""
    ended = rowlock_run(pasted="1 / 0\n", folder=tmp_path)
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """A slip in the name would be a traceback."""
    ended = rowlock_run("gone.py", pasted="", folder=tmp_path)
    assert ended.returncode == 2
    assert "cannot read gone.py" in ended.stderr
