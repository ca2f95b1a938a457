"""The plain install: ``python plain_install.py PACKAGES FOLDER`` does without the packages that are
named, asks every command for its help and each question of the app in the folder, and prints a line
of JSON for each: the words, the exit code, and what was printed.

Run by a test; and by hand in an environment in which nothing but the wheel is installed.
"""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

WHY = ("--reason", "provider down")
QUESTIONS: tuple[tuple[str, ...], ...] = (
    ("status",),
    ("status", "--json"),
    ("explain", "Volume", "17"),
    ("rows", "VolumePipeline"),
    ("replicas",),
    ("check",),
    ("explain", "--pipeline", "VolumePipeline", "--plan"),
    ("timeline", "Volume", "17"),
    ("park", "Volume", "17", *WHY),
    ("unpark", "Volume", "17", *WHY),
    ("due", "Volume", "17", *WHY),
    ("release", "Volume", "17", *WHY),
    ("pause", "VolumePipeline", *WHY),
    ("resume", "VolumePipeline", *WHY),
    ("top",),
)


class NotInstalled(MetaPathFinder):
    """Finds no package of some names, as if they were not installed."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def find_spec(self, name: str, *_: Any) -> None:
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def run(*words: str) -> tuple[int, str]:
    """Run the command line, and return its exit code and what it printed."""
    from rowlock.__main__ import main  # noqa: PLC0415 - behind what is not installed

    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            code = main(words)
        except SystemExit as error:
            code = int(error.code or 0)
    return code, printed.getvalue()


def main(packages: str, folder: str) -> None:
    sys.meta_path.insert(0, NotInstalled(frozenset(packages.split(","))))
    os.chdir(folder)
    sys.path.insert(0, str(Path(folder)))
    import rowlock  # noqa: PLC0415, F401
    from rowlock.__main__ import COMMANDS  # noqa: PLC0415

    for words in (*((name, "--help") for name in COMMANDS), *QUESTIONS):
        where = () if "--help" in words else ("--app", "app:pausable")
        code, printed = run(*words, *where)
        print(json.dumps([words, code, printed]), flush=True)
    print(json.dumps([["imported"], 0, ",".join(sys.modules)]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
