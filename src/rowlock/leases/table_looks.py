"""A leased table as it is in the database: its indexes and which of them serves a claim, and
whether the times of a lease have a zone. What a start, a check and autogenerate say of an index is
found here.

Whether an index can serve is asked of the database's own planner, for a statement like the claim.
Only the planner knows which conditions imply which.

The trap: a table that was not migrated may have times without a zone, which PostgreSQL compares by
the zone of the session. Rows that were written in UTC would wait for hours, or be taken from their
holders.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, Select, Table, literal_column, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ClauseElement, Executable

from rowlock.dialects.contract import LEASES, ROWS
from rowlock.errors import ModelError
from rowlock.leases.claim_request import ClaimRequest
from rowlock.rows.eligibility import oldest_first, order_column
from rowlock.rows.indexes import STRING
from rowlock.rows.leased_table import CLEARED_COLUMNS, LeasedTable, keeps_time

_WITHOUT_ZONE = "timestamp without time zone"


async def check_table(connection: AsyncConnection, leased: LeasedTable) -> None:
    """Note whether the rows of a table have places; `ModelError` if a time that rowlock keeps in it
    has no zone.
    """
    times = [leased.column(name) for name in leased.lease_columns]
    times = [column for column in times if keeps_time(column.type)]
    types = select(*map(ROWS.of(connection).type_of, times))
    naive = [
        column.name
        for column, type_ in zip(times, (await connection.execute(types)).one(), strict=True)
        if type_ == _WITHOUT_ZONE
    ]
    if naive:
        raise ModelError(
            f"{leased.table.fullname} has times without a zone in the database:"
            f" {', '.join(naive)}; make each a TIMESTAMP WITH TIME ZONE, by a migration",
            model=leased.name,
            column=naive[0],
        )
    leased.has_places = await LEASES.of(connection).has_places(connection, leased)


# ---------------------------------------------------------------- plans


AnswerT = TypeVar("AnswerT")
Query: TypeAlias = "str | Select[Any]"
"""A SELECT with its values in its text, or bound where types have no literals."""


def planned(
    connection: Connection, query: Select[Any], ask: Callable[[Connection, Query], AnswerT]
) -> AnswerT:
    """Return what `ask` learns of the plan of a SELECT: first with its values in the text, since an
    index of some rows is compared with them; then with its values bound, as a claim has them: some
    types have no literals, and a literal may be of another type than its value.
    """
    spellings: list[Query] = [query]
    # Types of the host's raise what they like.
    with suppress(Exception):
        how = {"literal_binds": True}
        spellings.insert(0, str(query.compile(dialect=connection.dialect, compile_kwargs=how)))
    while True:
        try:
            with connection.begin_nested():
                return ask(connection, spellings.pop(0))
        except DBAPIError:
            if not spellings:
                raise


class _Explained(Executable, ClauseElement):
    inherit_cache = False

    def __init__(self, query: Select[Any], prefix: str, instead: tuple[str, str]) -> None:
        self.query, self.prefix, self.instead = query, prefix, instead


@compiles(_Explained)
def _compiled(element: _Explained, compiler: Any, **how: Any) -> str:
    text: str = compiler.process(element.query, **how)
    return element.prefix + text.replace(*element.instead, 1)


def plan_of(
    connection: Connection, query: Query, *, prefix: str, instead: tuple[str, str] = ("", "")
) -> Sequence[Row[Any]]:
    """Return the database's plan of `query`, which `prefix` asks for, with the first text of
    `instead` replaced by the second.
    """
    if isinstance(query, str):
        return connection.exec_driver_sql(prefix + query.replace(*instead, 1)).all()
    return connection.execute(_Explained(query, prefix, instead)).all()


# ---------------------------------------------------------------- indexes


INDEXES_MAX: Final = 20  # most indexes of which it is asked whether they serve


@dataclass(frozen=True, slots=True)
class IndexSeen:
    """An index other than that of the primary key; `body` is its columns and condition."""

    name: str
    body: str
    is_valid: bool = True
    is_constraint: bool = False
    is_being_built: bool = False


class Problem(NamedTuple):
    """What is wrong with an index of a table, and what to do."""

    what: str
    remedy: str


def indexes_of(connection: Connection, table: Table) -> tuple[IndexSeen, ...]:
    return LEASES.on(connection.dialect.name).indexes(connection, table)


def claim_query(leased: LeasedTable, eligible: ColumnElement[bool]) -> Select[Any]:
    """Return a SELECT like a claim of the rows that are `eligible`."""
    query: Select[Any] = select(literal_column("1")).select_from(leased.table).where(eligible)
    return query.order_by(*oldest_first(leased)).limit(1)


def serving_index(
    connection: Connection,
    table: Table,
    query: Select[Any],
    *,
    indexes: Iterable[IndexSeen],
    place: str,
) -> str | None:
    """Return the index that serves `query`, a SELECT of a table which is ordered by the column
    `place`; the transaction writes nothing after.
    """
    names = [one.name for one in indexes if one.is_valid and place in one.body][:INDEXES_MAX]
    serving = LEASES.on(connection.dialect.name).serving
    return planned(connection, query, partial(serving, table=table, names=names))


async def claim_problems(
    connection: AsyncConnection, pipeline: str, request: ClaimRequest
) -> list[Problem]:
    """The transaction writes nothing after."""
    leased, table = request.leased, request.leased.table
    indexes = await connection.run_sync(indexes_of, table)
    problems = list(heartbeat_problems(leased, indexes))
    ask = partial(serving_index, indexes=indexes, place=place_of(leased))
    if await connection.run_sync(ask, table, claim_query(leased, request.eligible)) is None:
        remedy = (
            f"each reads all rows of {table.name} until then: due_index({pipeline}), below the"
            " class, has Alembic write one (documentation: How to, Adopt in migrations)"
        )
        problems.append(Problem(unserved(pipeline, leased, indexes), remedy))
    return problems


def place_of(leased: LeasedTable) -> str:
    """Return the name of the column by which rows are claimed."""
    return leased.column(order_column(leased).key).name


def heartbeat_problems(leased: LeasedTable, indexes: Iterable[IndexSeen]) -> Iterator[Problem]:
    """Find the indexes that mention a lock column."""
    columns = [leased.column(name).name for name in CLEARED_COLUMNS]
    for index in indexes:
        # A value of the condition may say anything.
        spelt = STRING.sub("''", index.body)
        named = [one for one in columns if re.search(rf"\b{re.escape(one)}\b", spelt)]
        for column in named[:1]:
            yield Problem(
                f"index {index.name} contains {column}: every heartbeat writes every index (0 %"
                " heap-only)",
                "drop its constraint" if index.is_constraint else "drop it",
            )


def unserved(
    pipeline: str, leased: LeasedTable, indexes: Iterable[IndexSeen], *, taken: Collection[str] = ()
) -> str:
    """Return that no index serves the claims of a pipeline, and which look as if they would; those
    that are `taken` serve others.
    """
    begins = re.compile(rf'[^(]*\("?{re.escape(place_of(leased))}\b')
    useless = [
        one.name
        for one in indexes
        if one.is_valid and one.name not in taken and begins.match(one.body)
    ]
    since = f", since {', '.join(useless)} does not" if useless else ""
    return f"no index serves the claim of {pipeline}{since}"
