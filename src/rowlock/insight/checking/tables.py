"""Looks at one table in the database, and finds what its columns and indexes lack, and what harms.

The one idea: a column of rowlock's is compared by what matters to a claim: the kind of its type,
its length and whether it takes a null. Of the host's own columns only those are told that are not
there at all, since each claim reads them. Whether an index serves a claim was asked of the planner
(``claim_plan.py``), so no condition is compared as text here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, Connection, Dialect, Table, inspect
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import NullType

from rowlock.insight.checking import code
from rowlock.insight.checking.claim_plan import ClaimSeen
from rowlock.insight.checking.code import Finding, Level
from rowlock.insight.dialects.insight_dialect import INSIGHT, ColumnSeen, IndexSeen, TableSeen
from rowlock.rows.migrations import FILLFACTOR
from rowlock.spi import INDEX_INFO

# ---------------------------------------------------------------- a look at one table


async def look_at_table(connection: AsyncConnection, table: Table) -> TableSeen | None:
    """Return the table as it is; None if there is none. Joins the caller's transaction."""

    def look(connection: Connection) -> Any:
        return inspect(connection).get_columns(table.name, schema=table.schema)

    try:
        found = await connection.run_sync(look)
    except NoSuchTableError:
        return None
    dialect, columns = INSIGHT.of(connection), {}
    for column in found:
        has_default = column.get("default") is not None
        columns[column["name"]] = ColumnSeen(
            column["name"],
            column["type"].compile(dialect=connection.dialect),
            bool(column["nullable"]),
            has_default or bool(column.get("identity") or column.get("computed")),
        )
    indexes = await dialect.indexes(connection, table)
    return TableSeen(columns, indexes, await dialect.storage(connection, table))


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
    """A table as it should be: rowlock keeps the columns `own`, and needs those `used`."""

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
    # Rows that are there need a value, and so do those that older code writes meanwhile.
    can_add = column.name in wanted.own and (column.nullable or _has_default(column))
    what = f"column {column.name} is not in the database"
    remedy = "add it" if can_add else "run the migration that adds it, or take it out of the model"
    return Finding(wanted.name, Level.BAD, what, remedy)


def _differences(wanted: TableWanted, column: Column[Any], there: ColumnSeen) -> Iterable[Finding]:
    yield from _type_findings(wanted, column, there)
    name, takes_null = f"column {column.name}", bool(column.nullable)
    if there.is_nullable and not takes_null:
        yield Finding(
            wanted.name, Level.BAD, f"{name} may be null: {NEVER_CLAIMED}", "set it NOT NULL"
        )
    elif takes_null and not there.is_nullable:
        what = f"{name} takes no null, and null means that there is none"
        yield Finding(wanted.name, Level.BAD, what, "let it be null")
    elif not (takes_null or there.has_default) and _has_default(column):
        what = f"{name} has no default: rows that others insert without it are refused"
        yield Finding(wanted.name, Level.WARN, what, "give it the model's")


def _has_default(column: Column[Any]) -> bool:
    return getattr(column.server_default, "arg", None) is not None


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
    yield Finding(wanted.name, Level.BAD, what, f"make it {should}")


def _length(type_sql: str) -> int | None:
    found = _LENGTH.search(type_sql.upper())
    return int(found[1]) if found else None


# ---------------------------------------------------------------- indexes


LARGE_ROW_BYTES: Final = 64 * 1024
"""A row above makes updates of its lease slow where they write all of it, in bytes."""
FULL_MIN: Final = 90  # a fillfactor above leaves heartbeats no room, in percent
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
    for index in seen.indexes:
        # A value of the condition may say anything.
        spelt = _STRING.sub("''", index.body)
        named = [one for one in claimed.cleared if re.search(rf"\b{re.escape(one)}\b", spelt)]
        for column in named[:1]:
            what = f"index {index.name} contains {column}: every heartbeat writes every index"
            do = "drop its constraint" if index.is_constraint else "drop it"
            yield Finding(wanted.name, Level.BAD, f"{what} (0 % heap-only)", do)
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
    percent = seen.storage.fillfactor
    if percent is not None and percent > FULL_MIN:
        remedy = f"set {FILLFACTOR}, or heartbeats move rows"
        yield Finding(wanted.name, Level.WARN, f"fillfactor {percent}", remedy)
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
    for one in seen.indexes:
        if not one.is_valid and not one.is_being_built:
            what = (
                f"index {one.name} is invalid: its CREATE INDEX CONCURRENTLY failed, so each write"
                " keeps it up and no claim reads it"
            )
            yield Finding(wanted.name, Level.BAD, what, "build it again, or drop it")


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
    old = next((one for one in seen.indexes if one.name == name), None)
    another = f", since {name} does not" if old is not None and old.is_valid else ""
    return Finding(
        wanted.name,
        Level.BAD,
        f"no index serves the claim of {claim.pipeline}{another}",
        f"add {name} ON {wanted.name} {index.text}",
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
    yield Finding(wanted.name, Level.WARN, what, f"make it {index.text}")


def _missing_index(wanted: TableWanted, index: code.IndexWanted) -> Finding:
    level = Level.BAD if index.is_unique else Level.WARN
    kind = "unique index" if index.is_unique else "index"
    return Finding(
        wanted.name,
        level,
        f"{kind} {index.name} of the model is not in the database",
        f"add {index.name} ON {wanted.name} {index.text}",
    )
