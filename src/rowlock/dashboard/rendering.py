"""Makes pages of templates: everything is escaped, and everything of a row is shown as what it is.

Not here: which values a page has (``pages.py``).
"""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from rowlock.insight.counting.counts import COUNTED_MAX
from rowlock.insight.shown import ago, clock_time, duration, row_command, shown

NOTHING: Final = "\N{EN DASH}"
_ACTING: Final = re.compile(r"\browlock (unpark|release|due) ")
_BUTTONS: Final = {"unpark": "unpark", "release": "release", "due": "make_due"}
"""The button of the page that does what a command does."""
_EXPLAINING: Final = re.compile(r"\browlock explain (.+)")


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the templates of this package."""
    made = Environment(
        loader=PackageLoader("rowlock.dashboard", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "shown": shown,
        "count": count_text,
        "duration": lambda value: NOTHING if value is None else duration(value),
        "ago": ago,
        "clock": clock_text,
        "decimal": decimal_text,
        "seconds": seconds_text,
        "button": named_button,
        "named_row": named_row,
        "moment": lambda time, now: clock_time(time, now=now),
    }
    return made


def render(template: str, **values: Any) -> str:
    """Return a page, or a part of one."""
    return environment().get_template(template).render(**values)


def count_text(count: int | None) -> str:
    """Return a bounded count in words."""
    if count is None:
        return NOTHING
    return f"{COUNTED_MAX:,}+" if count > COUNTED_MAX else f"{count:,}"


def clock_text(time: datetime | None) -> str:
    """Return a time of the day."""
    return "" if time is None else f"{time.astimezone(UTC):%H:%M:%S} UTC"


def decimal_text(value: float | None, unit: str = "") -> str:
    """Return a number with one digit behind the point."""
    return NOTHING if value is None else f"{value:.1f}{unit}"


def seconds_text(value: object) -> str:
    """Return a number of seconds that a replica says it has measured."""
    return f"{value:.3f} s" if isinstance(value, int | float) else NOTHING


def named_button(do: str) -> str:
    """Return the action of a button that does what an explanation says is to be done; empty if it
    names none.
    """
    found = _ACTING.search(do)
    return "" if found is None else _BUTTONS[found[1]]


def named_row(text: str) -> tuple[str, str] | None:
    """Return the model and the key of the row that is to be explained, by the command at the end
    of a text; None if it ends in no such command, or in one whose key is not read back.
    """
    found = _EXPLAINING.search(text)
    try:
        words = shlex.split(found[1]) if found is not None else []
    except ValueError:
        return None
    if words[:1] == ["--"]:
        del words[0]
    if found is None or len(words) != 2:  # noqa: PLR2004
        return None
    model, key = words
    # A key with characters that are shown as escapes is another one when a shell's rules read it.
    return (model, key) if row_command("explain", model, key) == found[0] else None
