"""How tests of pages and examples run programs."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

from . import run_page
from .programs import RUN_S_MAX, Ended, Run, environment


@pytest.fixture(scope="session")
def run() -> Iterator[Run]:
    """A way to run programs in forks of one process, which spares each of them a second of imports.
    It takes what `run_python` takes, and `run_page.PAGE` for an option.
    """
    command = [sys.executable, run_page.__file__]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment(Path.cwd()), **pipes) as first:

        def run(*arguments: str, folder: Path) -> Ended:
            with NamedTemporaryFile() as output, NamedTemporaryFile() as errors:
                request = str(folder), output.name, errors.name, *arguments
                print(json.dumps(request), file=first.stdin, flush=True)
                program = int(first.stdout.readline())
                if not select.select([first.stdout], [], [], RUN_S_MAX)[0]:
                    os.killpg(program, signal.SIGKILL)
                exit_code = int(first.stdout.readline())
                return Ended(exit_code, output.read().decode(), errors.read().decode())

        yield run
