"""What is asked of the database about one row, and how a part that it refuses costs that part
alone.

The one idea: the condition of a claim, part by part, as columns of one SELECT by the key. The parts
are those of the claim itself, so an answer cannot say anything else than what a claim sees. Nothing
is locked: a locked row is one that the next claim passes over.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import partial
from operator import and_ as is_and
from typing import Any, Final, TypeVar

from sqlalchemy import (
    BigInteger,
    BooleanClauseList,
    Column,
    ColumnElement,
    Dialect,
    Integer,
    and_,
    case,
    func,
    literal,
    or_,
    select,
    true,
    type_coerce,
)
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import visitors
from sqlalchemy.sql.operators import and_ as and_operator

from rowlock import database_now
from rowlock.errors import describe
from rowlock.insight.dialects.insight_dialect import is_locked_out
from rowlock.insight.headlines import PLACES_MAX
from rowlock.insight.shown import shown
from rowlock.insight.verdicts import Conjunct, Refused
from rowlock.rows.eligibility import is_awaiting
from rowlock.spi import (
    LOCK_COLUMNS,
    SCHEDULE_COLUMNS,
    EligibleParts,
    LeasedTable,
    LockingPipeline,
    is_outage,
    is_transient,
    oldest_first,
    order_column,
    with_zone,
)

T = TypeVar("T")

TEXT_CHARS_MAX: Final = 120
"""Most characters of a condition that are shown."""
VALUE_CHARS_MAX: Final = 60
CONJUNCTS_MAX: Final = 20
"""How many parts of `ready` are asked one by one; the others stand in its text alone."""
NAMED_MAX: Final = 8
"""How many columns are shown beside one of them."""
HELD_MAX: Final = 10_000
"""Among how many rows, the first in the order of claims, a live lease is looked for."""
FALSE, TRUE, NULL = 0, 1, 2
_CLASSES: Final = re.compile(r"^\w+: (?:\([\w.]+\) ?)?(?:<class '[\w.]+'>: )?")
"""What stands in front of a database's own words: the classes of SQLAlchemy and of the driver."""


@dataclass(frozen=True, slots=True)
class RowQuestion:
    """One row, as one pipeline sees it.

    `locking` is in the order of `parts.unawaited`; columns in `hidden` show no value, and those in
    `beside` are shown whatever `ready` names.
    """

    leased: LeasedTable
    key: Any
    owner: str
    parts: EligibleParts
    locking: Sequence[LockingPipeline]
    hidden: frozenset[Column[Any]]
    beside: Sequence[Column[Any]]
    dialect: Dialect

    @property
    def kept_names(self) -> tuple[str, ...]:
        return (*LOCK_COLUMNS, *(SCHEDULE_COLUMNS if self.leased.has_schedule else ()))

    @property
    def is_it(self) -> ColumnElement[bool]:
        """The row has this key, which may be a number that its column does not hold."""
        is_number = isinstance(self.leased.key.type, Integer) and isinstance(self.key, int)
        column = self.leased.attribute(self.leased.key_name)
        return column == (literal(self.key, BigInteger) if is_number else self.key)

    def asked(self) -> dict[str, ColumnElement[Any]]:
        """Return all columns of the SELECT, by names of ours."""
        kept: dict[str, Any] = {name: self.leased.attribute(name) for name in self.kept_names}
        parts = {
            "ready": self.parts.ready,
            "free": self.parts.free,
            "mine": self.parts.mine,
            "due": self.parts.due,
            "seen": self.parts.seen,
        }
        parts |= {f"unawaited {number}": part for number, part in enumerate(self.parts.unawaited)}
        parts |= {f"gate {number}": part for number, part in enumerate(self.parts.gates)}
        return {
            "now": database_now(),
            **{f"kept {name}": column for name, column in kept.items()},
            **{f"part {name}": case((part, TRUE), else_=FALSE) for name, part in parts.items()},
            **{
                f"conjunct {number}": _three_valued(part)
                for number, part in enumerate(self.conjuncts)
            },
            **{f"value {column.key}": column for column in self.shown_columns},
        }

    @property
    def conjuncts(self) -> tuple[ColumnElement[bool], ...]:
        return conjuncts_of(self.parts.ready)[:CONJUNCTS_MAX]

    @property
    def shown_columns(self) -> tuple[Column[Any], ...]:
        named = [column for part in self.conjuncts for column in self.named(part)]
        return tuple(dict.fromkeys([*named, *self.beside]))

    def named(self, part: ColumnElement[bool]) -> list[Column[Any]]:
        """Return the columns of the table that a part of `ready` names."""
        found = [
            column
            for column in self.leased.table.columns
            if any(column.shares_lineage(each) for each in _columns_in(part))
        ]
        return [column for column in found if column not in self.hidden][:NAMED_MAX]

    def text(self, condition: ColumnElement[Any]) -> str:
        """Return a condition as SQL, with its values unless it names a hidden column."""
        hides = any(
            column.shares_lineage(each) for column in self.hidden for each in _columns_in(condition)
        )
        return condition_text(condition, self.dialect, with_values=not hides)

    def conjuncts_read(self, answers: Mapping[str, Any]) -> tuple[Conjunct, ...]:
        read = []
        for number, part in enumerate(self.conjuncts):
            answer = answers.get(f"conjunct {number}")
            holds = (
                answer
                if isinstance(answer, Refused)
                else {FALSE: False, TRUE: True}.get(answer if answer is not None else NULL)
            )
            values = "; ".join(
                f"{column.name} is {value_text(answers.get(f'value {column.key}'))}"
                for column in self.named(part)
            )
            read.append(Conjunct(self.text(part), holds, values))
        return tuple(read)

    def kept_read(self, answers: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: with_zone(answers.get(f"kept {name}"), self.leased.column(name))
            for name in self.kept_names
        }


