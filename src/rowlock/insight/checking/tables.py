"""Looks at one table in the database, and finds what its columns and indexes lack, and what harms.

The one idea: a column of rowlock's is compared by what matters to a claim: the kind of its type,
its length and whether it takes a null. Of the host's own columns only those are told that are not
there at all, since each claim reads them. Whether an index serves a claim was asked of the planner
(``claim_plan.py``), so no condition is compared as text here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Column, Connection, Dialect, Table, inspect, literal_column
from sqlalchemy import column as named_column
from sqlalchemy import table as named_table
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnClause
from sqlalchemy.types import NullType

from rowlock.insight.checking import code
from rowlock.insight.checking.claim_plan import ClaimSeen
from rowlock.insight.checking.finding import Finding, Level, Mend
from rowlock.insight.dialects.insight_dialect import INSIGHT, ColumnSeen, IndexSeen, TableSeen
from rowlock.rows.migrations import FILLFACTOR
from rowlock.spi import INDEX_INFO, ROWS

# ---------------------------------------------------------------- a look at one table


async def look_at_table(connection: AsyncConnection, table: Table) -> TableSeen | None:
    """Return the table as it is; None if there is none. Joins the caller's transaction."""
    columns = await connection.run_sync(_columns_of, table)
    if not columns:
        return None
    dialect = INSIGHT.of(connection)
    return TableSeen(
        columns,
        await dialect.indexes(connection, table),
        await dialect.storage(connection, table),
    )


def _columns_of(connection: Connection, table: Table) -> dict[str, ColumnSeen]:
    inspector = inspect(connection)
    try:
        found: Any = inspector.get_columns(table.name, schema=table.schema)
    except NoSuchTableError:
        return {}
    return {column["name"]: _column_of(column, connection.dialect) for column in found}


def _column_of(column: Any, dialect: Dialect) -> ColumnSeen:
    type_ = column["type"]
    has_default = column.get("default") is not None or bool(column.get("identity"))
    return ColumnSeen(
        column["name"],
        type_.compile(dialect=dialect),
        f"sa.{type_!r}",
        bool(column["nullable"]),
        has_default or bool(column.get("computed")),
    )


# ---------------------------------------------------------------- columns


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
    """A table as it should be: rowlock keeps the columns `own`, and nothing works without
    `used`.
    """

    table: Table
    own: Collection[str]
    used: Collection[str]
    dialect: Dialect

    @property
    def name(self) -> str:
        return self.table.fullname


def column_findings(wanted: TableWanted, seen: TableSeen) -> list[Finding]:
    found = []
    for column in wanted.table.columns:
        there = seen.columns.get(column.name)
        if there is None:
            found += [_missing_column(wanted, column)] if column.name in wanted.used else []
        elif column.name in wanted.own:
            found += _differences(wanted, column, there)
    return found


def kind_of(type_sql: str) -> str:
    upper = type_sql.upper()
    return next((kind for kind, pattern in _KINDS if pattern.search(upper)), type_sql)


def _missing_column(wanted: TableWanted, column: Column[Any]) -> Finding:
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
"""Options of ``alter_column``, and the old and the new type if it changes."""
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


# ---------------------------------------------------------------- indexes


