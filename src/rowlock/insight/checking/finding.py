"""What a check finds: one text for a terminal and a page, and the same as data. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rowlock.insight.shown import shown

SCHEMA: Final = "rowlock.check/1"
WIDTH_MIN: Final = 40
FINDINGS_MAX: Final = 1_000
TEXT_CHARS_MAX: Final = 600


class Level(StrEnum):
    """How bad a finding is."""

    BAD = "BAD"
    """Rows are not processed, or each claim or heartbeat costs far too much."""
    WARN = "warn"
    """It works, and should be mended."""
    NOTE = "note"
    """Worth knowing."""


@dataclass(frozen=True, slots=True)
class Mend:
    """Steps of a migration that mend a finding, as code; `commits` if they run outside a
    transaction.
    """

    up: tuple[str, ...]
    down: tuple[str, ...] = ()
    commits: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found.

    Attributes:
        about: the table, the pipeline or the replica.
        level: how bad it is.
        what: the finding itself.
        remedy: what to do; empty if nothing.
        mends: what a migration does about it; empty if none can.
    """

    about: str
    level: Level
    what: str
    remedy: str = ""
    mends: tuple[Mend, ...] = ()

    @property
    def text(self) -> str:
        """The finding and its remedy in one line."""
        if not self.remedy:
            return shown(self.what, TEXT_CHARS_MAX)
        separator = "; " if ":" in self.what else ": "
        return shown(f"{self.what}{separator}{self.remedy}", TEXT_CHARS_MAX)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "about": self.about,
            "level": self.level.value,
            "what": self.what,
            "remedy": self.remedy,
            "is_mended": bool(self.mends),
        }


@dataclass(frozen=True, slots=True)
class Findings:
    """All that a check found."""

    found: tuple[Finding, ...]
    pipelines: int

    @property
    def needs_person(self) -> bool:
        return any(one.level is Level.BAD for one in self.found)

    def text(self, width: int = 100) -> str:
        if not self.found:
            return f"all is well: {_count(self.pipelines, 'pipeline')} looked at"
        listed = self.found[:FINDINGS_MAX]
        about_width = min(30, max(len(shown(one.about, 30)) for one in listed))
        lines = [row for one in listed for row in _lines(one, about_width, width)]
        left_out = len(self.found) - len(listed)
        return "\n".join([*lines, *([f"and {left_out} more"] if left_out else [])])

    def to_dict(self) -> dict[str, Any]:
        levels = Counter(one.level for one in self.found)
        return {
            "schema": SCHEMA,
            "needs_person": self.needs_person,
            "pipelines": self.pipelines,
            "counts": {level.value: levels[level] for level in Level},
            "findings": [one.to_dict() for one in self.found],
        }


def _lines(one: Finding, about_width: int, width: int) -> list[str]:
    label = f"{shown(one.about, 30).ljust(about_width)}   {one.level.value.ljust(4)}   "
    return textwrap.wrap(
        one.text,
        max(WIDTH_MIN, width),
        initial_indent=label,
        subsequent_indent=" " * min(len(label), WIDTH_MIN // 2),
        break_on_hyphens=False,
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def in_order(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Sort by table, in the order in which these were looked at, the worst first."""
    tables = list(dict.fromkeys(one.about for one in found))
    levels = list(Level)
    return tuple(sorted(found, key=lambda one: (tables.index(one.about), levels.index(one.level))))
