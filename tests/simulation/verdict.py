"""What only this host can judge of a run.

The one idea: the judge in `tests/simulator` knows leases and outcomes. It cannot know what an
attempt meant to write, nor what a service was told: that is in the book and with the services, and
is compared here with the host's own columns. Nor can it know, on SQLite, where a transaction ends;
related rows that outlived their main row's lease are looked for all the time (`tables.orphans`).
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ..simulator.judge.history import HISTORY_QUERY, Change, changes_from
from .book import Book, Place
from .services import Services


def judge_writes(book: Book, changes: Sequence[Change], services: Services) -> None:
    """Write down what was written otherwise than it was meant."""
    _judge_related(book, changes)
    _judge_counts(book, changes, services)


def noted(file: sqlite3.Connection) -> list[Change]:
    return changes_from(file.execute(HISTORY_QUERY))


def _judge_related(book: Book, changes: Sequence[Change]) -> None:
    """A related row was written if, and only if, its main outcome was."""
    mains = {mark for _, mark in _written(changes, "mark")}
    written: dict[str, set[Place]] = {}
    for place, mark in _written(changes, "touched_by"):
        written.setdefault(mark, set()).add(place)
    for mark in mains | written.keys():
        meant = book.related[mark] if mark in mains else set()
        if written.get(mark, set()) != meant:
            book.wrong(
                f"attempt {mark[:8]} wrote {written.get(mark, set())} besides its main row, not"
                f" {meant}"
            )


def _judge_counts(book: Book, changes: Sequence[Change], services: Services) -> None:
    """No write that rested on a lease, and nothing that a service asked for, was overwritten."""
    touches = Counter(place for place, _ in _written(changes, "touched_by"))
    for place, row in {_place_of(change): change.after for change in changes}.items():
        if row is None:
            continue
        where, held, asked = (
            f"{place[0]} {place[1]}",
            services.held[place],
            services.asked.get(place, 0),
        )
        touched, written, wanted = (row.values[name] for name in ("touched", "held", "wanted"))
        if touched != touches[place]:
            book.wrong(
                f"{where} was written {touches[place]} times as a related row, and counts {touched}"
            )
        if not held <= written <= held + services.held_perhaps[place]:
            book.wrong(f"{where} was written {held} times by services, and counts {written}")
        if wanted != asked and wanted not in services.asked_perhaps.get(place, ()):
            book.wrong(f"{where} was asked for {asked}, and has {wanted}")


def _written(changes: Sequence[Change], column: str) -> Iterator[tuple[Place, Any]]:
    for change in changes:
        before, after = change.before, change.after
        if (
            before is not None
            and after is not None
            and before.values[column] != after.values[column]
        ):
            yield _place_of(change), after.values[column]


def _place_of(change: Change) -> Place:
    return change.table, int(change.key)
