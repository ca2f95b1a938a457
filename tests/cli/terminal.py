"""A command on a terminal of its own: a real pseudo-terminal, whose screen is read by pyte.

Nothing here waits for a time: `until` reads what the program writes until the screen says what is
expected, and gives up at a time that no healthy machine reaches.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyte

from .forked import begun

GIVEN_UP_AFTER_S: Final = 60.0
READ_BYTES: Final = 65_536
ALTERNATE, LEFT = b"\x1b[?1049h", b"\x1b[?1049l"


class Terminal:
    """A terminal with a program in it.

    Attributes:
        written: every byte that the program has written.
        before: the settings of the terminal before the program began.
    """

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        size: tuple[int, int],
    ) -> None:
        self.written = bytearray()
        self._screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self._screen)
        self._master, self._slave = pty.openpty()
        self.resize(*size)
        self.before = self.settings()
        self._process = begun(words, folder, environment, [os.ttyname(self._slave)] * 3)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def lines(self) -> list[str]:
        """The same by lines, without what is empty at the end."""
        return self.text.rstrip().split("\n")

    def settings(self) -> list[Any]:
        """Return those of the terminal, such as whether it echoes."""
        return termios.tcgetattr(self._slave)

    def resize(self, columns: int, lines: int, *, is_told: bool = True) -> None:
        """Be as large as this, and tell the program, or let it find out."""
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._screen.resize(lines, columns)
        if is_told and hasattr(self, "_process"):
            self.signal(signal.SIGWINCH)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def signal(self, number: int) -> None:
        os.kill(self._process.pid or 0, number)

    def until(self, has: str | Callable[[str], bool]) -> str:
        """Read until the screen has a text, or fits, and return the screen."""
        return self._read(lambda: has in self.text if isinstance(has, str) else has(self.text), has)

    def exit_code(self) -> int:
        """Read until the program has ended, and return its exit code."""
        self._read(lambda: self._process.exitcode is not None, "the end")
        while self._ready(0):
            self._feed()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        os.close(self._master)
        os.close(self._slave)

    def _read(self, fits: Callable[[], bool], what: object) -> str:
        ends_at = time.monotonic() + GIVEN_UP_AFTER_S
        while not fits():
            if self._ready(0.05):
                self._feed()
                continue
            has_ended = self._process.exitcode is not None and not fits()
            if has_ended or time.monotonic() > ends_at:
                raise AssertionError(
                    f"waited for {what!r}; exit code {self._process.exitcode}:\n{self.text}"
                )
        return self.text

    def _ready(self, seconds: float) -> bool:
        return bool(select.select([self._master], [], [], seconds)[0])

    def _feed(self) -> None:
        read = os.read(self._master, READ_BYTES)
        self.written += read
        self._stream.feed(read)


@contextmanager
def terminal(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    *,
    size: tuple[int, int] = (80, 24),
    kind: str = "xterm-256color",
) -> Iterator[Terminal]:
    """Run a command in a terminal of `size`, columns and lines, and of a `kind`."""
    one = Terminal(words, folder, {**environment, "TERM": kind}, size)
    try:
        yield one
    finally:
        one.close()
