"""What is counted: the lines of the standard library's sources."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LIBRARY = Path(json.__file__).parents[1]
LINES_PER_APPEND = 400
WORD = re.compile(r"[a-z]+")


class Piece(NamedTuple):
    """Some lines of a file, and their number there."""

    file: str
    number: int
    lines: list[str]


def files() -> list[Path]:
    """Return the modules of the standard library that are one file, from a to c."""
    return sorted(LIBRARY.glob("[a-c]*.py"))


def lines_of(path: Path) -> list[str]:
    """Return the lines of a module that have a word."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line.strip() for line in lines if WORD.search(line.lower())]


def pieces() -> Iterator[Piece]:
    """Yield all lines, piece by piece."""
    for path in files():
        lines = lines_of(path)
        for begin in range(0, len(lines), LINES_PER_APPEND):
            some = lines[begin : begin + LINES_PER_APPEND]
            yield Piece(path.name, begin // LINES_PER_APPEND, some)


def words_of(line: str) -> list[str]:
    """Return the words of a line."""
    return WORD.findall(line.lower())


def counted() -> Counter[str]:
    """Return how often each word occurs, counted by a plain loop."""
    return Counter(word for path in files() for line in lines_of(path) for word in words_of(line))
