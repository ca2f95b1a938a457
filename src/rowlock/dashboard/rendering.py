"""Makes pages of templates: everything is escaped, and everything of a row is shown as what it is.

Not here: which values a page has (``pages.py``).
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from rowlock.insight.counting.counts import COUNTED_MAX
from rowlock.insight.shown import ago, clock_time, duration, shown

NOTHING: Final = "\N{EN DASH}"


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
