"""Plants one bug at a time and shows which test finds it: ``python tests/planted [--jobs N]
[--check] [--suite-passed] [NAME ...]``.

Each bug of the lists beside this file takes one guard out of a copy of the library; the tests named
with it must then fail. All of them run once before, with nothing taken out: a test that fails
anyway finds nothing. That may be left out where the whole suite has just passed on the same tree.
A bug that survives is a promise that nobody keeps watch over, and the exit code says so. The tree
itself is never touched.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from bench import SECONDS_MAX, Bench
from bug import Bug
from lists import all_bugs, misfits

ROOT = Path(__file__).resolve().parents[2]
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


class Planter:
    """Plants bugs on several benches at once."""

    def __init__(self, benches: Iterable[Bench]) -> None:
        """Work on `benches`."""
        self._free: SimpleQueue[Bench] = SimpleQueue()
        self._benches = list(benches)
        for bench in self._benches:
            self._free.put(bench)

    def plant_all(self, bugs: list[Bug], *, suite_passed: bool) -> list[Planted]:
        """Plant each of `bugs`, and say what becomes of each."""
        planted = []
        with ThreadPoolExecutor(max_workers=len(self._benches)) as workers:
            failing = [] if suite_passed else self.failing_without(bugs, workers)
            for one in workers.map(lambda bug: self.plant_unless(failing, bug), bugs):
                print(one, flush=True)
                planted.append(one)
        return planted

    def failing_without(self, bugs: list[Bug], workers: ThreadPoolExecutor) -> list[str]:
        """Return which of the tests that the bugs name fail with nothing taken out: they would
        find anything.
        """
        began = time.monotonic()
        tests = sorted({test for bug in bugs for test in bug.tests})
        # A file's tests share what they set up.
        files = sorted({test.partition("::")[0] for test in tests})
        parts = [files[first :: len(self._benches)] for first in range(len(self._benches))]
        shares = [
            [test for test in tests if test.partition("::")[0] in part] for part in parts if part
        ]
        failing = [test for failed in workers.map(self._failing, shares) for test in failed]
        print(f"{len(tests)} tests without any bug in {time.monotonic() - began:.0f} s", flush=True)
        return failing

    def _failing(self, tests: list[str]) -> list[str]:
        bench = self._free.get()
        try:
            # One that cannot be found, of a parameter that is no more, would be known only after
            # all others.
            exit_code, output = bench.run_tests(
                tests, "--collect-only", seconds_max=ALL_TESTS_S_MAX
            )
            if exit_code == 0:
                exit_code, output = bench.run_tests(
                    tests, "--tb=short", seconds_max=ALL_TESTS_S_MAX
                )
        finally:
            self._free.put(bench)
        failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, flags=re.MULTILINE)
        if exit_code not in (0, 1) or (exit_code and not failed):
            raise SystemExit(f"without any bug pytest ended with {exit_code}\n{output[-SAID_MAX:]}")
        if failed:
            print(output[-SAID_MAX:])
        return failed

    def plant_unless(self, failing: list[str], bug: Bug) -> Planted:
        """Plant `bug`, unless one of its tests is among those that fail anyway."""
        for test in failing:
            if any(
                test == named or test.startswith((f"{named}[", f"{named}::", f"{named}/"))
                for named in bug.tests
            ):
                return Planted(bug, found=False, trouble=f": {test} fails without it")
        return self._plant(bug)

    def _plant(self, bug: Bug) -> Planted:
        """Take the guard out of a copy, and run the tests that must notice."""
        bench = self._free.get()
        began = time.monotonic()
        try:
            with bench.planted(bug):
                exit_code, output = bench.run_tests(bug.tests, "-x", seconds_max=SECONDS_MAX)
        finally:
            self._free.put(bench)
        trouble = (
            "" if exit_code in (0, 1) else f": pytest ended with {exit_code}\n{output[-SAID_MAX:]}"
        )
        return Planted(bug, exit_code == 1, time.monotonic() - began, trouble)


def main() -> int:
    """Plant the bugs that were asked for, or all, and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="the bugs to plant; all if none is named")
    parser.add_argument(
        "--jobs", type=int, choices=range(1, JOBS_MAX + 1), default=1, help="how many at once"
    )
    parser.add_argument(
        "--check", action="store_true", help="only see whether the lists still fit the library"
    )
    parser.add_argument(
        "--suite-passed",
        action="store_true",
        help="the whole suite has just passed on this tree: run no test without a bug",
    )
    asked = parser.parse_args()
    bugs = all_bugs()
    problems = misfits(bugs, ROOT)
    problems += [
        f"{name}: is in no list" for name in asked.names if name not in {bug.name for bug in bugs}
    ]
    if problems:
        print(*problems, f"{len(problems)} things to mend in tests/planted", sep="\n")
        return 1
    if asked.check:
        print(f"{len(bugs)} bugs, each with its guard and its tests")
        return 0
    began = time.monotonic()
    with ExitStack() as stack:
        benches = [stack.enter_context(Bench(ROOT)) for _ in range(asked.jobs)]
        planted = Planter(benches).plant_all(
            [bug for bug in bugs if not asked.names or bug.name in asked.names],
            suite_passed=asked.suite_passed,
        )
    slowest = sorted(planted, key=lambda one: one.seconds, reverse=True)[:SLOWEST_SHOWN]
    print("slowest:", *slowest, sep="\n")
    survivors = [one.bug.name for one in planted if not one.found]
    print(
        f"{len(planted)} planted in {time.monotonic() - began:.0f} s, {len(survivors)} survived",
        *survivors,
        sep="\n  ",
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
