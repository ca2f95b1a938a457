"""What a check finds, as one text and as data; and indexes as SQL. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Dialect, Index
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import ClauseElement, ColumnClause, UnaryExpression

from rowlock.insight.shown import WIDTH_MIN, shown, wrapped

SCHEMA: Final = "rowlock.check/2"
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
class Finding:
    """One thing that a check found.

    Attributes:
        about: the table, the pipeline or the replica.
        level: how bad it is.
        what: the finding itself.
        remedy: what to do; empty if nothing.
    """

    about: str
    level: Level
    what: str
    remedy: str = ""

    @property
    def text(self) -> str:
        """The finding and its remedy in one line."""
        if not self.remedy:
            return shown(self.what, TEXT_CHARS_MAX)
        separator = "; " if ":" in self.what else ": "
        return shown(f"{self.what}{separator}{self.remedy}", TEXT_CHARS_MAX)

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self) | {"level": self.level.value}


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
        lines = [row for one in listed for row in _finding_lines(one, about_width, width)]
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


def _finding_lines(one: Finding, about_width: int, width: int) -> list[str]:
    label = f"{shown(one.about, 30).ljust(about_width)}   {one.level.value.ljust(4)}   "
    return wrapped(one.text, label, max(WIDTH_MIN, width), indent=WIDTH_MIN // 2)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def in_order(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Sort by table, in the order in which these were looked at, the worst first."""
    tables = list(dict.fromkeys(one.about for one in found))
    levels = list(Level)
    return tuple(sorted(found, key=lambda one: (tables.index(one.about), levels.index(one.level))))


# ---------------------------------------------------------------- indexes as SQL


@dataclass(frozen=True, slots=True)
class IndexWanted:
    """An index that is to be there."""

    name: str
    parts: tuple[str, ...]
    where: str | None = None
    is_unique: bool = False

    @property
    def text(self) -> str:
        return f"({', '.join(self.parts)})" + ("" if self.where is None else f" WHERE {self.where}")


def sql_of(clause: ClauseElement, dialect: Dialect) -> str:
    """Return an expression as the SQL of an index: with its values, without its table."""
    nothing: Any = None
    compiler: Any = dialect.ddl_compiler(dialect, nothing).sql_compiler
    # A driver whose parameters begin with % wants it doubled, and an index has none.
    compiler.preparer = copy(compiler.preparer)
    compiler.preparer._double_percents = False
    return str(compiler.process(clause, include_table=False, literal_binds=True))


def index_of(index: Index, dialect: Dialect) -> IndexWanted:
    where = index.dialect_kwargs.get(f"{dialect.name}_where")
    return IndexWanted(
        str(index.name),
        tuple(_part(part, dialect) for part in index.expressions),
        None if where is None else where if isinstance(where, str) else sql_of(where, dialect),
        bool(index.unique),
    )


def _part(part: Any, dialect: Dialect) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, ColumnClause) and not part.is_literal:
        return str(part.name)
    sql = sql_of(part, dialect)
    is_plain = isinstance(part, UnaryExpression) and part.modifier is operators.nulls_first_op
    # Where nulls come first by themselves nothing is said of them.
    return str(part.element.name) if is_plain and " " not in sql else sql