LARGE_ROW_BYTES: Final = 64 * 1024
"""A row above makes updates of its lease slow where they write all of it, in bytes."""
FULL_MIN: Final = 90
"""A fillfactor above leaves heartbeats no room, in percent."""
_NAMED_PARKED: Final = re.compile(r"\bparked_at\b.*\bIS NULL\b", re.IGNORECASE | re.DOTALL)
_STRING: Final = re.compile(r"'(?:[^']|'')*'")
_PARTIAL: Final = re.compile(r"\bWHERE\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ClaimedTable:
    """A table from which pipelines claim; each claim and heartbeat writes the columns `cleared`."""

    wanted: TableWanted
    cleared: Collection[str]
    claims: Sequence[ClaimSeen]


def claim_findings(claimed: ClaimedTable, seen: TableSeen) -> Iterable[Finding]:
    """Return what is wrong with the indexes of claims, and with the storage of the table."""
    wanted = claimed.wanted
    harmful = {
        index.name: found[0]
        for index in seen.indexes
        if (found := [name for name in claimed.cleared if _mentions(index.body, name)])
    }
    yield from (_harmful(wanted, index, harmful[index.name]) for index in _in(seen, harmful))
    given: set[str] = set()
    for claim in claimed.claims:
        serving = next((one for one in seen.indexes if one.name == claim.served_by), None)
        if claim.refused:
            what = "cannot be looked at now" if claim.may_pass else "is refused"
            yield Finding(claim.pipeline, Level.BAD, f"its claim {what}: {claim.refused}")
        elif claim.wanted is not None and serving is None:
            yield _unserved(claimed, seen, claim, given=given)
        elif claim.wanted is not None and serving is not None:
            yield from _weaker(wanted, claim, serving)
    yield from _fillfactor(wanted, seen)
    if seen.storage.row_bytes > LARGE_ROW_BYTES:
        yield Finding(
            wanted.name,
            Level.WARN,
            f"rows have up to {seen.storage.row_bytes // 1024} KiB, and each claim, heartbeat and"
            " outcome writes a row as a whole",
            "keep long columns in a table of their own",
        )


def index_findings(wanted: TableWanted, seen: TableSeen) -> Iterable[Finding]:
    """Return the missing indexes of the model, those of claims apart, and the invalid ones."""
    there = {index.name for index in seen.indexes}
    for index in sorted(wanted.table.indexes, key=lambda one: str(one.name)):
        lacks = [part.name for part in index.columns if part.name not in seen.columns]
        if index.name not in there and INDEX_INFO not in index.info and not lacks:
            yield _missing_index(wanted, code.index_of(index, wanted.dialect))
    yield from (
        _invalid(wanted, index)
        for index in seen.indexes
        if not index.is_valid and not index.is_being_built
    )


def _in(seen: TableSeen, names: Collection[str]) -> list[IndexSeen]:
    return [index for index in seen.indexes if index.name in names]


def _mentions(body: str, column: str) -> bool:
    # A value of the condition may say anything.
    return re.search(rf"\b{re.escape(column)}\b", _STRING.sub("''", body)) is not None


def _harmful(wanted: TableWanted, index: IndexSeen, column: str) -> Finding:
    what = (
        f"index {index.name} contains {column}: every heartbeat writes every index (0 % heap-only)"
    )
    if index.is_constraint:
        return Finding(wanted.name, Level.BAD, what, "drop its constraint")
    mend = Mend(
        (code.drop_index(wanted.table, index.name, wanted.dialect),),
        (code.executed(index.definition),),
        commits=_is_concurrent(wanted),
    )
    return Finding(wanted.name, Level.BAD, what, "drop it", (mend,))


def _unserved(
    claimed: ClaimedTable, seen: TableSeen, claim: ClaimSeen, *, given: set[str]
) -> Finding:
    wanted, index = claimed.wanted, claim.wanted
    assert index is not None
    serves_another = {each.served_by for each in claimed.claims} | given
    name = index.name
    if name in serves_another:
        name = f"{name}_{claim.pipeline.lower()}"[:63]
    given.add(name)
    index = code.IndexWanted(name, index.parts, index.expressions, index.where)
    old = next((one for one in seen.indexes if one.name == name), None)
    mend = code.added(wanted.table, index, wanted.dialect)
    if old is not None:
        first = code.drop_index(wanted.table, name, wanted.dialect)
        # Of an invalid one the steps drop the ruin themselves.
        first_steps = () if mend.commits else (first,)
        mend = Mend(
            (*first_steps, *mend.up), (*mend.down, code.executed(old.definition)), mend.commits
        )
    another = f", since {name} does not" if old is not None and old.is_valid else ""
    return Finding(
        wanted.name,
        Level.BAD,
        f"no index serves the claim of {claim.pipeline}{another}",
        f"add {name} ON {wanted.name} {index.text}",
        (mend,),
    )


def _weaker(wanted: TableWanted, claim: ClaimSeen, serving: IndexSeen) -> Iterable[Finding]:
    index = claim.wanted
    assert index is not None
    if index.where is None or serving.is_constraint:
        return
    holds_all = _PARTIAL.search(serving.body) is None
    holds_parked = _NAMED_PARKED.search(index.where) and not _NAMED_PARKED.search(serving.body)
    if not (holds_all or holds_parked):
        return
    which, past = ("all", "the settled ones") if holds_all else ("parked", "them")
    what = f"index {serving.name} holds {which} rows: claims of {claim.pipeline} read past {past}"
    yield Finding(
        wanted.name,
        Level.WARN,
        what,
        f"make it {index.text}",
        (_replaced(wanted, serving, index),),
    )


def _replaced(wanted: TableWanted, old: IndexSeen, index: code.IndexWanted) -> Mend:
    table, dialect = wanted.table, wanted.dialect
    named = code.IndexWanted(old.name, index.parts, index.expressions, index.where)
    down = (code.drop_index(table, old.name, dialect), code.executed(old.definition))
    if not _is_concurrent(wanted):
        built = code.create_index(table, named, dialect)
        return Mend((code.drop_index(table, old.name, dialect), built), down)
    # Claims are served throughout: the old one goes when the new one is there.
    new = code.IndexWanted(f"{old.name[:58]}_new", index.parts, index.expressions, index.where)
    quote = dialect.identifier_preparer.quote
    schema = "" if table.schema is None else f"{quote(table.schema)}."
    renamed = f"ALTER INDEX {schema}{quote(new.name)} RENAME TO {quote(old.name)}"
    up = (
        *code.added(table, new, dialect).up,
        code.drop_index(table, old.name, dialect),
        code.executed(renamed),
    )
    return Mend(up, down, commits=True)


def _missing_index(wanted: TableWanted, index: code.IndexWanted) -> Finding:
    level = Level.BAD if index.is_unique else Level.WARN
    kind = "unique index" if index.is_unique else "index"
    return Finding(
        wanted.name,
        level,
        f"{kind} {index.name} of the model is not in the database",
        f"add {index.name} ON {wanted.name} {index.text}",
        (code.added(wanted.table, index, wanted.dialect),),
    )


def _invalid(wanted: TableWanted, index: IndexSeen) -> Finding:
    what = (
        f"index {index.name} is invalid: its CREATE INDEX CONCURRENTLY failed, so each write keeps"
        " it up and no claim reads it"
    )
    repaired = INSIGHT.on(wanted.dialect.name).repaired(wanted.table, index.name)
    mends = () if repaired is None else (Mend((code.executed(repaired),), commits=True),)
    return Finding(wanted.name, Level.BAD, what, "build it again, or drop it", mends)


def _fillfactor(wanted: TableWanted, seen: TableSeen) -> Iterable[Finding]:
    percent = seen.storage.fillfactor
    if percent is None or percent <= FULL_MIN:
        return
    table = wanted.dialect.identifier_preparer.format_table(wanted.table)
    rows = ROWS.on(wanted.dialect.name)
    up, down = rows.set_fillfactor(table, FILLFACTOR), rows.set_fillfactor(table, None)
    assert up is not None
    assert down is not None
    mend = Mend((code.executed(up),), (code.executed(down),))
    remedy = f"set {FILLFACTOR}, or heartbeats move rows"
    yield Finding(wanted.name, Level.WARN, f"fillfactor {percent}", remedy, (mend,))


def _is_concurrent(wanted: TableWanted) -> bool:
    return ROWS.on(wanted.dialect.name).concurrently is not None
