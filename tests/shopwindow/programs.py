"""Runs programs as a reader does: in a process of their own, in an empty folder, bounded in
time.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

RUN_S_MAX = 300.0
"""How long a program may take. **Unit** seconds."""
STRICT = ("-W", "error")
"""Options of Python under which a warning is an error."""


class Ended(NamedTuple):
    """How a program ended, and what it said."""

    exit_code: int
    output: str
    errors: str

    def __str__(self) -> str:
        return f"exit code {self.exit_code}\n--- output\n{self.output}\n--- errors\n{self.errors}"


Run = Callable[..., Ended]


def run_python(*arguments: str, folder: Path) -> Ended:
    """Run Python with `arguments` in `folder`.

    Raises:
        subprocess.TimeoutExpired: it did not end in `RUN_S_MAX`.
    """
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=RUN_S_MAX,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def missing_lines(output: str, expected: Sequence[str]) -> list[str]:
    """Return those of the `expected` lines that do not come in this order; ``...`` in a line
    stands for anything.
    """
    lines = iter(output.splitlines())
    return [
        line
        for line in expected
        if (pattern := ".*".join(map(re.escape, line.rstrip().split("..."))))
        and not any(re.fullmatch(pattern, seen.rstrip()) for seen in lines)
    ]


def environment(folder: Path) -> dict[str, str]:
    # A run of pytest inside a run of pytest must not take over its options and plugins' state.
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "COVERAGE_"))
    }
    # A package that another one needs brings a plugin that takes half a second to import. What a
    # fork has imported already is a plugin, too.
    plugins = {"PYTEST_ADDOPTS": "-p no:faker -W 'ignore:Module already imported'"}
    return inherited | plugins | {"PYTHONIOENCODING": "utf-8", "TMPDIR": str(folder)}
