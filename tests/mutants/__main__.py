"""Tries a random sample of mutants: ``python tests/mutants [FOLDER] [--seed N] [--sample N]
[--minutes N]``.

The one idea: all mutants of three rooms are thousands, and each wants tests that take seconds; a
sample drawn by a number tells the score within some percent, and names survivors to look at. mutmut
only writes the mutants, into a copy of the tree, and the tests are run there once to learn which of
them run what: a ``FOLDER`` keeps both for another time. Each mutant is tried in a process forked
from this one, on SQLite only. Mutants of a mere text, of an error or of the log, are not drawn.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from mutation import is_of_a_text, names_of, shown
from reach import SETTINGS as COVERAGE_SETTINGS
from reach import measure, tests_of

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = """
[tool.mutmut]
source_paths = ["src/rowlock"]
only_mutate = ["src/rowlock/leases/*", "src/rowlock/pipelines/*", "src/rowlock/dialects/*"]
"""
WRITING_S_MAX = 900
"""Longest time for mutmut to write all mutants. **Unit** seconds."""
SAID_MAX = 4000
"""How much of what mutmut said is shown, from its end. **Unit** characters."""
MUTANT_S_MAX = 300
"""Longest time for the tests of one mutant; one test that hangs is ended sooner, and found.
**Unit** seconds.
"""
WITHOUT = shutil.ignore_patterns("__pycache__")
OPTIONS = (
    "-x",
    "-q",
    "--database=sqlite",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-o",
    "timeout=60",
)


def write_mutants(folder: Path) -> None:
    """Have mutmut write its mutants into a copy of the tree in `folder`, if they are not there yet.

    Raises:
        SystemExit: it wrote none.
    """
    if (folder / "mutants").exists():
        return
    shutil.copytree(ROOT / "src", folder / "src", ignore=WITHOUT)
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(
        settings + SETTINGS + COVERAGE_SETTINGS, encoding="utf-8"
    )
    # Then it would run all the tests, over and over. It finds none yet, and ends with an error.
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", "1"]
    wrote = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=WRITING_S_MAX, check=False
    )
    if not names_of(folder, []):
        raise SystemExit(f"mutmut wrote no mutants\n{(wrote.stdout + wrote.stderr)[-SAID_MAX:]}")
    for copied in ("tests", "alembic", "examples", "docs"):
        shutil.copytree(ROOT / copied, folder / copied, ignore=WITHOUT)


def try_one(name: str, folder: Path) -> str:
    """Return ``found`` if the tests fail with the mutant, ``SURVIVED``, ``slow``, or ``NOT RUN``
    if no test runs its function.
    """
    tests = tests_of(name, folder)
    return _verdict(tests, folder, mutant=name) if tests else "NOT RUN"


def _verdict(tests: list[str], folder: Path, *, mutant: str) -> str:
    child = os.fork()
    if child == 0:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        os.environ["MUTANT_UNDER_TEST"] = mutant
        os.chdir(folder)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        os._exit(int(pytest.main([*OPTIONS, *tests])))
    # Not an alarm in the child: pytest-timeout has that for itself.
    in_time = signal.sigtimedwait([signal.SIGCHLD], MUTANT_S_MAX) is not None
    if not in_time:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not in_time:
        return "slow"
    return "found" if os.waitstatus_to_exitcode(status) else "SURVIVED"


def main() -> int:
    """Try the sample, and print the score and the survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        help="where mutants are written, or were before; else they are not kept",
    )
    parser.add_argument("--seed", type=int, default=1, help="draws the sample")
    parser.add_argument("--sample", type=int, default=200, help="how many mutants")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="stop after so long, whatever is left"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=2,
        choices=range(1, 17),
        help="processes to learn what tests run",
    )
    parser.add_argument(
        "--module", action="append", default=[], help="of this module only; may be said again"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rowlock-mutants-") as temporary:
        folder = (asked.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        write_mutants(folder)
        measure(folder, processes=asked.jobs)
        try_sample(folder, asked)
    return 0


def try_sample(folder: Path, asked: argparse.Namespace) -> None:
    """Try the mutants that were asked for."""
    sys.path.insert(0, str(folder / "mutants" / "src"))
    names = names_of(folder, asked.module)
    random.Random(asked.seed).shuffle(names)
    sample = islice((name for name in names if not is_of_a_text(name, folder)), asked.sample)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    began, verdicts = time.monotonic(), Counter[str]()
    for name in sample:
        if time.monotonic() - began > asked.minutes * 60:
            break
        verdict = try_one(name, folder)
        verdicts[verdict] += 1
        print(
            f"{verdict:8}",
            name,
            *([shown(name, folder)] if verdict == "SURVIVED" else []),
            sep="  ",
            flush=True,
        )
    print(
        f"of {len(names)} mutants {verdicts.total()} were drawn by {asked.seed}: {dict(verdicts)}"
    )


if __name__ == "__main__":
    sys.exit(main())
