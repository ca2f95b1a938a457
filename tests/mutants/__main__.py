"""Tries a random sample of mutants: ``python tests/mutants [FOLDER] [--seed N] [--sample N] [--minutes N]``.

The one idea: all mutants of three rooms are thousands, and each wants tests that take seconds; a sample drawn by a number tells the
score within some percent, and names survivors to look at. mutmut only writes the mutants, into a copy of the tree: that takes a
minute, and a `FOLDER` keeps them for another time. Each is tried in a process forked from this one, on SQLite only, by the tests
that are named like its module.

Not here: planted bugs, which are chosen and must all be found (``tests/planted``).
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = """
[tool.mutmut]
source_paths = ["src/rowlock"]
only_mutate = ["src/rowlock/leases/*", "src/rowlock/pipelines/*", "src/rowlock/dispatch/*"]
"""
WRITING_S_MAX = 900
"""Longest time for mutmut to write all mutants. **Unit** seconds."""
SAID_MAX = 4000
"""How much of what mutmut said is shown, from its end. **Unit** characters."""
MUTANT_S_MAX = 300
"""Longest time for the tests of one mutant; one test that hangs is ended sooner, and found. **Unit** seconds."""
POSTGRESQL_ONLY = ("postgresql", "notifications", "notifier")
"""Modules that do nothing on SQLite."""
ROOMS = ("leases", "pipelines", "dispatch", "faults", "migrations")
"""Folders of tests that are looked at."""
BESIDES = {
    "backpressure": ("admission",),
    "balancers": ("delivery", "placing"),
    "batcher": ("writer",),
    "child": ("engines_processes",),
    "claim_queue": ("crowds", "claim"),
    "claims": ("claim",),
    "columns": ("admission", "edges"),
    "context": ("worker",),
    "engine": ("engines",),
    "frames": ("engines_processes",),
    "group": ("engines_processes",),
    "item": ("heartbeater_trust",),
    "local": ("engines",),
    "loop": ("engines",),
    "manager": ("run", "any_steps"),
    "migrations": ("dispatch_columns", "edges", "admission"),
    "notes": ("delivery", "story"),
    "lifeline": ("heartbeater",),
    "load": ("fresh_rows", "loader"),
    "log_apart": ("hostile_logging", "blocked_loop"),
    "outcomes": ("plan",),
    "pipeline": ("manager",),
    "plain_events": ("hostile_events", "wool_engine"),
    "plan": ("outcomes", "intent", "requests", "compared_columns"),
    "poll": ("poll_groups",),
    "process": ("engines_processes",),
    "process_line": ("engines_processes", "engines_starts"),
    "progress": ("delivery", "story"),
    "related": ("related_locks",),
    "related_rows": ("related_locks", "related_crashes"),
    "related_values": ("related_locks",),
    "run": ("manager",),
    "scratch": ("engines_processes",),
    "release": ("rows_by_hand", "siblings"),
    "services": ("request",),
    "settler": ("worker", "decisions", "failures"),
    "sqlite": ("claim", "renew", "release", "apply", "fresh_rows", "related_crashes", "sqlite_start"),
    "sqlite_keys": ("spoilt_keys",),
    "states": ("story", "admission"),
    "statistics": ("manager",),
    "stream": ("engines_processes",),
    "take": ("hold",),
    "task": ("one_task", "delivery"),
    "thread": ("engines",),
    "turns": ("admission_at_once",),
    "wool": ("wool_engine", "wool_pipeline"),
    "wool_line": ("wool_engine",),
    "transaction": ("standing", "stricter_isolation"),
    "worker": ("intent", "give_back"),
    "writer": ("related_locks", "lost_answers", "also", "refused", "intent"),
}
"""Modules that are tested by the tests of others."""
WITHOUT = shutil.ignore_patterns("__pycache__")
OPTIONS = ("-x", "-q", "--database=sqlite", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=60")


def write_mutants(folder: Path) -> None:
    """Have mutmut write its mutants into a copy of the tree in `folder`, if they are not there yet.

    Raises:
        SystemExit: it wrote none.
    """
    if (folder / "mutants").exists():
        return
    shutil.copytree(ROOT / "src", folder / "src", ignore=WITHOUT)
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(settings + SETTINGS, encoding="utf-8")
    # Then it would run all the tests, over and over. It finds none yet, and ends with an error.
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", "1"]
    wrote = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=WRITING_S_MAX, check=False)
    if not names_of(folder, []):
        raise SystemExit(f"mutmut wrote no mutants\n{(wrote.stdout + wrote.stderr)[-SAID_MAX:]}")
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=WITHOUT)


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
    rooms = [folder / "tests" / room for room in ROOMS]
    near = {str(path) for room in rooms for stem in stems for path in room.glob(f"test_{stem}*.py")}
    fallback = (
        ["dispatch/test_delivery.py"] if ".dispatch." in name else ["leases/test_claim.py", "pipelines/test_worker.py"]
    )
    return sorted(near) or [str(folder / "tests" / path) for path in fallback]


def try_one(name: str, folder: Path) -> str:
    """Return ``found`` if the tests fail with the mutant, ``SURVIVED``, ``slow``, or ``TROUBLE`` if they fail without it."""
    tests = tuple(tests_of(name, folder))
    if verdict_of(tests, folder, mutant="") != "SURVIVED":
        return "TROUBLE"
    return verdict_of(tests, folder, mutant=name)


@cache
def verdict_of(tests: tuple[str, ...], folder: Path, *, mutant: str) -> str:
    """Return what becomes of `mutant`; without a name nothing is changed."""
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


def shown(name: str, folder: Path) -> str:
    """Return the line that a mutant changes, and what it makes of it."""
    *module, function = name.split(".")
    path = folder / "mutants" / "src" / Path(*module)
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
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
    parser.add_argument(
        "folder", type=Path, nargs="?", help="where mutants are written, or were before; else they are not kept"
    )
    parser.add_argument("--seed", type=int, default=1, help="draws the sample")
    parser.add_argument("--sample", type=int, default=200, help="how many mutants")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so long, whatever is left")
    parser.add_argument("--module", action="append", default=[], help="of this module only; may be said again")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rowlock-mutants-") as temporary:
        folder = (asked.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        write_mutants(folder)
        try_sample(folder, asked)
    return 0


def try_sample(folder: Path, asked: argparse.Namespace) -> None:
    """Try the mutants that were asked for."""
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


if __name__ == "__main__":
    sys.exit(main())