async def ask_row(
    connection: AsyncConnection,
    columns: Mapping[str, ColumnElement[Any]],
    where: ColumnElement[bool],
    *,
    apart: bool,
) -> dict[str, Any] | None:
    """Return the columns of the one row that meets `where`; None if there is none.

    With `apart`, each column is asked under a savepoint of its own, and one that the database
    refuses is a `Refused`; otherwise a refusal raises.
    """
    if not apart:
        found = (await connection.execute(_labelled(columns, where))).first()
        return None if found is None else dict(zip(columns, found, strict=True))
    there = await ask_value(connection, select(func.count()).where(where), apart=True)
    if not isinstance(there, Refused) and not there:
        return None
    return {
        name: await ask_value(connection, _labelled({name: column}, where), apart=True)
        for name, column in columns.items()
    }


async def ask_value(connection: AsyncConnection, statement: Any, *, apart: bool) -> Any:
    """Return the first column of the first row; None if there is no row; `apart` as for
    `ask_row`.
    """
    found = await ask_first(connection, statement, apart=apart)
    return found if found is None or isinstance(found, Refused) else found[0]


async def ask_first(connection: AsyncConnection, statement: Any, *, apart: bool) -> Any:
    """Return the first row; None if there is none; `apart` as for `ask_row`."""
    return await ask_part(connection, partial(_first, connection, statement), apart=apart)


async def _first(connection: AsyncConnection, statement: Any) -> Any:
    return (await connection.execute(statement)).first()


async def ask_part(
    connection: AsyncConnection, ask: Callable[[], Awaitable[Any]], *, apart: bool
) -> Any:
    """Return the answer of `ask`, in the transaction of the connection; `apart` as for
    `ask_row`.
    """
    if not apart:
        return await ask()
    try:
        async with connection.begin_nested():
            return await ask()
    except Exception as error:
        if not is_of_a_statement(error):
            raise
        return Refused(refusal_of(error), may_pass=is_transient(error))


async def whole_else_apart(
    read: Callable[..., Awaitable[T]],
    *,
    part_timeout: Callable[[Exception], timedelta] | None = None,
) -> T:
    """Return the answer of `read` with ``apart=False``, which needs no savepoints.

    If a statement of that is refused, `read` is called again with ``apart=True``, and with the
    ``statement_timeout`` that `part_timeout` gives for the error.
    """
    try:
        return await read(apart=False)
    except Exception as error:
        if not is_of_a_statement(error):
            raise
        shorter = {} if part_timeout is None else {"statement_timeout": part_timeout(error)}
    return await read(apart=True, **shorter)


def refusal_of(error: Exception) -> str:
    text = describe(error)
    return _CLASSES.sub("", text) if isinstance(error, DBAPIError) else text


def is_of_a_statement(error: BaseException) -> bool:
    """Whether `error` is of one statement, time-outs among them, so that the connection may answer
    the next.
    """
    if isinstance(error, DBAPIError):
        # Without one it was raised while the connection was made, or is that of its end.
        is_of_one = error.statement is not None and not error.connection_invalidated
        return is_of_one and not is_locked_out(error)
    # A LookupError is that of an Enum which lacks what stands in a row.
    of_a_value = ValueError | TypeError | ArithmeticError | LookupError
    return isinstance(error, SQLAlchemyError | of_a_value) and not is_outage(error)


