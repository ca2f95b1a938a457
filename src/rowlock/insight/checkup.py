"""Looks at all that an app needs in its database: a check, from its tables over what was left
behind in rows to what its replicas say.

The one idea: each table is one short transaction that reads, and a part that the database refuses
costs that part alone. So a table that a migration has to itself, a right that is lacking and a
table that is not there are findings, and no errors.

A column of rowlock's is compared by what matters to a claim: the kind of its type, its length and
whether it takes a null. Of the host's own columns only those are told that are not there at all,
since each claim reads them. Whether an index serves a claim was asked of the planner
(``claim_plan.py``), so no condition is compared as text here.

No index finds rows that were left behind, and none may (a heartbeat would write it). So only the
newest rows are looked at, by their key, and the answer says how many.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias

from sqlalchemy import Column, Connection, Dialect, Table, and_, case, func, inspect, or_, select
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import NullType

from rowlock import database_now
from rowlock.insight.asking import AwayDatabase, ask_part, whole_else_apart
from rowlock.insight.claim_plan import OWN_PREFIX, ClaimSeen, claim_seen
from rowlock.insight.findings import Finding, IndexWanted, Level, index_of
from rowlock.insight.insight_dialect import INSIGHT, TableSeen
from rowlock.insight.migrations import CONTROLS, REPLICAS
from rowlock.insight.questions import RowAsked, has_parked_index, left_in
from rowlock.insight.replicas import LiveReplicas, ReplicaState
from rowlock.insight.shown import duration, lasting, shown
from rowlock.insight.tables import InsightTables
from rowlock.insight.verdicts import Refused, TableLock, ended, transaction_text
from rowlock.migrations import FILLFACTOR
from rowlock.spi import (
    LOCK_COLUMNS,
    OWNER_SEPARATOR,
    SCHEDULE_COLUMNS,
    IndexSeen,
    LeasedTable,
    database_time_after,
    due_indexes,
    heartbeat_problems,
    indexes_of,
    unserved,
)

# ---------------------------------------------------------------- a look at one table


async def look_at_table(connection: AsyncConnection, table: Table) -> TableSeen | None:
    """Return the table as it is; None if there is none. Joins the caller's transaction."""

    def look(connection: Connection) -> Any:
        return inspect(connection).get_columns(table.name, schema=table.schema)

    try:
        found = await connection.run_sync(look)
    except NoSuchTableError:
        return None
    indexes = await connection.run_sync(indexes_of, table)
    storage = await INSIGHT.of(connection).storage(connection, table)
    return TableSeen({column["name"]: column for column in found}, indexes, storage)


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
    """A table as it should be: claims read all its columns, and rowlock keeps the `own` ones; with
    the questions for each pipeline that claims from it.
    """

    table: Table
    own: Collection[str]
    dialect: Dialect
    asked: Sequence[RowAsked] = ()

    @property
    def name(self) -> str:
        return self.table.fullname


def column_findings(wanted: TableWanted, seen: TableSeen) -> list[Finding]:
    found = []
    for column in wanted.table.columns:
        there = seen.columns.get(column.name)
        if there is None:
            found.append(_missing_column(wanted, column))
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


def _differences(
    wanted: TableWanted, column: Column[Any], there: ReflectedColumn
) -> Iterable[Finding]:
    yield from _type_findings(wanted, column, there)
    name, takes_null = f"column {column.name}", bool(column.nullable)
    is_filled = there["default"] is not None or there.get("identity") or there.get("computed")
    if there["nullable"] and not takes_null:
        yield Finding(
            wanted.name, Level.BAD, f"{name} may be null: {NEVER_CLAIMED}", "set it NOT NULL"
        )
    elif takes_null and not there["nullable"]:
        what = f"{name} takes no null, and null means that there is none"
        yield Finding(wanted.name, Level.BAD, what, "let it be null")
    elif not (takes_null or is_filled) and _has_default(column):
        what = f"{name} has no default: rows that others insert without it are refused"
        yield Finding(wanted.name, Level.WARN, what, "give it the model's")


def _has_default(column: Column[Any]) -> bool:
    return getattr(column.server_default, "arg", None) is not None


