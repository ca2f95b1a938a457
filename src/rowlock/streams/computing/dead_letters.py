"""Dead letters: the events of keys that fail again and again, as results of their step.

They are written with the step that goes on without them, so none is lost and none is there twice.
The error is no part of a digest: its text may be another one in a replay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from rowlock.streams.computing.context import StreamResult
from rowlock.streams.computing.encoding import VALUE_BYTES_MAX, Codec
from rowlock.streams.computing.rows import SourceRows

DEAD_LETTERS: Final = "dead_letters"
"""The output of a flow that has them."""
PAYLOAD_BYTES_MAX: Final = VALUE_BYTES_MAX // 3
"""Longest text of an event that is kept with its dead letter: in quotes it gets longer."""


class DeadLetter(NamedTuple):
    """The events of a key that could not be processed.

    Attributes:
        key: its text.
        error: what went wrong, shortened.
        rows: the rows of the key in this step; none if only its timer was due.
    """

    key: str
    error: str
    rows: tuple[SourceRows, ...]


@dataclass(frozen=True)
class DeadEvent:
    """An event that no handler could process: a result of the output `StreamFlow.dead_letters`.

    Attributes:
        stage: the name of the handler.
        key: the text of the event's key.
        error: what the handler raised, shortened.
        source: the stream of the event; None: there was no event, the timer of the key was due.
        position: of the event in its stream; of a message of another stage, its number among those
            to the key in this step.
        payload: the event as JSON; None if it is too long to be kept here.
    """

    stage: str
    key: str
    error: str
    source: str | None
    position: int | None
    payload: str | None


CODEC: Final = Codec(DeadEvent)


def dead_results(stage: str, letters: Iterable[DeadLetter]) -> list[StreamResult]:
    """Return a result for each event of `letters`; one for a letter without events."""
    return [
        StreamResult(DEAD_LETTERS, letter.key, CODEC.encode(event))
        for letter in letters
        for event in _events_of(stage, letter)
    ]


def _events_of(stage: str, letter: DeadLetter) -> list[DeadEvent]:
    of = (stage, letter.key, letter.error)
    if not letter.rows:
        return [DeadEvent(*of, None, None, None)]
    return [
        DeadEvent(*of, part.source, position, _bounded(text))
        for part in letter.rows
        for position, text in zip(part.positions, part.decoder.texts(part.raw), strict=True)
    ]


def _bounded(text: str) -> str | None:
    return text if len(text) <= PAYLOAD_BYTES_MAX else None
