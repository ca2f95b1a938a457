"""Makes an exception of an outcome: code that `process` calls may raise what it would otherwise
have to hand up.

Not here: what a raised outcome means (``pipelines/settling/raised.py``).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

ClassT = TypeVar("ClassT", bound=type[BaseException])

KEPT_BY_PYTHON = frozenset(
    {"__cause__", "__context__", "__notes__", "__suppress_context__", "__traceback__"}
)
"""What Python, and ``contextlib``, write on an exception that is on its way."""


def raisable(cls: ClassT) -> ClassT:
    """Let instances of a frozen dataclass that is an exception be raised and pickled.

    The trap this closes: a frozen dataclass refuses every assignment, ``__traceback__`` by
    ``contextlib`` included, which would replace what was raised by a ``FrozenInstanceError``. And
    an exception is pickled by its positional arguments, which would lose all others on the way out
    of a process pool.
    """
    refuse: Any = cls.__setattr__

    def set_unless_frozen(self: BaseException, name: str, value: object) -> None:
        if name in KEPT_BY_PYTHON:
            object.__setattr__(self, name, value)
        else:
            refuse(self, name, value)

    # As a method, a type checker would take the dataclass for one that is not frozen.
    setattr(cls, "__setattr__", set_unless_frozen)  # noqa: B010
    setattr(cls, "__reduce__", _reduce)  # noqa: B010
    return cls


def _reduce(self: BaseException) -> tuple[Any, ...]:
    given: Any = self
    values = {field.name: getattr(self, field.name) for field in fields(given)}
    return _made_anew, (type(self), values | vars(self) | {"args": self.args})


def _made_anew(cls: type[BaseException], values: dict[str, Any]) -> BaseException:
    made = cls.__new__(cls)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made
