"""Plants one bug at a time and shows which test finds it: ``python tests/planted [NAME ...]``.

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
from pathlib import Path

from blocked_bugs import BLOCKED_BUGS
from bug import Bug
from bugs import BUGS
from claim_bugs import CLAIM_BUGS
from lock_bugs import LOCK_BUGS
from notification_bugs import NOTIFICATION_BUGS
from service_bugs import SERVICE_BUGS
from simulation_bugs import SIMULATION_BUGS
from speed_bugs import SPEED_BUGS

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 300


def plant(bug: Bug, folder: Path) -> None:
    """Take the guard out of the copy; a guard that is not found exactly once has moved, and the list must follow."""
    path = folder / "src" / "rowlock" / bug.file
    source = path.read_text(encoding="utf-8")
    if source.count(bug.guard) != 1:
        raise SystemExit(f"{bug.name}: the guard stands {source.count(bug.guard)} times in {bug.file}; mend bugs.py")
    path.write_text(source.replace(bug.guard, bug.without), encoding="utf-8")


def is_found(bug: Bug, folder: Path) -> bool:
    """Whether the tests of `bug` fail, or never end, in the copy."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-o", "timeout=60", *bug.tests]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (0, 1):
        raise SystemExit(f"{bug.name}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 1


def main() -> int:
    """Plant the bugs that were asked for, or all, and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="the bugs to plant; all if none is named")
    names = parser.parse_args().names
    survivors = []
    for bug in (
        *BUGS,
        *CLAIM_BUGS,
        *LOCK_BUGS,
        *SERVICE_BUGS,
        *SIMULATION_BUGS,
        *NOTIFICATION_BUGS,
        *SPEED_BUGS,
        *BLOCKED_BUGS,
    ):
        if names and bug.name not in names:
            continue
        with tempfile.TemporaryDirectory(prefix="rowlock-planted-") as name:
            folder = Path(name)
            for part in ("src", "tests", "pyproject.toml"):
                copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
                copy(ROOT / part, folder / part)
            plant(bug, folder)
            began = time.monotonic()
            found = is_found(bug, folder)
        print(f"{'found   ' if found else 'SURVIVED'} {time.monotonic() - began:5.1f} s  {bug.name}", flush=True)
        if not found:
            survivors.append(bug.name)
    print(f"{len(survivors)} survived" + (f": {', '.join(survivors)}" if survivors else ""))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
