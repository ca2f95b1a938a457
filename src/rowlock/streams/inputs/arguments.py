"""Checks of what a host passes to streams at run time: names, numbers of steps, time limits.

What passes here is stored or compared by every database in the same way; what does not would be a
driver's error at one of them, and a row that means nothing at another.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Final

from rowlock.errors import ConfigurationError
from rowlock.streams.computing.hashing import is_storable
from rowlock.streams.migrations import NAME_CHARS_MAX

NUMBER_MAX: Final = 2**63 - 1
"""Highest number of a step, a position, or an append of a producer."""


def check_party(name: object, of: str) -> None:
    """Refuse what cannot be the name of a producer or a consumer.

    Raises:
        ConfigurationError: it is no text, empty, too long, or no database stores it.
    """
    if not isinstance(name, str):
        raise ConfigurationError(f"the name of {of} is a text, not {name!r:.100}")
    if not 1 <= len(name) <= NAME_CHARS_MAX:
        raise ConfigurationError(
            f"the name of {of} has 1 to {NAME_CHARS_MAX} characters, not {len(name)}"
        )
    if not is_storable(name):
        raise ConfigurationError(
            f"the name of {of}, {name!r:.100}, has a character that no database can store"
        )


def check_whole_number(number: object, of: str, *, low: int = 0) -> None:
    """Refuse what is no whole number from `low` to `NUMBER_MAX`.

    Raises:
        ConfigurationError: it is none.
    """
    is_whole = isinstance(number, int) and not isinstance(number, bool)
    if not (is_whole and low <= number <= NUMBER_MAX):  # type: ignore[operator]
        raise ConfigurationError(
            f"{of} is {low} to {NUMBER_MAX}, a whole number, not {number!r:.100}"
        )


def seconds_of(timeout: timedelta | float) -> float:
    """Return a time limit in seconds; less than none is none.

    Raises:
        ConfigurationError: it is no number.
    """
    seconds: object = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or math.isnan(seconds):  # type: ignore[arg-type]
        raise ConfigurationError(
            f"timeout is a number of seconds or a timedelta, not {timeout!r:.100}"
        )
    return max(0.0, float(seconds))  # type: ignore[arg-type]
