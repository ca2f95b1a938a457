"""What rowlock tells must be whole: no field of an event, an error or a log line is empty where
there is something to say.

The one idea: hundreds of tests listen or log by the way, and each of them is a test of what is told
then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import wraps
from inspect import signature
from typing import Final, get_type_hints

from rowlock.errors import RowlockError
from rowlock.events import Event

MAY_BE_EMPTY: Final = frozenset({"row_id"})
"""Fields of events that a host's row may leave empty."""
PIPELINES: Final = "rowlock.pipelines."
"""What logs under this name belongs to a pipeline, as a rule."""
OF_NO_PIPELINE: Final = frozenset(
    {f"{PIPELINES}{name}" for name in ("manager", "heartbeat_thread")}
)
"""Modules there that work for several pipelines."""


def wrong_with(event: Event) -> str | None:
    """Return what is wrong with `event`, or None."""
    hints = get_type_hints(type(event))
    for field in fields(event):
        value = getattr(event, field.name)
        if value is None and field.name not in MAY_BE_EMPTY and hints[field.name] is not None:
            if type(None) in getattr(hints[field.name], "__args__", ()):
                continue
            return f"{type(event).__name__}.{field.name} is empty"
        if hints[field.name] is str and not isinstance(value, str):
            return f"{type(event).__name__}.{field.name} is {value!r}"
    return None


def look_at_errors(wrong: list[str]) -> None:
    """Note in `wrong` what is empty in each error of rowlock that is made from now on."""
    for kind in [kind for kind in _below(RowlockError) if "__init__" in vars(kind)]:
        kind.__init__ = _looking(kind, wrong)  # type: ignore[method-assign]


def _below(kind: type[RowlockError]) -> Iterator[type[RowlockError]]:
    for below in kind.__subclasses__():
        yield below
        yield from _below(below)


def _looking(kind: type[RowlockError], wrong: list[str]) -> Callable[..., None]:
    original = kind.__init__
    parameters = signature(original).parameters

    @wraps(original)
    def look(self: RowlockError, *args: object, **kwargs: object) -> None:
        for name, value in kwargs.items():
            if value is None and parameters[name].default is not None:
                wrong.append(f"{kind.__name__}.{name} is empty")
        original(self, *args, **kwargs)

    return look


class ToldLines(logging.Handler):
    """Looks at each line of rowlock's log.

    Attributes:
        wrong: what is wrong with those that were looked at.
    """

    def __init__(self) -> None:
        """Have seen nothing yet."""
        super().__init__(logging.WARNING)
        self.wrong: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Look at one line."""
        told = {name: value for name, value in vars(record).items() if name.startswith("rowlock_")}
        if any(value is None for value in told.values()):
            self.wrong.append(f"a field is empty: {record.msg!r} {told}")
        is_of_a_pipeline = record.name.startswith(PIPELINES) and record.name not in OF_NO_PIPELINE
        if is_of_a_pipeline and not isinstance(told.get("rowlock_pipeline"), str):
            self.wrong.append(f"it does not name its pipeline: {record.name} {record.msg!r} {told}")
