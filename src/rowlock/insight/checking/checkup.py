"""Looks at all that an app needs in its database: a check, from its tables to what its replicas
say.

The one idea: each table is one short transaction that reads, and a part that the database refuses
costs that part alone. So a table that a migration has to itself, a right that is lacking and a
table that is not there are findings, and no errors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from sqlalchemy import Dialect, Table
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.insight.asking.databases import AwayDatabase
from rowlock.insight.asking.open_transactions import ended, transaction_text
from rowlock.insight.checking import code
from rowlock.insight.checking.claim_plan import OWN_PREFIX, claim_seen
from rowlock.insight.checking.columns import TableWanted, column_findings
from rowlock.insight.checking.finding import Finding, Level, Mend
from rowlock.insight.checking.indexes import ClaimedTable, claim_findings, index_findings
from rowlock.insight.checking.leftovers import leftover_findings, look_for_leftovers
from rowlock.insight.checking.reported import replica_findings
from rowlock.insight.checking.seen import TableSeen
from rowlock.insight.checking.table_look import look_at_table
from rowlock.insight.counting.counts import has_parked_index
from rowlock.insight.counting.replicas import LiveReplicas
from rowlock.insight.dialects.insight_dialect import INSIGHT
from rowlock.insight.facts import RowAsked, left_in
from rowlock.insight.migrations import CONTROLS, REPLICAS
from rowlock.insight.questions import ask_part, whole_else_apart
from rowlock.insight.shown import lasting, shown
from rowlock.insight.tables import InsightTables
from rowlock.insight.verdicts import Refused, TableLock, TouchingTransaction
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.model_check import CLEARED_COLUMNS, LOCK_COLUMNS, SCHEDULE_COLUMNS

STREAM_PREFIX: Final = "rowlock_stream_"
STREAM_KEY: Final = "rowlock_stream_key"
"""Where the table of a stream says which of its columns is the key."""
WORK_NAMES: Final = frozenset(
    {
        *("dedup_key", "status", "submitted_at", "started_at", "finished_at", "worker"),
        *("progress", "stages", "losses", "error", "superseded_by"),
    }
)
"""The columns of rows that are dispatched."""
EVENT_COLUMNS: Final = ("position", "bucket")
TABLES_MAX: Final = 1_000
"""Most tables that are looked at."""


class Reads(Protocol):
    """Runs a question in a transaction that reads, on the database of a table."""

    async def __call__(self, leased: LeasedTable, ask: Any, **how: Any) -> Any:
        """Return what `ask` gives, called with the connection, and what else is given."""
        ...


@dataclass(frozen=True, slots=True)
class TableAsked:
    """A table, and the pipelines that claim from it.

    Attributes:
        table: of the host's metadata.
        asked: what is asked for each pipeline; none for a table from which nobody claims.
    """

    table: Table
    asked: tuple[RowAsked, ...] = ()


def table_checks(
    read: Reads, asked: Sequence[RowAsked], pipelines: Sequence[str]
) -> list[Callable[[], Awaitable[list[Finding]]]]:
    """Return a question for each table of one database: what is to be mended; `asked` is one for
    each pipeline that works on it, `pipelines` are the names of all that the app has.
    """
    return [
        partial(
            whole_else_apart,
            partial(read, leased, partial(_findings_of, asked=one, pipelines=pipelines)),
        )
        for one, leased in _tables_of(asked)[:TABLES_MAX]
    ]


def beside_tables(tables: InsightTables | None, replicas: LiveReplicas) -> list[Finding]:
    """Return which optional tables the host does without, and what replicas report."""
    return [*_without(tables), *replica_findings(replicas)]


def not_looked_at(away: AwayDatabase) -> Finding:
    """Return that a database could not be asked: nothing in it was looked at."""
    return Finding(away.database, Level.BAD, away.what, away.unseen)


def _tables_of(asked: Sequence[RowAsked]) -> list[tuple[TableAsked, LeasedTable]]:
    claimed: dict[Table, list[RowAsked]] = {}
    for one in asked:
        claimed.setdefault(one.question.leased.table, []).append(one)
    found = [
        (TableAsked(table, tuple(group)), group[0].question.leased)
        for table, group in claimed.items()
    ]
    beside = {
        table: group[0].question.leased
        for claimed_table, group in claimed.items()
        for table in claimed_table.metadata.sorted_tables
        if table not in claimed and (table.name.startswith(OWN_PREFIX) or STREAM_KEY in vars(table))
    }
    return [*found, *((TableAsked(table), leased) for table, leased in beside.items())]


async def _findings_of(
    connection: AsyncConnection, *, asked: TableAsked, pipelines: Sequence[str], apart: bool
) -> list[Finding]:
    table, dialect = asked.table, INSIGHT.of(connection)
    name = table.fullname
    ask_lock = partial(dialect.table_lock, connection, (table,))
    lock = await ask_part(connection, ask_lock, apart=apart)
    if isinstance(lock, TableLock):
        return [_locked(name, lock)]
    seen = await ask_part(connection, partial(look_at_table, connection, table), apart=apart)
    if isinstance(seen, Refused):
        return [_refused(name, "the table", seen)]
    wanted = _wanted(asked, connection.dialect)
    if seen is None:
        return [_absent(wanted)]
    found = [*column_findings(wanted, seen), *index_findings(wanted, seen)]
    found += [_left(name, by) for by in await left_in(connection, table, apart=apart)]
    if asked.asked:
        found += await _claim_findings(connection, asked, wanted, seen=seen, apart=apart)
        found += await _leftovers(connection, asked, pipelines, apart=apart)
    return found


async def _claim_findings(
    connection: AsyncConnection,
    asked: TableAsked,
    wanted: TableWanted,
    *,
    seen: TableSeen,
    apart: bool,
) -> Iterable[Finding]:
    is_alone = len(asked.asked) == 1
    claims = [
        await claim_seen(connection, one, seen.indexes, is_alone=is_alone, apart=apart)
        for one in asked.asked
    ]
    lacks = [name for name in wanted.used if name not in seen.columns]
    if lacks:
        # The claim is refused for the column that it lacks, which was told.
        claims = [
            _by_name(claim, one, seen) for claim, one in zip(claims, asked.asked, strict=True)
        ]
    leased = asked.asked[0].question.leased
    cleared = [leased.column(name).name for name in CLEARED_COLUMNS]
    found = [*claim_findings(ClaimedTable(wanted, cleared, claims), seen)]
    # The tables of streams are ours: flows say themselves which of their shards are parked.
    is_ours = wanted.table.name.startswith(STREAM_PREFIX)
    if leased.has_schedule and not is_ours and not has_parked_index(leased):
        what = "its parked rows are neither counted nor found in order: no index has them"
        found.append(Finding(wanted.name, Level.NOTE, what, f"parked_index({leased.name})"))
    return found


def _by_name(claim: Any, asked: RowAsked, seen: TableSeen) -> Any:
    if asked.failure is not None or not claim.refused:
        return claim
    there = {index.name for index in seen.indexes if index.is_valid}
    named = None if claim.wanted is None else claim.wanted.name
    served_by = named if named in there else None
    return type(claim)(claim.pipeline, served_by, claim.wanted)


async def _leftovers(
    connection: AsyncConnection, asked: TableAsked, pipelines: Sequence[str], *, apart: bool
) -> Iterable[Finding]:
    leased, name = asked.asked[0].question.leased, asked.table.fullname
    owners = await ask_part(
        connection, partial(look_for_leftovers, connection, leased), apart=apart
    )
    if isinstance(owners, Refused):
        is_told = "column" in owners.why
        return [] if is_told else [_refused(name, "what was left behind", owners)]
    return leftover_findings(name, owners, pipelines)


def _wanted(asked: TableAsked, dialect: Dialect) -> TableWanted:
    table = asked.table
    everything = {column.name for column in table.columns}
    if table.name.startswith(OWN_PREFIX):
        return TableWanted(table, everything, everything, dialect)
    own = set(EVENT_COLUMNS) if STREAM_KEY in vars(table) else set[str]()
    for one in asked.asked:
        leased = one.question.leased
        names = [*LOCK_COLUMNS, *(SCHEDULE_COLUMNS if leased.has_schedule else ())]
        own |= {leased.column(name).name for name in names}
        own |= WORK_NAMES if one.is_dispatched else set()
    return TableWanted(table, own & everything, everything, dialect)


def _absent(wanted: TableWanted) -> Finding:
    table = wanted.table
    if table.name in {REPLICAS, CONTROLS}:
        columns = [
            code.column_code(column, wanted.dialect, with_key=True) for column in table.columns
        ]
        schema = code.schema_code(table)
        mend = Mend(
            (f"op.create_table({table.name!r}, {', '.join(columns)}{schema})",),
            (f"op.drop_table({table.name!r}{schema})",),
        )
        return Finding(
            wanted.name, Level.BAD, "the table is not in the database", "create it", (mend,)
        )
    if table.name.startswith(STREAM_PREFIX):
        remedy = "add_stream_tables(op), of rowlock.streams.migrations, makes it"
    else:
        is_own = table.name.startswith(OWN_PREFIX)
        step = "add_insight_tables(op, ...), of rowlock.insight.migrations, makes it"
        remedy = step if is_own else "run the migrations of the app"
    return Finding(wanted.name, Level.BAD, "the table is not in the database", remedy)


def _locked(name: str, lock: TableLock) -> Finding:
    by, does = lock.by, "has locked" if lock.is_granted else "waits to lock"
    state = "" if by.state is None else f" ({by.state} {lasting(by.seconds)})"
    who = f"{transaction_text(by)}," if by.pid is None else f"pid {by.pid}{state}"
    what = f"not looked at: {who} {does} the table for itself"
    return Finding(name, Level.BAD, what, ended(by, "wait for it, or"))


def _left(name: str, by: TouchingTransaction) -> Finding:
    what = f"{transaction_text(by)}, has rows of the table, which claims pass over"
    return Finding(name, Level.BAD, what, ended(by, "end it"))


def _refused(name: str, part: str, refused: Refused) -> Finding:
    return Finding(name, Level.BAD, f"{part} could not be looked at: {shown(refused.why)}")


def _without(tables: InsightTables | None) -> Iterable[Finding]:
    given: Mapping[str, Any] = {
        REPLICAS: None if tables is None else tables.replicas,
        CONTROLS: None if tables is None else tables.controls,
    }
    costs = {
        REPLICAS: "nobody knows which replicas run what",
        CONTROLS: "no pipeline can be paused",
    }
    return [
        Finding(name, Level.NOTE, f"without this table {costs[name]}", "insight_tables(metadata)")
        for name, table in given.items()
        if table is None
    ]
