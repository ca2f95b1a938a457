"""What a host may do to a library that calls its code: loggers, callbacks and objects that raise
anything at all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import pytest

ROADS = tuple(f"rowlock.{name}" for name in ("pipelines", "hints", "database", "events", "tasks"))
"""The packages on a row's way that log."""


class HostExit(BaseException):
    """What a host derives from the root of all exceptions."""


class RaisingLogger:
    """Raises at every call, whatever the level.

    Attributes:
        calls: how often it was called.
    """

    def __init__(self, error: BaseException) -> None:
        """Raise `error` from now on."""
        self.calls = 0
        self._error = error

    def __getattr__(self, _level: str) -> Any:
        """Return what is called for any level."""
        return self._raise

    def _raise(self, *_args: object, **_fields: object) -> NoReturn:
        self.calls += 1
        raise self._error


def break_loggers(patch: pytest.MonkeyPatch, error: BaseException) -> RaisingLogger:
    """Let every log call of a pipeline raise `error`, as if nothing contained it."""
    logger = RaisingLogger(error)
    for name, module in list(sys.modules.items()):
        if name.startswith(ROADS) and hasattr(module, "logger"):
            patch.setattr(module, "logger", logger)
    return logger


class RaisingMapping(Mapping[Any, Any]):
    """Raises `error` whatever it is asked."""

    def __init__(self, error: BaseException) -> None:
        """Raise `error` at any question."""
        self._error = error

    def __getitem__(self, key: object) -> NoReturn:
        """Raise."""
        raise self._error

    def __iter__(self) -> Iterator[Any]:
        """Raise."""
        raise self._error

    def __len__(self) -> int:
        """Raise."""
        raise self._error

    def keys(self) -> NoReturn:
        """Raise."""
        raise self._error


class RaisingList(list[Any]):
    """Gives what it holds `good` times, and raises `error` from then on."""

    def __init__(self, error: BaseException, *items: Any, good: int = 0) -> None:
        """Hold `items`, and give them `good` times."""
        super().__init__(items)
        self._error = error
        self._good = good

    def __iter__(self) -> Iterator[Any]:
        """Give or raise."""
        if self._good <= 0:
            raise self._error
        self._good -= 1
        return super().__iter__()
