"""A command on a real terminal, whose screen is read as a person sees it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyte

from .conftest import RUN_S_MAX, SHOP

READ_BYTES: Final = 65536


class Terminal:
    """A process on a terminal, and its screen.

    Attributes:
        process: the one.
        written: all bytes that it has written so far.
    """

    def __init__(self, process: subprocess.Popen[bytes], master: int, screen: pyte.Screen) -> None:
        self.process = process
        self.written = b""
        self._master, self._screen, self._stream = master, screen, pyte.ByteStream(screen)

    @property
    def lines(self) -> list[str]:
        """What stands on the screen, without what is empty at its end."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip().split("\n")

    def wait_for(self, condition: Callable[[str], object]) -> list[str]:
        """Read until `condition` is true of the screen, and return its lines."""
        ends = time.monotonic() + RUN_S_MAX
        while not condition("\n".join(self.lines)):
            assert time.monotonic() < ends, "\n".join(self.lines)
            assert self._read(), f"it ended; its screen was {self.lines}"
        return self.lines

    def wait_for_end(self) -> int:
        """Read until the process has ended, and return its exit code."""
        while self._read():
            pass
        return self.process.wait(RUN_S_MAX)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], RUN_S_MAX)
        found = b""
        # Linux says so when the other side of a terminal is gone.
        with suppress(OSError):
            found = os.read(self._master, READ_BYTES) if ready else b""
        self.written += found
        self._stream.feed(found)
        return bool(found)


@contextmanager
def terminal(
    folder: Path, *words: str, columns: int = 80, rows: int = 24, **environment: str
) -> Iterator[Terminal]:
    """Run the command line on a terminal of that size; the process is killed at the end."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    kept = {name: one for name, one in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    path = os.pathsep.join([str(SHOP), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-m", "rowlock", *words],
        cwd=folder,
        env=kept | {"PYTHONPATH": path, "TERM": "xterm", "NO_COLOR": ""} | environment,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield Terminal(process, master, pyte.Screen(columns, rows))
    finally:
        process.kill()
        process.wait()
        os.close(master)
