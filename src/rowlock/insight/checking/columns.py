"""Columns that the database lacks, or has otherwise than the model says. Pure.

The one idea: a column of rowlock's is compared by what matters to a claim: the kind of its type,
its length and whether it takes a null. Of the host's own columns only those are told that are not
there at all, since each claim reads them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Column, Dialect, Table, literal_column
from sqlalchemy import column as named_column
from sqlalchemy import table as named_table
from sqlalchemy.sql.elements import ColumnClause
from sqlalchemy.types import NullType

from rowlock.insight.checking import code
from rowlock.insight.checking.finding import Finding, Level, Mend
from rowlock.insight.checking.seen import ColumnSeen, TableSeen
from rowlock.insight.dialects.insight_dialect import INSIGHT

_KINDS: Final = (
    ("a time with a zone", re.compile(r"TIMESTAMP.*WITH TIME ZONE|TIMESTAMPTZ")),
    ("a time without a zone", re.compile(r"TIMESTAMP|DATETIME")),
    ("a UUID", re.compile(r"UUID")),
    ("text", re.compile(r"CHAR|TEXT|CLOB|STRING")),
    ("a boolean", re.compile(r"BOOL")),
    ("JSON", re.compile(r"JSON")),
    ("a whole number", re.compile(r"INT|SERIAL")),
    ("a number", re.compile(r"FLOAT|DOUBLE|REAL|NUMERIC|DECIMAL")),
)
_LENGTH: Final = re.compile(r"CHAR[A-Z ]*\((\d+)\)")
_SAME_KINDS: Final = frozenset({("a time without a zone", "text")})
"""Where a time has no zone it is kept as text, whatever its column says."""
NEVER_CLAIMED: Final = "a row without it is never claimed"


@dataclass(frozen=True, slots=True)
class TableWanted:
    """What a table is to be.

    Attributes:
        table: of the host's metadata.
        own: names of the columns that rowlock keeps in it; of others it is only asked whether they
            are there.
        used: names of the columns without which nothing works.
        dialect: of the database.
    """

    table: Table
    own: Collection[str]
    used: Collection[str]
    dialect: Dialect

    @property
    def name(self) -> str:
        """The table, as it is shown."""
        return self.table.fullname


def column_findings(wanted: TableWanted, seen: TableSeen) -> list[Finding]:
    """Return what is wrong with the columns of a table."""
    found = []
    for column in wanted.table.columns:
        there = seen.columns.get(column.name)
        if there is None:
            found += [_missing(wanted, column)] if column.name in wanted.used else []
        elif column.name in wanted.own:
            found += _differences(wanted, column, there)
    return found


def kind_of(type_sql: str) -> str:
    """Return what a type of DDL keeps, in words."""
    upper = type_sql.upper()
    return next((kind for kind, pattern in _KINDS if pattern.search(upper)), type_sql)


def _missing(wanted: TableWanted, column: Column[Any]) -> Finding:
    name, can_mend = wanted.name, column.name in wanted.own
    # Rows that are there need a value, and so do those that older code writes meanwhile.
    can_mend = can_mend and (bool(column.nullable) or not _has_no_default(wanted, column))
    add = code.column_code(column, wanted.dialect)
    schema = code.schema_code(wanted.table)
    mend = Mend(
        (f"op.add_column({wanted.table.name!r}, {add}{schema})",),
        (f"op.drop_column({wanted.table.name!r}, {column.name!r}{schema})",),
    )
    what = f"column {column.name} is not in the database"
    remedy = "add it" if can_mend else "run the migration that adds it, or take it out of the model"
    return Finding(name, Level.BAD, what, remedy, (mend,) if can_mend else ())


def _differences(wanted: TableWanted, column: Column[Any], there: ColumnSeen) -> Iterable[Finding]:
    yield from _type_findings(wanted, column, there)
    if there.is_nullable != bool(column.nullable):
        yield _nullability(wanted, column, there)
    elif not (column.nullable or there.has_default or _has_no_default(wanted, column)):
        mend = _defaulted(wanted, column, there)
        what = (
            f"column {column.name} has no default: rows that others insert without it are refused"
        )
        yield Finding(wanted.name, Level.WARN, what, "give it the model's", (mend,))


def _has_no_default(wanted: TableWanted, column: Column[Any]) -> bool:
    return code.default_sql(column, wanted.dialect) is None


def _type_findings(
    wanted: TableWanted, column: Column[Any], there: ColumnSeen
) -> Iterable[Finding]:
    if isinstance(column.type, NullType):
        return
    should = column.type.compile(dialect=wanted.dialect)
    kinds = kind_of(should), kind_of(there.type_sql)
    is_same = kinds[0] == kinds[1] or kinds in _SAME_KINDS
    lengths = [_length(should), _length(there.type_sql)]
    if is_same and (lengths[1] is None or (lengths[0] or 0) <= lengths[1]):
        return
    what = (
        f"column {column.name} holds {lengths[1]} characters, the model says {lengths[0] or 'any'}"
        if is_same
        else f"column {column.name} is {kinds[1]} ({there.type_sql}), not {kinds[0]}"
    )
    nullable = f"{there.is_nullable}"
    types = there.type_sql, should
    up = {
        "existing_type": there.type_code,
        "type_": code.type_code(column.type),
        "existing_nullable": nullable,
    }
    down = up | {"existing_type": up["type_"], "type_": there.type_code}
    yield Finding(
        wanted.name,
        Level.BAD,
        what,
        f"make it {should}",
        (_altered(wanted, column.name, up=(up, types), down=(down, (should, there.type_sql))),),
    )


def _nullability(wanted: TableWanted, column: Column[Any], there: ColumnSeen) -> Finding:
    takes_null = bool(column.nullable)
    up = {"existing_type": code.type_code(column.type), "nullable": f"{takes_null}"}
    down = up | {"nullable": f"{there.is_nullable}"}
    mend = _altered(wanted, column.name, up=(up, _SAME_TYPE), down=(down, _SAME_TYPE))
    if takes_null:
        what = f"column {column.name} takes no null, and null means that there is none"
        return Finding(wanted.name, Level.BAD, what, "let it be null", (mend,))
    what = f"column {column.name} may be null: {NEVER_CLAIMED}"
    default = code.default_sql(column, wanted.dialect)
    if default is None:
        return Finding(wanted.name, Level.BAD, what, "set it NOT NULL")
    value: Any = literal_column(default)
    filled_column: ColumnClause[Any] = named_column(column.name)
    fill = (
        named_table(wanted.table.name, filled_column, schema=wanted.table.schema)
        .update()
        .where(filled_column.is_(None))
        .values({filled_column: value})
    )
    filled = str(fill.compile(dialect=wanted.dialect)).replace("\n", " ")
    # First the default, for rows that older code writes while the others are filled.
    defaulted = _defaulted(wanted, column, there)
    mend = replace(mend, up=(*defaulted.up, code.executed(filled), *mend.up))
    mend = replace(mend, down=(*mend.down, *defaulted.down))
    return Finding(wanted.name, Level.BAD, what, "set it NOT NULL", (mend,))


AlterOptions = tuple[dict[str, str], tuple[str, str]]
"""Of ``alter_column``, and what the type was and becomes if it changes."""
_SAME_TYPE: Final = ("", "")


def _defaulted(wanted: TableWanted, column: Column[Any], there: ColumnSeen) -> Mend:
    default = code.default_sql(column, wanted.dialect)
    assert default is not None
    up = {
        "existing_type": code.type_code(column.type),
        "existing_nullable": f"{there.is_nullable}",
        "server_default": code.text_code(default),
    }
    down = up | {"server_default": "None"}
    return _altered(wanted, column.name, up=(up, _SAME_TYPE), down=(down, _SAME_TYPE))


def _altered(wanted: TableWanted, column: str, *, up: AlterOptions, down: AlterOptions) -> Mend:
    alter = INSIGHT.on(wanted.dialect.name).alter_column
    return Mend(
        alter(wanted.table, column, up[0], types=up[1]),
        alter(wanted.table, column, down[0], types=down[1]),
    )


def _length(type_sql: str) -> int | None:
    found = _LENGTH.search(type_sql.upper())
    return int(found[1]) if found else None
