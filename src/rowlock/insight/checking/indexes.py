"""Indexes that a table lacks, that harm it, or that were never finished. Pure.

The one idea: whether an index serves a claim was asked of the planner (``claim_plan.py``), so no
condition is compared as text here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rowlock.insight.checking import code
from rowlock.insight.checking.claim_plan import ClaimSeen
from rowlock.insight.checking.columns import TableWanted
from rowlock.insight.checking.finding import Finding, Level, Mend
from rowlock.insight.checking.seen import IndexSeen, TableSeen
from rowlock.insight.dialects.insight_dialect import INSIGHT
from rowlock.rows.indexes.due_index import INDEX_INFO
from rowlock.rows.migrations import FILLFACTOR
from rowlock.rows.row_dialect import ROWS

LARGE_ROW_BYTES: Final = 64 * 1024
"""A row above makes updates of its lease slow where they write all of it, in bytes."""
FULL_MIN: Final = 90
"""A fillfactor above leaves heartbeats no room, in percent."""
_NAMED_PARKED: Final = re.compile(r"\bparked_at\b.*\bIS NULL\b", re.IGNORECASE | re.DOTALL)
_STRING: Final = re.compile(r"'(?:[^']|'')*'")
_PARTIAL: Final = re.compile(r"\bWHERE\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ClaimedTable:
    """A table from which pipelines claim.

    Attributes:
        wanted: what it is to be.
        cleared: the names of the columns that each claim and heartbeat writes.
        claims: what was seen of the claims of each pipeline.
    """

    wanted: TableWanted
    cleared: Collection[str]
    claims: Sequence[ClaimSeen]


def claim_findings(claimed: ClaimedTable, seen: TableSeen) -> Iterable[Finding]:
    """Return what is wrong with the indexes that claims want, and with how the table is stored."""
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
    """Return which indexes of the model are missing, those of claims apart, and which are
    invalid.
    """
    there = {index.name for index in seen.indexes}
    for index in sorted(wanted.table.indexes, key=lambda one: str(one.name)):
        lacks = [part.name for part in index.columns if part.name not in seen.columns]
        if index.name not in there and INDEX_INFO not in index.info and not lacks:
            yield _missing(wanted, code.index_of(index, wanted.dialect))
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


def _missing(wanted: TableWanted, index: code.IndexWanted) -> Finding:
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
