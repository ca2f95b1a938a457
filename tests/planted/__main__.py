"""Plants one bug at a time and shows which test finds it: ``python tests/planted [--jobs N] [--check] [NAME ...]``.

Each bug of the lists beside this file takes one guard out of a copy of the library; the tests named with it must then fail.
A bug that survives is a promise that nobody keeps watch over, and the exit code says so. The tree itself is never touched.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from bug import Bug
from lists import all_bugs, misfits

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 300
"""Longest time for the tests of one bug; a bug that makes them hang is found."""
JOBS_MAX = 16
SLOWEST_SHOWN = 5


class Planted(NamedTuple):
    """What became of one bug: `trouble` says why it could not be tried."""

    bug: Bug
    found: bool
    seconds: float
    trouble: str = ""

    def __str__(self) -> str:
        verdict = "TROUBLE " if self.trouble else "found   " if self.found else "SURVIVED"
        return f"{verdict} {self.seconds:5.1f} s  {self.bug.name}{self.trouble}"


def plant(bug: Bug) -> Planted:
    """Take the guard out of a copy, and run the tests that must notice."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rowlock-planted-") as name:
        folder = Path(name)
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        path = folder / "src" / "rowlock" / bug.file
        path.write_text(path.read_text(encoding="utf-8").replace(bug.guard, bug.without), encoding="utf-8")
        exit_code, output = run_tests(bug, folder)
    trouble = "" if exit_code in (0, 1) else f": pytest ended with {exit_code}\n{output[-2000:]}"
    return Planted(bug, exit_code == 1, time.monotonic() - began, trouble)


def run_tests(bug: Bug, folder: Path) -> tuple[int, str]:
    """Return the exit code of the tests of `bug` in the copy, 1 if they never end, and what they said."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-o", "timeout=60", *bug.tests]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, ""
    return done.returncode, done.stdout + done.stderr


def plant_all(bugs: list[Bug], *, jobs: int) -> list[Planted]:
    """Plant each of `bugs`, `jobs` at once, and say what becomes of each."""
    planted = []
    with ThreadPoolExecutor(max_workers=jobs) as workers:
        for one in workers.map(plant, bugs):
            print(one, flush=True)
            planted.append(one)
    return planted


def main() -> int:
    """Plant the bugs that were asked for, or all, and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="the bugs to plant; all if none is named")
    parser.add_argument("--jobs", type=int, choices=range(1, JOBS_MAX + 1), default=1, help="how many at once")
    parser.add_argument("--check", action="store_true", help="only see whether the lists still fit the library")
    asked = parser.parse_args()
    bugs = all_bugs()
    problems = misfits(bugs, ROOT)
    problems += [f"{name}: is in no list" for name in asked.names if name not in {bug.name for bug in bugs}]
    if problems:
        print(*problems, f"{len(problems)} things to mend in tests/planted", sep="\n")
        return 1
    if asked.check:
        print(f"{len(bugs)} bugs, each with its guard and its tests")
        return 0
    began = time.monotonic()
    planted = plant_all([bug for bug in bugs if not asked.names or bug.name in asked.names], jobs=asked.jobs)
    slowest = sorted(planted, key=lambda one: one.seconds, reverse=True)[:SLOWEST_SHOWN]
    print("slowest:", *slowest, sep="\n")
    survivors = [one.bug.name for one in planted if not one.found]
    print(
        f"{len(planted)} planted in {time.monotonic() - began:.0f} s, {len(survivors)} survived", *survivors, sep="\n  "
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
