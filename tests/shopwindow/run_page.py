"""Runs programs, each in a fork of this process, which has imported what most of them need.

A line of input has a folder, files for output and errors, and arguments; two lines of output have
the process, which heads a group, and its exit code.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
import tempfile
import warnings
from importlib import import_module
from multiprocessing import process
from pathlib import Path

from rowlock.cli.without_app import run_text

PAGE = "page"
"""Before a file and a name: the file is run as ``rowlock run`` does, and tracebacks call it so."""
WARM = "aiosqlite asyncpg fastapi httpx rowlock.graph rowlock.streams rowlock.testing"


def main(first: str, *rest: str) -> None:
    sys.argv = [*rest] if first in {PAGE, "-m"} else [first, *rest]
    sys.path[0] = str(Path.cwd() if first in {PAGE, "-m"} else Path(first).resolve().parent)
    if first == PAGE:
        run_text(Path(rest[0]).read_text(encoding="utf-8"), rest[1])
    elif first == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    with warnings.catch_warnings(action="error"):
        for name in WARM.split():
            import_module(name)
    gc.freeze()
    while request := sys.stdin.readline():
        if not (child := os.fork()):
            break
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    else:
        sys.exit()
    os.setsid()
    folder, output, errors, *arguments = json.loads(request)
    for number, file in enumerate((os.devnull, output, errors)):
        os.dup2(os.open(file, os.O_RDWR | os.O_APPEND), number)
    os.chdir(folder)
    os.environ["TMPDIR"] = process.ORIGINAL_DIR = tempfile.tempdir = folder
    if arguments[0] == "-W":
        warnings.simplefilter(arguments[1])
        sys.warnoptions.append(arguments[1])
        del arguments[:2]
    main(*arguments)