def _type_findings(
    wanted: TableWanted, column: Column[Any], there: ReflectedColumn
) -> Iterable[Finding]:
    if isinstance(column.type, NullType):
        return
    should, is_there = (one.compile(dialect=wanted.dialect) for one in (column.type, there["type"]))
    kinds = kind_of(should), kind_of(is_there)
    is_same = kinds[0] == kinds[1] or kinds in _SAME_KINDS
    lengths = [_length(should), _length(is_there)]
    if is_same and (lengths[1] is None or (lengths[0] or 0) <= lengths[1]):
        return
    what = (
        f"column {column.name} holds {lengths[1]} characters, the model says {lengths[0] or 'any'}"
        if is_same
        else f"column {column.name} is {kinds[1]} ({is_there}), not {kinds[0]}"
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
_PARTIAL: Final = re.compile(r"\bWHERE\b", re.IGNORECASE)


def claim_findings(
    wanted: TableWanted, seen: TableSeen, claims: Sequence[ClaimSeen]
) -> Iterable[Finding]:
    """Return what is wrong with the indexes of claims, and with the storage of the table."""
    leased = wanted.asked[0].question.leased
    for problem in heartbeat_problems(leased, seen.indexes):
        yield Finding(wanted.name, Level.BAD, *problem)
    taken = {claim.served_by for claim in claims if claim.served_by is not None}
    for claim in claims:
        serving = next((one for one in seen.indexes if one.name == claim.served_by), None)
        if claim.refused:
            what = "cannot be looked at now" if claim.may_pass else "is refused"
            yield Finding(claim.pipeline, Level.BAD, f"its claim {what}: {claim.refused}")
        elif claim.wanted is not None and serving is None:
            what = unserved(claim.pipeline, leased, seen.indexes, taken=taken)
            remedy = _remedy(wanted, claim.pipeline, claim.wanted, taken=taken)
            yield Finding(wanted.name, Level.BAD, what, remedy)
            taken.add(claim.wanted.name)
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
    # The tables of streams are ours: flows say themselves which of their shards are parked.
    is_ours = wanted.table.name.startswith(STREAM_PREFIX)
    if leased.has_schedule and not is_ours and not has_parked_index(leased):
        what = "its parked rows are neither counted nor found in order: no index has them"
        yield Finding(wanted.name, Level.NOTE, what, f"parked_index({leased.name})")


def index_findings(wanted: TableWanted, seen: TableSeen) -> Iterable[Finding]:
    """Return the missing indexes of the model, those of claims apart, and the invalid ones."""
    there, of_claims = {index.name for index in seen.indexes}, due_indexes(wanted.table)
    for index in sorted(wanted.table.indexes, key=lambda one: str(one.name)):
        lacks = [part.name for part in index.columns if part.name not in seen.columns]
        if index.name not in there and index not in of_claims and not lacks:
            yield _missing_index(wanted, index_of(index, wanted.dialect))
    for one in seen.indexes:
        if not one.is_valid and not one.is_being_built:
            what = (
                f"index {one.name} is invalid: its CREATE INDEX CONCURRENTLY failed, so each write"
                " keeps it up and no claim reads it"
            )
            yield Finding(wanted.name, Level.BAD, what, "build it again, or drop it")


def _remedy(
    wanted: TableWanted, pipeline: str, index: IndexWanted, *, taken: Collection[str]
) -> str:
    name, call = index.name, f"due_index({pipeline})"
    names = {str(one.name) for one in wanted.table.indexes}
    if name in taken or (name in names and not index.is_declared):
        name = f"{name}_{pipeline.lower()}"[:63]
        call = f'due_index({pipeline}, name="{name}")'
    declare = "" if index.is_declared else f"write {call} below the class, for Alembic, or "
    return f"{declare}add {name} ON {wanted.name} {index.text}"


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


def _missing_index(wanted: TableWanted, index: IndexWanted) -> Finding:
    level = Level.BAD if index.is_unique else Level.WARN
    kind = "unique index" if index.is_unique else "index"
    return Finding(
        wanted.name,
        level,
        f"{kind} {index.name} of the model is not in the database",
        f"add {index.name} ON {wanted.name} {index.text}",
    )


# ---------------------------------------------------------------- what was left behind


LOOKED_MAX: Final = 100_000
"""Among how many rows, the newest by their key, leftovers are looked for."""
OWNERS_MAX: Final = 200
LONG_AGO: Final = timedelta(minutes=10)
"""A lease that ended before is left over: replicas take over within seconds."""
NAMES_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class OwnerSeen:
    """Rows of one owner: `kept` without a lease, or with a lease that `ended` long ago."""

    owner: str | None
    kept: int
    ended: int
    ended_s: float


async def look_for_leftovers(
    connection: AsyncConnection, leased: LeasedTable
) -> tuple[OwnerSeen, ...]:
    """Look for leftovers in the newest rows; joins the caller's transaction."""
    attribute = leased.attribute
    newest = (
        select(
            attribute("lock_owner").label("owner"),
            attribute("lock_token").label("token"),
            attribute("lock_expires_at").label("expires_at"),
        )
        .order_by(attribute(leased.key_name).desc())
        .limit(LOOKED_MAX)
        .subquery()
    )
    columns = newest.c
    is_kept = and_(columns.owner.is_not(None), columns.token.is_(None))
    has_ended = columns.expires_at <= database_time_after(-LONG_AGO)
    ended_at = case((has_ended, columns.expires_at))
    statement = (
        select(
            columns.owner,
            func.sum(case((is_kept, 1), else_=0)),
            func.sum(case((has_ended, 1), else_=0)),
            database_now(),
            func.min(ended_at, type_=columns.expires_at.type),
        )
        .where(or_(is_kept, has_ended))
        .group_by(columns.owner)
        .limit(OWNERS_MAX)
    )
    return tuple(
        OwnerSeen(
            None if owner is None else str(owner),
            int(kept),
            int(ended),
            0.0 if first is None else (now - first).total_seconds(),
        )
        for owner, kept, ended, now, first in (await connection.execute(statement)).all()
    )


def leftover_findings(
    table: str, owners: Sequence[OwnerSeen], pipelines: Collection[str]
) -> Iterable[Finding]:
    # What follows the separator says for what a pipeline or a service holds the row.
    known = {one for one in owners if (one.owner or "").partition(OWNER_SEPARATOR)[0] in pipelines}
    unknown = [one for one in owners if one.kept and one not in known]
    if unknown:
        rows = sum(one.kept for one in unknown)
        names = ", ".join(shown(one.owner, 60) for one in unknown[:NAMES_SHOWN])
        more = f" and {len(unknown) - NAMES_SHOWN} more" if len(unknown) > NAMES_SHOWN else ""
        yield Finding(
            table,
            Level.WARN,
            f"{_rows(rows)} kept for {names}{more}, which this app does not have",
            'the next sweep frees them, or: rowlock release MODEL ID --reason "..."',
        )
    ended = [one for one in owners if one.ended]
    if ended:
        rows = sum(one.ended for one in ended)
        oldest = duration(max(one.ended_s for one in ended))
        yield Finding(
            table,
            Level.WARN,
            f"{_rows(rows)} left with a lease that ended up to {oldest} ago",
            "a replica that runs takes them over or sweeps them: rowlock status",
        )


def _rows(count: int) -> str:
    return "1 row is" if count == 1 else f"{count:,} rows are"


# ---------------------------------------------------------------- what replicas report


LATE_S_MIN: Final = 5.0  # loops that are later than this are reported, in seconds
LAG_S_MIN: Final = 0.5  # longer stalls of the event loop are reported, in seconds
SKEW_S_MIN: Final = 2.0  # larger differences from the database's clock are reported, in seconds
LOOPS_MAX: Final = 100


def _of_replica(replica: ReplicaState) -> Iterable[Finding]:
    name = shown(replica.name, 60)
    late = [
        (pipeline, str(loop), _number(late_s))
        for pipeline, report in replica.pipelines.items()
        for loop, late_s in _mapping(report.get("late_s") if isinstance(report, dict) else None)
    ]
    for pipeline, loop, late_s in [one for one in late if one[2] > LATE_S_MIN][:LOOPS_MAX]:
        what = f"the {shown(loop, 60)} of {name} is {duration(late_s)} late"
        remedy = "look for host code that blocks the event loop, and for a pool that is too small"
        yield Finding(shown(pipeline, 60), Level.WARN, what, remedy)
    lag_s = _number(replica.report.get("lag_s"))
    if lag_s > LAG_S_MIN:
        what = f"the event loop stands still for {lag_s:.1f} s"
        remedy = "run what blocks it in a thread: a plain def process"
        yield Finding(name, Level.WARN, what, remedy)
    skew_s = _number(replica.report.get("skew_s"))
    if abs(skew_s) > SKEW_S_MIN:
        which = "ahead of" if skew_s > 0 else "behind"
        what = f"the clock is {duration(abs(skew_s))} {which} the database's"
        remedy = "no lease goes by it, but times in logs do: synchronise it"
        yield Finding(name, Level.WARN, what, remedy)
    told = dict(_mapping(replica.report.get("history")))
    waiting, dropped = int(_number(told.get("waiting"))), int(_number(told.get("dropped")))
    if told.get("failing"):
        what = f"the history cannot be written: {waiting:,} entries wait, {dropped:,} are lost"
        remedy = "its log says why; no row is harmed, and timelines show the gap"
        yield Finding(name, Level.WARN, what, remedy)
    elif dropped:
        what = f"{dropped:,} entries of the history were lost since it started"
        yield Finding(name, Level.WARN, what, "its log says why; timelines show the gap")


def _mapping(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


STREAM_PREFIX: Final = "rowlock_stream_"
STREAM_KEY: Final = "rowlock_stream_key"
"""Where the table of a stream says which of its columns is the key."""
WORK_NAMES: Final = frozenset(
    {
        *("dedup_key", "status", "submitted_at", "started_at", "finished_at", "worker"),
        *("progress", "stages", "losses", "error", "superseded_by"),
    }
)
"""Columns of dispatched rows."""
EVENT_COLUMNS: Final = ("position", "bucket")
TABLES_MAX: Final = 1_000
TableOf: TypeAlias = tuple[Table, list[RowAsked]]
"""A table, and the questions for each pipeline that claims from it."""


def table_checks(
    read: Callable[..., Awaitable[Any]], asked: Sequence[RowAsked], pipelines: Sequence[str]
) -> list[Callable[[], Awaitable[list[Finding]]]]:
    """Return a question for each table of one database; `pipelines` are all names of the app."""
    return [
        partial(
            whole_else_apart,
            partial(read, leased, partial(_findings_of, of=table, pipelines=pipelines)),
        )
        for table, leased in _tables_of(asked)[:TABLES_MAX]
    ]


def beside_tables(tables: InsightTables | None, replicas: LiveReplicas) -> list[Finding]:
    told = [finding for replica in replicas.live for finding in _of_replica(replica)]
    return [*_without(tables), *told]


def not_looked_at(away: AwayDatabase) -> Finding:
    return Finding(away.database, Level.BAD, away.what, away.unseen)


def _tables_of(asked: Sequence[RowAsked]) -> list[tuple[TableOf, LeasedTable]]:
    claimed: dict[Table, list[RowAsked]] = {}
    for one in asked:
        claimed.setdefault(one.question.leased.table, []).append(one)
    beside = {
        table: group[0].question.leased
        for claimed_table, group in claimed.items()
        for table in claimed_table.metadata.sorted_tables
        if table not in claimed and (table.name.startswith(OWN_PREFIX) or STREAM_KEY in vars(table))
    }
    return [
        *(((table, group), group[0].question.leased) for table, group in claimed.items()),
        *(((table, []), leased) for table, leased in beside.items()),
    ]


async def _findings_of(
    connection: AsyncConnection, *, of: TableOf, pipelines: Sequence[str], apart: bool
) -> list[Finding]:
    wanted, dialect = _wanted(*of, connection.dialect), INSIGHT.of(connection)
    table, name = wanted.table, wanted.name
    ask_lock = partial(dialect.table_lock, connection, (table,))
    lock = await ask_part(connection, ask_lock, apart=apart)
    if isinstance(lock, TableLock):
        by, does = lock.by, "has locked" if lock.is_granted else "waits to lock"
        state = "" if by.state is None else f" ({by.state} {lasting(by.seconds)})"
        who = f"{transaction_text(by)}," if by.pid is None else f"pid {by.pid}{state}"
        what = f"not looked at: {who} {does} the table for itself"
        return [Finding(name, Level.BAD, what, ended(by, "wait for it, or"))]
    seen = await ask_part(connection, partial(look_at_table, connection, table), apart=apart)
    if isinstance(seen, Refused):
        return [_refused(name, "the table", seen)]
    if seen is None:
        return [_absent(wanted)]
    found = [*column_findings(wanted, seen), *index_findings(wanted, seen)]
    for by in await left_in(connection, table, apart=apart):
        what = f"{transaction_text(by)}, has rows of the table, which claims pass over"
        found.append(Finding(name, Level.BAD, what, ended(by, "end it")))
    if wanted.asked:
        claims = await _claims_seen(connection, wanted, seen, apart=apart)
        found += claim_findings(wanted, seen, claims)
        found += await _leftovers(connection, wanted, pipelines, apart=apart)
    return found


async def _claims_seen(
    connection: AsyncConnection, wanted: TableWanted, seen: TableSeen, *, apart: bool
) -> list[ClaimSeen]:
    is_alone = len(wanted.asked) == 1
    lacks = any(column.name not in seen.columns for column in wanted.table.columns)
    claims = []
    for one in wanted.asked:
        claim = await claim_seen(connection, one, seen.indexes, is_alone=is_alone, apart=apart)
        if lacks and claim.refused and one.failure is None:
            # Refused for the column that it lacks, which was told: so by the index's name.
            named = None if claim.wanted is None else claim.wanted.name
            there = named in {index.name for index in seen.indexes if index.is_valid}
            claim = ClaimSeen(claim.pipeline, named if there else None, claim.wanted)
        claims.append(claim)
    return claims


async def _leftovers(
    connection: AsyncConnection, wanted: TableWanted, pipelines: Sequence[str], *, apart: bool
) -> Iterable[Finding]:
    look = partial(look_for_leftovers, connection, wanted.asked[0].question.leased)
    owners = await ask_part(connection, look, apart=apart)
    if isinstance(owners, Refused):
        is_told = "column" in owners.why
        return [] if is_told else [_refused(wanted.name, "what was left behind", owners)]
    return leftover_findings(wanted.name, owners, pipelines)


def _wanted(table: Table, asked: Sequence[RowAsked], dialect: Dialect) -> TableWanted:
    everything = {column.name for column in table.columns}
    if table.name.startswith(OWN_PREFIX):
        return TableWanted(table, everything, dialect, asked)
    own = set(EVENT_COLUMNS) if STREAM_KEY in vars(table) else set[str]()
    for one in asked:
        leased = one.question.leased
        names = [*LOCK_COLUMNS, *(SCHEDULE_COLUMNS if leased.has_schedule else ())]
        own |= {leased.column(name).name for name in names}
        own |= WORK_NAMES if one.is_dispatched else set()
    return TableWanted(table, own & everything, dialect, asked)


def _absent(wanted: TableWanted) -> Finding:
    table = wanted.table
    if table.name.startswith(STREAM_PREFIX):
        remedy = "add_stream_tables(op), of rowlock.streams, makes it"
    else:
        is_own = table.name.startswith(OWN_PREFIX)
        step = "add_insight_tables(op, ...), of rowlock.insight.migrations, makes it"
        remedy = step if is_own else "run the migrations of the app"
    return Finding(wanted.name, Level.BAD, "the table is not in the database", remedy)


def _refused(name: str, part: str, refused: Refused) -> Finding:
    return Finding(name, Level.BAD, f"{part} could not be looked at: {shown(refused.why)}")


def _without(tables: InsightTables | None) -> Iterable[Finding]:
    for name, field, costs in (
        (REPLICAS, "replicas", "nobody knows which replicas run what"),
        (CONTROLS, "controls", "no pipeline can be paused"),
    ):
        if tables is None or getattr(tables, field) is None:
            what = f"without this table {costs}"
            yield Finding(name, Level.NOTE, what, "insight_tables(metadata)")
