"""One run of pytest in a process that has the larger libraries already: to import them anew for
each bug would take as long as most of the tests.

None of ours is among them, so each child imports the library from its own bench; and no plugin of
pytest, which would find itself loaded before its asserts could be rewritten.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Final

PRELOADED: Final = [
    "pytest",
    "_pytest.assertion.rewrite",
    "sqlalchemy.ext.asyncio",
    "sqlalchemy.orm",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "alembic.config",
    "asyncpg",
    "unittest.mock",
]

_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(PRELOADED)


def run_pytest(
    arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], seconds_max: float
) -> tuple[int, str]:
    """Return pytest's exit code for `arguments` in `folder`, 1 if it does not end, and what was
    said.
    """
    said = folder / "said.txt"
    child = _FORKS.Process(target=_main, args=(list(arguments), folder, dict(environment), said))
    child.start()
    child.join(seconds_max)
    if child.exitcode is None:
        child.kill()
        child.join()
        return 1, f"they do not end within {seconds_max:g} s"
    return child.exitcode, said.read_text(encoding="utf-8", errors="replace")


def _main(arguments: list[str], folder: Path, environment: dict[str, str], said: Path) -> None:
    with said.open("wb") as output:
        for standard in (1, 2):
            os.dup2(output.fileno(), standard)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    # As `python -m pytest` begins; the tree that is at work comes behind the bench.
    sys.path[:] = [str(folder), *environment["PYTHONPATH"].split(os.pathsep), *sys.path]
    import pytest  # noqa: PLC0415  # where it was loaded before the fork

    sys.exit(pytest.main(arguments))
