"""Which tests run which function: learned once, by running them all on SQLite under coverage.

The one idea: a mutant can only be found by a test that runs the function which it changes, so those
are tried and no others. Where they are many, those come first that are named like the module; of
the others some are drawn.

Not here: the mutants (``mutation.py``).
"""

from __future__ import annotations

import ast
import os
import random
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from coverage import CoverageData
from mutation import MODULES_MAX, FunctionNode, function_of, module_of

ROOMS = ("leases", "pipelines", "dispatch", "faults", "migrations", "locks", "rows", "conformance")
"""Folders of tests that are run."""
TESTS_MAX = 150
"""Most tests that are tried on one mutant."""
RUN_S_MAX = 3600
"""Longest time to run them all once. **Unit** seconds."""
SAID_MAX = 4000
"""How much of what pytest said is shown, from its end. **Unit** characters."""
DATA = ".coverage"
SETTINGS = """
[tool.coverage.run]
concurrency = ["greenlet", "thread"]
source_pkgs = ["rowlock"]
"""


def measure(folder: Path, *, processes: int) -> None:
    """Run all the tests once in `folder`, unless that was done before.

    Raises:
        SystemExit: some of them fail, though nothing was changed.
    """
    if (folder / DATA).exists():
        return
    command = [sys.executable, "-m", "pytest", "-q", "--database=sqlite", "-p", "no:cacheprovider"]
    command += [
        f"--numprocesses={processes}",
        "--cov",
        "--cov-context=test",
        "--cov-report=",
        "--ignore-glob=*wool*",
    ]
    command += [f"tests/{room}" for room in ROOMS]
    environment = os.environ | {"PYTHONPATH": str(folder / "src")}
    ran = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    if ran.returncode != 0:
        (folder / DATA).unlink(missing_ok=True)
        raise SystemExit(f"tests fail without any mutant\n{ran.stdout[-SAID_MAX:]}")


def tests_of(name: str, folder: Path) -> list[str]:
    """Return the tests to try on a mutant, those of its module first."""
    module, _ = module_of(name)
    path = (folder / "src" / Path(*module)).with_suffix(".py")
    path = path if path.exists() else path.with_suffix("") / "__init__.py"
    function = function_of(ast.parse(path.read_text(encoding="utf-8")), name)
    found = sorted(_running(_contexts(folder, path), function))
    near = [test for test in found if f"test_{module[-1]}" in test]
    others = [test for test in found if test not in set(near)]
    # Drawn by the mutant's name: the same each time.
    random.Random(name).shuffle(others)
    return [*near, *others][:TESTS_MAX]


def _running(contexts: dict[int, list[str]], function: FunctionNode) -> set[str]:
    # The line of its `def` runs at the import of its module.
    lines = range(function.body[0].lineno, (function.end_lineno or function.lineno) + 1)
    return {
        context.partition("|")[0] for line in lines for context in contexts.get(line, ()) if context
    }


@lru_cache(MODULES_MAX)
def _contexts(folder: Path, path: Path) -> dict[int, list[str]]:
    data = CoverageData(str(folder / DATA))
    data.read()
    return data.contexts_by_lineno(str(path))
