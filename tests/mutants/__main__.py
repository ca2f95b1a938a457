"""Tries a random sample of mutants: ``python tests/mutants FOLDER [--seed N] [--sample N] [--minutes N]``.

The one idea: all mutants of two rooms are thousands, and each wants tests that take seconds; a sample drawn by a number tells the
score within some percent, and names survivors to look at. `FOLDER` is a copy of the tree in which ``mutmut run`` has written its
mutants (``docs/design/reliability.md`` says how). Each mutant is tried in a process forked from this one, on SQLite only, by the
tests that are named like its module.

Not here: planted bugs, which are chosen and must all be found (``tests/planted``).
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

MUTANT_S_MAX = 300
"""Longest time for the tests of one mutant; one test that hangs is ended sooner, and found. **Unit** seconds."""
POSTGRESQL_ONLY = ("postgresql", "notifications", "notifier")
"""Modules that do nothing on SQLite."""
BESIDES = {
    "batcher": ("writer",),
    "claims": ("claim",),
    "context": ("worker",),
    "failures": ("fetcher_failures",),
    "held_rows": ("hold",),
    "item": ("heartbeater_trust",),
    "lifeline": ("heartbeater",),
    "outcomes": ("plan",),
    "pipeline": ("manager",),
    "related": ("related_locks",),
    "related_rows": ("related_locks", "related_crashes"),
    "related_values": ("related_locks",),
    "run": ("manager",),
    "services": ("request",),
    "settler": ("worker",),
    "sqlite": ("claim", "renew", "release"),
    "statistics": ("manager",),
    "take": ("hold",),
}
"""Modules that are tested by the tests of others."""
OPTIONS = ("-x", "-q", "--database=sqlite", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=60")


def names_of(folder: Path, modules: list[str]) -> list[str]:
    """Return the names of all mutants of `modules` (of all if none is named) that can be found on SQLite, in a fixed order."""
    found: list[str] = []
    for path in sorted((folder / "mutants" / "src").rglob("*.py.meta")):
        module = path.name.split(".")[0]
        if module not in POSTGRESQL_ONLY and (not modules or module in modules):
            found += json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
    return found


def tests_of(name: str, folder: Path) -> list[str]:
    """Return the tests to try: those that are named like the module, and those in `BESIDES`."""
    module = name.split(".")[-2]
    stems = [module, *BESIDES.get(module, ())]
    rooms = [folder / "tests" / room for room in ("leases", "pipelines")]
    near = {str(path) for room in rooms for stem in stems for path in room.glob(f"test_{stem}*.py")}
    return sorted(near) or [str(rooms[0] / "test_claim.py"), str(rooms[1] / "test_worker.py")]


def try_one(name: str, folder: Path) -> str:
    """Return whether the tests fail with the mutant in place: ``found``, ``SURVIVED``, or ``slow`` where that took too long."""
    child = os.fork()
    if child == 0:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        os.environ["MUTANT_UNDER_TEST"] = name
        os.chdir(folder)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        os._exit(int(pytest.main([*OPTIONS, *tests_of(name, folder)])))
    # Not an alarm in the child: pytest-timeout has that for itself.
    in_time = signal.sigtimedwait([signal.SIGCHLD], MUTANT_S_MAX) is not None
    if not in_time:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not in_time:
        return "slow"
    return "found" if os.waitstatus_to_exitcode(status) else "SURVIVED"


def shown(name: str, folder: Path) -> str:
    """Return the line that a mutant changes, and what it makes of it."""
    *module, function = name.split(".")
    text = (folder / "mutants" / "src" / Path(*module)).with_suffix(".py").read_text(encoding="utf-8")
    stem = function.rpartition("__mutmut_")[0]
    bodies = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in {f"{stem}__mutmut_orig", function}:
            bodies[node.name] = ast.unparse(node).splitlines()[1:]
    lines = difflib.unified_diff(bodies.get(f"{stem}__mutmut_orig", []), bodies.get(function, []), lineterm="", n=0)
    return "\n".join(f"    {line}" for line in lines if not line.startswith(("---", "+++", "@@")))


def main() -> int:
    """Try the sample, and print the score and the survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a copy of the tree, in which mutmut has written its mutants")
    parser.add_argument("--seed", type=int, default=1, help="draws the sample")
    parser.add_argument("--sample", type=int, default=200, help="how many mutants")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so long, whatever is left")
    parser.add_argument("--module", action="append", default=[], help="of this module only; may be said again")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    sys.path.insert(0, str(folder / "mutants" / "src"))
    names = names_of(folder, asked.module)
    sample = random.Random(asked.seed).sample(names, min(asked.sample, len(names)))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    began, verdicts = time.monotonic(), Counter[str]()
    for name in sample:
        if time.monotonic() - began > asked.minutes * 60:
            break
        verdict = try_one(name, folder)
        verdicts[verdict] += 1
        print(f"{verdict:8}", name, *([shown(name, folder)] if verdict == "SURVIVED" else []), sep="  ", flush=True)
    print(f"of {len(names)} mutants {verdicts.total()} were drawn by {asked.seed}: {dict(verdicts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
