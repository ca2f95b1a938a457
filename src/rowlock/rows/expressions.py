"""What can be known of a host's SQL expression without running it: its names, its identity, whether
it asks the row, and Python's ``and`` in it; and reads that survive values that cannot be read.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias

from sqlalchemy import (
    BindParameter,
    Boolean,
    Column,
    ColumnElement,
    Date,
    DateTime,
    Dialect,
    Enum,
    Float,
    Integer,
    Interval,
    Numeric,
    String,
    Text,
    Time,
    Uuid,
    case,
    func,
    literal,
    literal_column,
    not_,
    null,
    or_,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm.attributes import QueryableAttribute
from sqlalchemy.sql.elements import BinaryExpression
from sqlalchemy.sql.visitors import cloned_traverse, iterate
from sqlalchemy.types import TypeEngine

from rowlock.rows.assignments import formula_of
from rowlock.rows.database_time import is_beyond_time, is_unreadable_time
from rowlock.rows.leased_table import LeasedTable

# ---------------------------------------------------------------- parameter names


def with_names_of_its_own(condition: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return `condition` with unique names for parameters that the host has named."""
    if all(element.unique for element in iterate(condition) if isinstance(element, BindParameter)):
        return condition
    # As `params()` of a statement makes its copy.
    how = {"maintain_key": True, "detect_subquery_cols": True}
    return cloned_traverse(condition, how, {"bindparam": BindParameter._convert_to_unique})


# ---------------------------------------------------------------- python booleans


# `ready` may build another pipeline, which asks its own `ready`.
_lock = threading.RLock()
_JUMPS = ("JUMP_IF", "POP_JUMP", "TO_BOOL", "UNARY_NOT")
_ASKED_BY_COMPARISON = 16 if sys.version_info >= (3, 13) else 0
"""The bit of a comparison's argument by which it asks for the truth itself."""


@contextmanager
def noted_booleans() -> Iterator[list[str]]:
    """Note each expression whose truth Python's own operators ask for, until the block ends."""
    noted: list[str] = []
    asks: Any = BinaryExpression.__bool__
    mine = threading.get_ident()

    def noting(asks: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def answer(expression: Any) -> bool:
            if threading.get_ident() == mine and _is_jump(sys._getframe(1)):
                noted.append(str(expression))
            return asks(expression)

        return answer

    with _lock:
        # Any object is true: mapped attributes do not say anything else themselves.
        BinaryExpression.__bool__ = noting(asks)  # type: ignore[assignment, method-assign, unused-ignore]
        QueryableAttribute.__bool__ = noting(lambda _: True)  # type: ignore[attr-defined]
        try:
            yield noted
        finally:
            BinaryExpression.__bool__ = asks  # type: ignore[method-assign, unused-ignore]
            # A block within this one has done so already.
            if "__bool__" in vars(QueryableAttribute):
                del QueryableAttribute.__bool__  # type: ignore[attr-defined]


def _is_jump(frame: FrameType) -> bool:
    if str(frame.f_globals.get("__name__", "")).partition(".")[0] == "sqlalchemy":
        return False
    code = frame.f_code.co_code
    operation, argument = dis.opname[code[frame.f_lasti]], code[frame.f_lasti + 1]
    if operation == "COMPARE_OP":
        return bool(argument & _ASKED_BY_COMPARISON)
    return any(jump in operation for jump in _JUMPS)


# ---------------------------------------------------------------- row free


def of_no_row(
    leased: LeasedTable, conditions: Iterable[ColumnElement[bool]]
) -> tuple[ColumnElement[bool], ...]:
    """Return those of `conditions` that mention no column: the same for all rows."""

    # By its name: columns of mapped classes are annotated copies.
    def mentions(condition: ColumnElement[bool]) -> bool:
        tables = (getattr(element, "table", None) for element in iterate(condition))
        return any(getattr(table, "fullname", None) == leased.table.fullname for table in tables)

    return tuple(one for one in conditions if not mentions(one))


# ---------------------------------------------------------------- fingerprint


Fingerprint: TypeAlias = tuple[Hashable, list[tuple[object, ...]]]


def fingerprint_of(condition: ColumnElement[Any], dialect: Dialect) -> Fingerprint | None:
    """Return what `condition` says to a database; None if values are asked for each time."""
    # To compile it takes four times as long.
    if isinstance(condition, ColumnElement) and (alike := formula_of(condition)) is not None:
        return alike[0].structure, [(type(value), value) for value in alike[1]]
    try:
        compiled: Any = condition.compile(dialect=dialect)
    except SQLAlchemyError:
        return None
    names: dict[BindParameter[Any], str] = compiled.bind_names
    if any(one.callable is not None for one in names):
        return None
    values = [(name, repr(one.type), type(one.value), one.value) for one, name in names.items()]
    return compiled.string, [*values]


def is_same(fingerprints: Iterable[object], before: Iterable[object]) -> bool:
    try:
        pairs = zip(fingerprints, before, strict=True)
        return all(one is not None and one == other for one, other in pairs)
    # Values of the host's own types are compared and may raise anything: in doubt, no.
    except Exception:  # noqa: BLE001
        return False


# ---------------------------------------------------------------- unreadable


CLAIMED_BYTES_MAX = 2**15
"""Largest value that a claim brings, in bytes; larger rows are read when work begins."""
TEXT_CHARS_MAX = 1000
"""A text of at most so many characters, by its type, is not asked for its size."""
_BOUNDED = (Boolean, Date, DateTime, Enum, Float, Integer, Interval, Numeric, Time, Uuid)


def times_read(leased: LeasedTable) -> dict[str, Column[Any]]:
    """Return columns of times read before they are written, by attribute name."""
    more = ("due_at", "deadline_at") if leased.has_schedule else ()
    return {name: leased.column(name) for name in ("last_processed_at", *more)}


def unreadable_column(leased: LeasedTable) -> ColumnElement[str | None]:
    """Return the attribute name of a column that cannot be read, as SQL; null if all can."""
    found = []
    for name, column in times_read(leased).items():
        unreadable: ColumnElement[bool] = is_unreadable_time(column)
        if not leased.has_schedule:
            # A stamp behind all times would make the row due for ever, and stay.
            unreadable = or_(unreadable, is_beyond_time(column))
        found.append((unreadable, literal(name, Text)))
    return case(*found, else_=null())


def if_readable(time: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((not_(is_unreadable_time(time)), time))


def may_be_large(type_: TypeEngine[Any]) -> bool:
    """`type_` is as the database resolves it."""
    length = getattr(type_, "length", None) if isinstance(type_, String) else None
    return not isinstance(type_, _BOUNDED) and not (length and length <= TEXT_CHARS_MAX)


def is_small(size: ColumnElement[int]) -> ColumnElement[bool]:
    """Return whether a value of `size`, null for none, comes with a claim."""
    return func.coalesce(size, 0) <= literal_column(str(CLAIMED_BYTES_MAX), Integer)
