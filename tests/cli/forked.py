"""The command line in a process that begins as a fork of one that has imported it: an interpreter
that imports SQLAlchemy anew takes a second.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import NamedTemporaryFile
from typing import Final

import asyncpg  # noqa: F401 - drivers and the app import these
import rich.console  # noqa: F401
import sqlalchemy.dialects.postgresql.asyncpg
import sqlalchemy.dialects.sqlite.aiosqlite  # noqa: F401

import rowlock.cli.commands
import rowlock.cli.top
import rowlock.cli.windows
import rowlock.cli.without_app
import rowlock.insight.observer  # noqa: F401
from rowlock.__main__ import main

from ..insight import checking  # noqa: F401

SHOP: Final = Path(__file__).resolve().parents[1] / "insight"
RUN_S_MAX: Final = 60.0


def begun(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], streams: Sequence[str]
) -> BaseProcess:
    """Begin it in `folder`, where modules are found as by ``python -m rowlock``; its standard
    streams are these files.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_run, args=(words, folder, dict(environment), streams))
    process.start()
    return process


def command(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], *, pasted: str = ""
) -> CompletedProcess[str]:
    with ExitStack() as stack:
        files = [stack.enter_context(NamedTemporaryFile("w+", encoding="utf-8")) for _ in range(3)]
        files[0].write(pasted)
        files[0].flush()
        process = begun(words, folder, environment, [file.name for file in files])
        process.join(RUN_S_MAX)
        code = process.exitcode
        process.kill()
        process.join()
        assert code is not None, f"rowlock {words} did not end"
        return CompletedProcess(words, code, files[1].read(), files[2].read())


def _run(
    words: Sequence[str], folder: Path, environment: dict[str, str], streams: Sequence[str]
) -> None:
    os.setsid()
    for number, name in enumerate(streams):
        os.dup2(os.open(name, os.O_RDWR | os.O_APPEND | os.O_NOCTTY), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    here = Path(__file__).resolve()
    sys.path[:0] = map(str, (folder, SHOP, here.parent, here.parents[2]))
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding=encoding, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding=encoding, closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, encoding=encoding, closefd=False)
    sys.exit(main(words))
