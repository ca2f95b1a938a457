"""What a replica notes of its own doing: one line per fact in a file that outlives it.

Each line is handed to the operating system at once, so a ``kill -9`` loses none. Times are the monotonic clock's, which the
processes of one machine have in common.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rowlock import PipelineItem
from rowlock.clock import monotonic


@dataclass(frozen=True, slots=True)
class Start:
    """Work on a document started under `token`. **Unit** of `at`: seconds."""

    document_id: int
    token: str
    at: float


@dataclass(frozen=True, slots=True)
class Journal:
    """What one replica noted: the starts in order, and when each document that arrived here was hinted."""

    starts: list[Start] = field(default_factory=list)
    hinted: dict[int, float] = field(default_factory=dict)


class JournalWriter:
    """Appends to a journal, from any thread."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._file)

    def started(self, item: PipelineItem[Any]) -> None:
        """Note that work on the item starts now."""
        self._write("started", item.id, str(item.lock_token), monotonic())

    def hinted(self, document_id: int) -> None:
        """Note that a document was committed and is hinted now."""
        self._write("hinted", document_id, monotonic())

    def _write(self, *fact: object) -> None:
        os.write(self._file, f"{json.dumps(fact)}\n".encode())


def read_journal(path: Path) -> Journal:
    """Read a journal, also while it is written; an unfinished last line is not a fact yet."""
    journal = Journal()
    for line in _finished_lines(path):
        match json.loads(line):
            case ["started", int(document_id), str(token), float(at)]:
                journal.starts.append(Start(document_id, token, at))
            case ["hinted", int(document_id), float(at)]:
                journal.hinted[document_id] = at
    return journal


def _finished_lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()
