"""Makes plain what a handler yields: from here on no part of an event runs code of the host.

The one idea: a text, a mapping or a kind may be of any class, and raise anything when it is looked
at. It is looked at here, once and contained, and copied: what the handler does to it afterwards
changes no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rowlock.dispatch.client_text import DETAIL_CHARS_MAX, is_storable, progress_of
from rowlock.dispatch.task import AttemptEvent, Completed, Failed, Heartbeat, Progress, StageDone
from rowlock.errors import OutcomeError, describe, shorten
from rowlock.pipelines.copies import copied_value


def plain_event(event: object) -> AttemptEvent:
    """Return `event` with parts of plain types, and the text of a `Progress` as it is stored.

    Raises:
        OutcomeError: it is no event, or one of its parts is not what it must be, or cannot be read.
    """
    try:
        return _plain(event)
    except OutcomeError:
        raise
    # Code of the host; nothing is awaited, so no cancellation is ours.
    except BaseException as error:  # noqa: BLE001
        raise OutcomeError(
            f"the {type(event).__name__} of the handler cannot be read: {describe(error)}"
        ) from None


def _plain(event: object) -> AttemptEvent:
    match event:
        case Heartbeat():
            return Heartbeat()
        case Progress(text):
            return Progress(progress_of(text))
        case StageDone(name, key):
            return StageDone(_stage_name(name), copied_value(key))
        case Completed(values):
            return Completed(_values(values))
        case Failed(kind, text, detail):
            # A worker of an earlier version does not send it.
            raised = tuple(tuple(map(str, one)) for one in getattr(event, "raised", ()))
            shown = shorten(str(detail), chars_max=DETAIL_CHARS_MAX)
            return Failed(str(kind), str(text), shown, raised)
        case _:
            raise OutcomeError(f"the handler gave a {type(event).__name__}, which is no event")


def _stage_name(name: object) -> str:
    if not isinstance(name, str) or not is_storable(name):
        raise OutcomeError(
            f"a stage's name must be a text without NUL and lone surrogates, not {name!r:.100}",
            column="stages",
        )
    return name


def _values(values: object) -> dict[Any, Any]:
    if not isinstance(values, Mapping):
        raise OutcomeError(
            f"Completed takes a dict of columns and values, not {type(values).__name__}"
        )
    return {name: copied_value(value) for name, value in values.items()}
