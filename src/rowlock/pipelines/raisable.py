"""Makes an exception of an outcome: code that `process` calls may raise what it would otherwise
have to hand up.

Not here: what a raised outcome means (``pipelines/settling/raised.py``).
"""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any, TypeVar

ClassT = TypeVar("ClassT", bound=type[BaseException])


def raisable(cls: ClassT) -> ClassT:
    """Let instances of a frozen dataclass that is an exception be raised and pickled.

    The trap this closes: a frozen dataclass refuses every assignment, ``__traceback__`` by
    ``contextlib`` included, which would replace what was raised by a ``FrozenInstanceError``. And
    an exception is pickled by its positional arguments, which would lose all others on the way out
    of a process pool.
    """
    given: Any = cls
    frozen = frozenset(field.name for field in fields(given))

    def set_unless_frozen(self: BaseException, name: str, value: object) -> None:
        # Python, ``contextlib`` and libraries that follow errors write on what is on its way.
        if name in frozen:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

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
