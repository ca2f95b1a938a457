"""What happened, in order: faults, the host's own notes, and every change of a row as the database
committed it.

The one idea: after each COMMIT the historian's new notes are read and put down under the name of
the process that committed. So the trace says who did what to which row and when, also where the
answer to that COMMIT was lost, and each row has its story.

Not here: what is right and wrong.
"""

from __future__ import annotations

import sqlite3
import uuid
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import Final

from rowlock import Event, events
from rowlock.testing import virtual_time_now
from rowlock.testing.virtual_time import START_S

from .environment.processes import current_process
from .judge.foreign_writes import by_another
from .judge.history import HISTORY_QUERY, Change, changes_from, key_text
from .judge.state import Place, place_of
from .judge.timeline import timeline

ENTRIES_MAX: Final = 100_000
"""Most entries of one run."""

_TOLD_BY_CHANGES: Final = (
    events.RowsClaimed,
    events.LeasesRenewed,
    events.ItemApplied,
    events.ItemReleased,
)
_NOT_TOLD: Final = ("pipeline", "row_id")
_NEW: Final = HISTORY_QUERY.replace(" ORDER BY", " WHERE number > ? ORDER BY")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line.

    Attributes:
        at_s: virtual seconds since the start.
        who: the process; empty for the simulation itself.
        text: what happened.
        place: the row that it is about; None if it concerns all.
        change: what was committed, if it is that.
    """

    at_s: float
    who: str
    text: str
    place: Place | None
    change: Change | None = None

    def __str__(self) -> str:
        text = self.text
        if self.change is not None and self.place is not None:
            text = timeline([self.change], *self.place).strip()
        elif self.place is not None:
            text = f"{self.place[0]} {self.place[1]}: {text}"
        return f"{self.at_s:10.4f}  {self.who:<12}  {text}"


@dataclass(frozen=True, slots=True)
class Wrong:
    """A promise that was broken, and the row that it was broken for, if it was one."""

    text: str
    place: Place | None = None

    def __str__(self) -> str:
        return self.text if self.place is None else f"{self.place[0]} {self.place[1]}: {self.text}"


class Trace:
    """Writes down what happens in one run.

    Attributes:
        entries: in order.
        wrongs: promises that were broken.
        changes: what the historian noted.
        tables: the table of each pipeline, by its name.
    """

    def __init__(self, file: sqlite3.Connection) -> None:
        self.entries: list[Entry] = []
        self.wrongs: list[Wrong] = []
        self.changes: list[Change] = []
        self.tables: dict[str, str] = {}
        self._tokens: dict[Place, uuid.UUID] = {}
        self._holders: dict[uuid.UUID, str] = {}
        self._lost: set[object] = set()
        self._untold: dict[str, set[object]] = {}
        self._file = file

    def record(
        self, text: str, *, place: Place | None = None, change: Change | None = None
    ) -> None:
        if len(self.entries) >= ENTRIES_MAX:
            # What went wrong in the end must not be lost.
            del self.entries[: ENTRIES_MAX // 2]
        process = current_process.get()
        at_s = virtual_time_now() - START_S
        self.entries.append(
            Entry(at_s, "" if process is None else process.name, text, place, change)
        )

    def hear(self, event: Event) -> None:
        """Write down what the library tells of itself, but for what the changes of rows tell
        anyway.
        """
        if isinstance(event, events.RowsClaimed | events.FetchFailed):
            # A COMMIT whose answer was lost: whoever claimed these rows does not know that they are
            # its own.
            untold = self._untold.pop(self._whose(event.pipeline), set())
            self._lost |= untold if isinstance(event, events.FetchFailed) else set()
        if isinstance(event, _TOLD_BY_CHANGES):
            return
        if isinstance(event, events.LeaseExpired | events.ItemStale):
            self._lost.add(event.lock_token)
        if isinstance(event, events.LoopReplaced):
            self.wrong(f"{event.pipeline}: the {event.loop} died: {event.error}")
        facts = [
            f"{name} {_fact(getattr(event, name))}"
            for name in event.__dataclass_fields__
            if name not in _NOT_TOLD
        ]
        table = self.tables.get(event.pipeline)
        row_id = getattr(event, "row_id", None)
        place = None if table is None or row_id is None else place_of_row(table, row_id)
        self.record(" ".join([f"{event.pipeline}: {type(event).__name__}", *facts]), place=place)

    def wrong(self, text: str, *, place: Place | None = None) -> None:
        self.record(f"WRONG: {text}", place=place)
        self.wrongs.append(Wrong(text, place))

    def read_changes(self) -> None:
        number = self.changes[-1].number if self.changes else 0
        for change in changes_from(self._file.execute(_NEW, (number,)).fetchall()):
            self.changes.append(change)
            self.record("", place=place_of(change), change=change)
            self._judge(change)
            self._follow(change)

    def held_by(self, name: str) -> list[Place]:
        """Return the rows that are leased under a token that the process of that name has taken,
        and has not lost.
        """
        held = [
            (place, token)
            for place, token in self._tokens.items()
            if self._holders.get(token) == name
        ]
        return [place for place, token in held if token not in self._lost]

    def is_lost(self, place: Place) -> bool:
        """Return whether the holder of a leased row has said that it has lost it."""
        return self._tokens.get(place) in self._lost

    def _judge(self, change: Change) -> None:
        token = None if change.before is None else change.before.lock_token
        if token is not None:
            holder, process = self._holders.get(token), current_process.get()
            for text in by_another(
                change, holder=holder, who="" if process is None else process.name
            ):
                self.wrong(text, place=place_of(change))

    def _follow(self, change: Change) -> None:
        token = None if change.after is None else change.after.lock_token
        if token is None:
            self._tokens.pop(place_of(change), None)
            return
        process = current_process.get()
        self._tokens[place_of(change)] = token
        if (
            token not in self._holders
            and change.after is not None
            and change.after.lock_owner is not None
        ):
            self._untold.setdefault(self._whose(change.after.lock_owner), set()).add(token)
        self._holders.setdefault(token, "" if process is None else process.name)

    def _whose(self, pipeline: str) -> str:
        process = current_process.get()
        return f"{pipeline} of {'' if process is None else process.name}"


def place_of_row(table: str, key: object) -> Place:
    return table, key_text(key)


def _fact(value: object) -> str:
    return str(value)[:8] if isinstance(value, uuid.UUID) else str(value)


def reason(error: BaseException) -> str:
    """Return what a failed assertion says; where it says nothing, and of any other exception,
    also the line that raised it.
    """
    text = str(error)
    if text and isinstance(error, AssertionError):
        return text
    frames = extract_tb(error.__traceback__)
    place = (
        f", {Path(frames[-1].filename).name}, line {frames[-1].lineno}: {frames[-1].line}"
        if frames
        else ""
    )
    return f"{type(error).__name__}{': ' if text else ''}{text}{place}"
