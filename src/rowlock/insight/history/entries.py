"""What is written of an event: one entry of the history, or none. Pure.

The one idea: an event is only noted when it is told, and made into an entry later, so that whoever
settles an outcome spends a microsecond on it. Of the host's columns the names are kept, never a
value; what a text has that no database stores, or that would forge a line, is shown as what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple

from rowlock import events
from rowlock.insight.history.columns import COLUMNS_CHARS_MAX, ERROR_CHARS_MAX, KEY_CHARS_MAX
from rowlock.insight.migrations import NAME_CHARS_MAX
from rowlock.insight.shown import shown

DIGEST_CHARS: Final = 16
"""Length of the digest that tells keys apart which had to be cut, in characters."""
NAMES_MAX: Final = 1_000
"""Most names, and lists of columns, whose text is kept for the next entry."""
NUMBER_MAX: Final = 2**31 - 1
"""Largest number of an attempt, and of entries that are missing."""


class EntryKind(StrEnum):
    """What an entry of the history says."""

    APPLIED = "applied"
    RETRIED = "retried"
    RESET = "reset"
    PARKED = "parked"
    STALE = "stale"
    CHANGED = "changed"
    RELEASED = "released"
    LOST = "lost"
    ABANDONED = "abandoned"
    RECOVERED = "recovered"
    ACTION = "action"
    GAP = "gap"


class NotedEvent(NamedTuple):
    """An event that is to be written.

    Attributes:
        at_s: when it was told, on the monotonic clock, in seconds.
        event: what happened.
        trace_id: of the attempt's span; None if there is none.
    """

    at_s: float
    event: events.ClaimEvent
    trace_id: str | None


NAMES: Final = (
    "at",
    "model",
    "row_id",
    "pipeline",
    "kind",
    "replica",
    "attempt",
    "columns",
    "error",
    "waited_s",
    "took_s",
    "trace_id",
    "dropped",
)
"""Columns that a replica writes, in the order of an `EntryValues`."""


class EntryValues(NamedTuple):
    """The values of one entry, by the names of `NAMES`."""

    at: datetime
    model: str
    row_id: str
    pipeline: str
    kind: str
    replica: str
    attempt: int | None = None
    columns: str | None = None
    error: str | None = None
    waited_s: float | None = None
    took_s: float | None = None
    trace_id: str | None = None
    dropped: int | None = None


_BY_OUTCOME: Final = {
    "Retry": EntryKind.RETRIED,
    "Reset": EntryKind.RESET,
    "Park": EntryKind.PARKED,
}
_BY_EVENT: Final[Mapping[type[events.Event], EntryKind]] = {
    events.ItemReleased: EntryKind.RELEASED,
    events.LeaseExpired: EntryKind.LOST,
    events.ItemAbandoned: EntryKind.ABANDONED,
    events.ItemRecovered: EntryKind.RECOVERED,
}
WRITTEN_EVENTS: Final = frozenset({*_BY_EVENT, events.ItemApplied, events.ItemStale})
"""Events of which entries are made."""
ENDING_EVENTS: Final = WRITTEN_EVENTS - {
    events.ItemRecovered,
    events.LeaseExpired,
    events.ItemAbandoned,
}
"""Those behind which nothing more is told of a claim."""


def kind_of(event: events.ClaimEvent) -> EntryKind:
    """Return what the entry of an event of `WRITTEN_EVENTS` says."""
    match event:
        case events.ItemApplied():
            return _BY_OUTCOME.get(event.outcome, EntryKind.APPLIED)
        case events.ItemStale():
            return EntryKind.CHANGED if event.reason == "changed" else EntryKind.STALE
        case _:
            return _BY_EVENT[type(event)]


def entry_of(
    noted: NotedEvent, model: str, *, replica: str, now: datetime, now_s: float
) -> EntryValues:
    """Return the entry of an event.

    Args:
        noted: the event.
        model: the class of the row.
        replica: the mark of the process.
        now: the time by the database's clock, at the time `now_s` of the monotonic one.
        now_s: that time, in seconds.
    """
    at_s, event, trace_id = noted
    columns, error, process_s = _told_by(event)
    return EntryValues(
        now + timedelta(seconds=at_s - now_s),
        _name(model),
        stored_key(event.row_id),
        _name(event.pipeline),
        kind_of(event).value,
        replica,
        None if event.attempt is None else min(event.attempt, NUMBER_MAX),
        _joined(columns) if columns else None,
        None if error is None else shown(error, ERROR_CHARS_MAX),
        event.waited_s,
        process_s,
        trace_id,
    )


def gap_of(dropped: int, *, replica: str, at: datetime) -> EntryValues:
    """Return the entry which says that so many are missing; it belongs to no row."""
    kind = EntryKind.GAP.value
    return EntryValues(at, "", "", "", kind, replica, dropped=min(dropped, NUMBER_MAX))


def simplified(entry: EntryValues) -> EntryValues:
    """Return an entry for a database that cannot keep its texts: what is not ASCII is escaped, as
    its encoding may not have it, or count it as several characters.
    """
    return entry._replace(
        row_id=_in_ascii(entry.row_id, KEY_CHARS_MAX),
        columns=None if entry.columns is None else _in_ascii(entry.columns, COLUMNS_CHARS_MAX),
        error=None if entry.error is None else _in_ascii(entry.error, ERROR_CHARS_MAX),
    )


def _in_ascii(text: str, chars_max: int) -> str:
    return text.encode("ascii", "backslashreplace").decode("ascii")[:chars_max]


def stored_key(key: object) -> str:
    """Return the text under which the entries of a row stand: that of its key, unless it is too
    long for the column, or has characters that are not stored. Then a digest tells such keys apart.
    """
    text = str(key)
    visible = shown(text, KEY_CHARS_MAX)
    if visible == text:
        return text
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS]
    return shown(text, KEY_CHARS_MAX - DIGEST_CHARS - 1) + "#" + digest


def _told_by(event: events.ClaimEvent) -> tuple[tuple[str, ...], str | None, float | None]:
    """Return the columns, the error and the seconds of an event, as far as it has them."""
    match event:
        case events.ItemApplied():
            return event.columns, event.error, event.process_s
        case events.ItemStale():
            return (), event.reason, event.process_s
        case _:
            return (), None, None


@lru_cache(NAMES_MAX)
def _name(name: str) -> str:
    return shown(name, NAME_CHARS_MAX)


@lru_cache(NAMES_MAX)
def _joined(columns: tuple[str, ...]) -> str:
    return shown(", ".join(columns), COLUMNS_CHARS_MAX)