def awaiting_row(question: RowQuestion, locking: LockingPipeline) -> Any:
    """Return the SELECT of the key and the time of a main row that comes back for this one."""
    main = locking.leased
    key, last = main.attribute(main.key_name), main.attribute("last_processed_at")
    return select(key, last).where(is_awaiting(locking), question.is_it).order_by(key).limit(1)


def place_of(question: RowQuestion) -> Any:
    """Return the SELECT of how many rows a claim would take before this one, to `PLACES_MAX` + 1.

    The first rows in the order of claims are read, and those before it are counted of these: a
    million may be due at one time, and no database looks only at those of them with lower keys.
    """
    leased = question.leased
    it, place, key = leased.table.alias(), order_column(leased), leased.key
    # Bound by its type: the bare value of a Boolean has no order in SQLAlchemy.
    given = literal(question.key, key.type)
    is_it = it.c[key.name] == given
    its_column = it.c[leased.column(place.key).name]
    its_place = select(its_column).where(is_it).scalar_subquery().correlate(None)
    # First: of two bounds of one column SQLite uses this one, and not that of what is due.
    bound = (place <= its_place,) if leased.has_schedule else ()
    first = (
        select(place.label("place"), key.label("key"))
        .where(*bound, question.parts.whole)
        .order_by(*oldest_first(leased))
        .limit(PLACES_MAX + 1)
        .subquery()
    ).c
    before = or_(
        first.place < its_place,
        and_(first.place == its_place, first.key < given),
        and_(first.place.is_(None), its_place.is_not(None)),
        and_(first.place.is_(None), its_place.is_(None), first.key < given),
    )
    return select(func.count()).where(before)


def lives_a_lease(question: RowQuestion) -> Any:
    """Return the SELECT of whether a live lease of the pipeline is among its first rows."""
    leased = question.leased
    # The index of claims has no parked rows; without this it would not serve.
    is_placed = leased.attribute("parked_at").is_(None) if leased.has_schedule else true()
    first = (
        select(leased.attribute("lock_owner"), leased.attribute("lock_expires_at"))
        .where(question.parts.ready, is_placed)
        .order_by(*oldest_first(leased))
        .limit(HELD_MAX)
        .subquery()
    )
    lives = and_(first.c[0] == question.owner, first.c[1] > database_now())
    return select(func.count()).select_from(select(literal(1)).where(lives).limit(1).subquery())


def _three_valued(part: ColumnElement[bool]) -> ColumnElement[Any]:
    # A host's text is true or not; only of an expression can it be asked whether it is null.
    is_null = [(part.is_(None), NULL)] if isinstance(part, ColumnElement) else []
    return case((part, TRUE), *is_null, else_=FALSE)


def conjuncts_of(condition: ColumnElement[bool]) -> tuple[ColumnElement[bool], ...]:
    """Return the clauses of the condition's top AND, those of an AND within it among them."""
    if isinstance(condition, BooleanClauseList) and condition.operator in {and_operator, is_and}:
        return tuple(part for clause in condition.clauses for part in conjuncts_of(clause))
    return (condition,)


def condition_text(
    condition: ColumnElement[Any], dialect: Dialect, *, with_values: bool = True
) -> str:
    for literal_binds in (True, False) if with_values else (False,):
        try:
            compiled = condition.compile(
                dialect=dialect,
                compile_kwargs={"include_table": False, "literal_binds": literal_binds},
            )
            return shown(" ".join(str(compiled).split()), TEXT_CHARS_MAX)
        # Values of some types have no text in SQL, and types of the host's raise what they like.
        except Exception:  # noqa: BLE001, S112
            continue
    return "a condition that has no text"


def value_text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, Refused):
        return "?"
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool | int | float):
        return shown(str(value).lower() if isinstance(value, bool) else value, VALUE_CHARS_MAX)
    return f"'{shown(value, VALUE_CHARS_MAX)}'"


def _columns_in(condition: ColumnElement[Any]) -> list[Column[Any]]:
    return [each for each in visitors.iterate(condition) if isinstance(each, Column)]


def _labelled(columns: Mapping[str, ColumnElement[Any]], where: ColumnElement[bool]) -> Any:
    labelled = [
        type_coerce(column, column.type).label(f"c{number}")
        for number, column in enumerate(columns.values())
    ]
    return select(*labelled).where(where)
