"""The judge: asks the database alone, and the book for what each attempt had in mind."""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import Final

from .book import Book, Place
from .services import Services
from .tables import TABLES

_UNSETTLED: Final = " UNION ALL ".join(
    f"SELECT '{table}', id, status, lock_owner FROM {table} WHERE lock_token IS NOT NULL OR lock_owner IS NOT NULL "
    f"OR lock_expires_at IS NOT NULL OR (status <> 'done' OR seen <> wanted)"
    + ("" if table == "instances" else " AND parked_at IS NULL")
    for table in TABLES
)


def unsettled(file: sqlite3.Connection) -> list[tuple[str, int, str, str | None]]:
    """Return rows that are leased in any of the three lock columns, or that are neither done nor parked."""
    return file.execute(_UNSETTLED).fetchall()


def judge(book: Book, file: sqlite3.Connection, services: Services) -> None:
    """Write down which promises were broken."""
    for kind, place, row, mark in file.execute("SELECT * FROM history WHERE kind IN ('stolen', 'unfounded')"):
        book.wrong(f"{place} {row} was {kind}: {mark}")
    _judge_related(book, file)
    _judge_counts(book, file, services)


def _judge_related(book: Book, file: sqlite3.Connection) -> None:
    """A related row was written if, and only if, its main outcome was."""
    mains = {mark for (mark,) in file.execute("SELECT mark FROM history WHERE kind = 'main'")}
    written: dict[str, set[Place]] = {}
    for place, row, mark in file.execute("SELECT place, row, mark FROM history WHERE kind = 'related'"):
        written.setdefault(mark, set()).add((place, row))
    for mark in mains | written.keys():
        meant = book.related[mark] if mark in mains else set()
        if written.get(mark, set()) != meant:
            book.wrong(f"attempt {mark[:8]} wrote {written.get(mark, set())} besides its main row, not {meant}")


def _judge_counts(book: Book, file: sqlite3.Connection, services: Services) -> None:
    """No write that rested on a lease, and nothing that a service asked for, was overwritten."""
    touches = Counter(file.execute("SELECT place, row FROM history WHERE kind = 'related'").fetchall())
    for table in TABLES:
        for key, touched, written, wanted in file.execute(f"SELECT id, touched, held, wanted FROM {table}"):
            place = (table, key)
            held, asked = services.held[place], services.asked.get(place, 0)
            if touched != touches[place]:
                book.wrong(f"{table} {key} was written {touches[place]} times as a related row, and counts {touched}")
            if not held <= written <= held + services.held_perhaps[place]:
                book.wrong(f"{table} {key} was written {held} times by services, and counts {written}")
            if wanted != asked and wanted not in services.asked_perhaps.get(place, ()):
                book.wrong(f"{table} {key} was asked for {asked}, and has {wanted}")
