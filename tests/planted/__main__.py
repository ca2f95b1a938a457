"""Plants one bug at a time and shows which test finds it: ``python tests/planted [--jobs N] [--check] [NAME ...]``.

Each bug of the lists beside this file takes one guard out of a copy of the library; the tests named with it must then fail. All
of them run once before, with nothing taken out: a test that fails anyway finds nothing.
A bug that survives is a promise that nobody keeps watch over, and the exit code says so. The tree itself is never touched.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bug import Bug
from lists import all_bugs, misfits

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 300
"""Longest time for the tests of one bug; a bug that makes them hang is found."""
ALL_TESTS_S_MAX = 3600
"""Longest time for all the tests that are named, run once without a bug."""
SAID_MAX = 4000
"""How much of what pytest said is shown, from its end. **Unit** characters."""
JOBS_MAX = 16
SLOWEST_SHOWN = 5


class Planted(NamedTuple):
    """What became of one bug: `trouble` says why it could not be tried."""

    bug: Bug
    found: bool
    seconds: float = 0.0
    trouble: str = ""

    def __str__(self) -> str:
        verdict = "TROUBLE " if self.trouble else "found   " if self.found else "SURVIVED"
        return f"{verdict} {self.seconds:5.1f} s  {self.bug.name}{self.trouble}"


@contextmanager
def copy_of_tree() -> Iterator[Path]:
    """Give a copy of all that the tests need, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="rowlock-planted-") as name:
        folder = Path(name)
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        yield folder


def run_tests(tests: Iterable[str], folder: Path, *options: str, seconds_max: float) -> tuple[int, str]:
    """Return pytest's exit code for `tests` in the copy, 1 if they never end, and what was said."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "timeout=60", *options, *tests]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds_max, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, f"they do not end within {seconds_max:g} s"
    return done.returncode, done.stdout + done.stderr


def failing_without(bugs: list[Bug]) -> list[str]:
    """Return which of the tests that the bugs name fail with nothing taken out: they would find anything.

    Raises:
        SystemExit: they cannot be run at all.
    """
    tests = sorted({test for bug in bugs for test in bug.tests})
    with copy_of_tree() as folder:
        exit_code, output = run_tests(tests, folder, "--tb=short", seconds_max=ALL_TESTS_S_MAX)
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, flags=re.MULTILINE)
    if exit_code not in (0, 1) or (exit_code and not failed):
        raise SystemExit(f"without any bug pytest ended with {exit_code}\n{output[-SAID_MAX:]}")
    if failed:
        print(output[-SAID_MAX:])
    return failed


def plant(bug: Bug) -> Planted:
    """Take the guard out of a copy, and run the tests that must notice."""
    began = time.monotonic()
    with copy_of_tree() as folder:
        path = folder / "src" / "rowlock" / bug.file
        path.write_text(bug.planted_in(path.read_text(encoding="utf-8")), encoding="utf-8")
        exit_code, output = run_tests(bug.tests, folder, "-x", seconds_max=SECONDS_MAX)
    trouble = "" if exit_code in (0, 1) else f": pytest ended with {exit_code}\n{output[-SAID_MAX:]}"
    return Planted(bug, exit_code == 1, time.monotonic() - began, trouble)


def plant_all(bugs: list[Bug], *, jobs: int) -> list[Planted]:
    """Plant each of `bugs`, `jobs` at once, and say what becomes of each."""
    failing = failing_without(bugs)
    planted = []
    with ThreadPoolExecutor(max_workers=jobs) as workers:
        for one in workers.map(partial(plant_unless, failing), bugs):
            print(one, flush=True)
            planted.append(one)
    return planted


def plant_unless(failing: list[str], bug: Bug) -> Planted:
    """Plant `bug`, unless one of its tests is among those that fail anyway."""
    for test in failing:
        if any(test == named or test.startswith((f"{named}[", f"{named}::", f"{named}/")) for named in bug.tests):
            return Planted(bug, found=False, trouble=f": {test} fails without it")
    return plant(bug)


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
