"""What a check finds, as one text and as data; and indexes as SQL. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import ColumnElement, Dialect, Index, UnaryExpression, inspect
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import ColumnClause

from rowlock.errors import ModelError
from rowlock.insight.shown import WIDTH_MIN, shown, wrapped
from rowlock.spi import (
    LeasedTable,
    claim_index_parts,
    conjuncts_of,
    due_indexes,
    index_condition,
    index_name,
    order_column,
    place_of,
    sql_of,
)

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
    """An index that is to be there; `is_declared` by the model."""

    name: str
    parts: tuple[str, ...]
    where: str | None = None
    is_unique: bool = False
    is_declared: bool = True

    @property
    def text(self) -> str:
        return f"({', '.join(self.parts)})" + ("" if self.where is None else f" WHERE {self.where}")


def index_of(index: Index, dialect: Dialect) -> IndexWanted:
    wanted = _as_sql(str(index.name), (index.expressions, index.dialect_kwargs), dialect)
    return replace(wanted, is_unique=bool(index.unique))


def wanted_index(
    pipeline: str,
    leased: LeasedTable,
    dialect: Dialect,
    *,
    ready: ColumnElement[bool],
    is_alone: bool,
) -> IndexWanted:
    """Return the index that serves the claims of a pipeline: that of the model, if it has one.

    With `is_alone` no other pipeline claims from the table.
    """
    try:
        kept = conjuncts_of(index_condition(pipeline, ready, inspect(leased.model)))
    except ModelError:
        kept = []
    # A wider index serves, too: without the parts whose values have no text in SQL.
    with_text = [part for part in kept if _has_text(part, dialect)]
    parts = claim_index_parts(leased, with_text)
    name = index_name(leased.table.name, order_column(leased).key)
    wanted = replace(_as_sql(name, parts, dialect), is_declared=False)
    declared = [
        index_of(index, dialect)
        for index in due_indexes(leased.table)
        if index.columns[0].name == place_of(leased)
    ]
    same = [index for index in declared if index.where == wanted.where]
    # A condition that the host has spelt in its own way is meant for its one pipeline.
    mine = same or (declared if is_alone and len(declared) == 1 else [])
    return next(iter(mine), wanted)


def _has_text(part: ColumnElement[bool], dialect: Dialect) -> bool:
    # Types of the host's raise what they like.
    try:
        return bool(sql_of(part, dialect))
    except Exception:  # noqa: BLE001
        return False


def _as_sql(
    name: str, parts: tuple[Iterable[Any], Mapping[str, Any]], dialect: Dialect
) -> IndexWanted:
    columns, options = parts
    where = options.get(f"{dialect.name}_where")
    text = where if where is None or isinstance(where, str) else sql_of(where, dialect)
    return IndexWanted(name, tuple(_part_sql(part, dialect) for part in columns), text)


def _part_sql(part: Any, dialect: Dialect) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, ColumnClause) and not part.is_literal:
        return str(part.name)
    sql = sql_of(part, dialect)
    is_plain = isinstance(part, UnaryExpression) and part.modifier is operators.nulls_first_op
    # Where nulls come first by themselves nothing is said of them.
    return str(part.element.name) if is_plain and " " not in sql else sql
