"""What can be known of a host's SQL expression without running it: its names, its identity, whether
it asks the row, and Python's ``and`` in it.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from sqlalchemy import BindParameter, ColumnElement
from sqlalchemy.orm.attributes import QueryableAttribute
from sqlalchemy.sql.elements import BinaryExpression
from sqlalchemy.sql.visitors import cloned_traverse, iterate

from rowlock.rows.assignments import cache_key_of
from rowlock.rows.leased_table import LeasedTable


def with_names_of_its_own(condition: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return `condition` with unique names for parameters that the host has named."""
    elements = [*iterate(condition)]
    # What `params()` of a subquery has set finds its parameter by the name alone.
    if any(getattr(one, "_params", None) for one in elements) or all(
        one.unique for one in elements if isinstance(one, BindParameter)
    ):
        return condition
    # As `params()` of a statement makes its copy.
    how = {"maintain_key": True, "detect_subquery_cols": True}
    return cloned_traverse(condition, how, {"bindparam": BindParameter._convert_to_unique})


# `ready` may build another pipeline, which asks its own `ready`.
_lock = threading.RLock()
_JUMPS = ("JUMP_IF", "POP_JUMP", "TO_BOOL", "UNARY_NOT")
# The bit of a comparison's argument by which it asks for the truth itself.
_ASKED_BY_COMPARISON = 16 if sys.version_info >= (3, 13) else 0


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


def of_no_row(
    leased: LeasedTable, conditions: Iterable[ColumnElement[bool]]
) -> tuple[ColumnElement[bool], ...]:
    """Return those of `conditions` that mention no column: the same for all rows."""

    # By its name: columns of mapped classes are annotated copies.
    def mentions(condition: ColumnElement[bool]) -> bool:
        tables = (getattr(element, "table", None) for element in iterate(condition))
        return any(getattr(table, "fullname", None) == leased.table.fullname for table in tables)

    return tuple(one for one in conditions if not mentions(one))


def fingerprint_of(condition: ColumnElement[Any]) -> object:
    """Return what `condition` says to a database; None if that cannot be told."""
    key = cache_key_of(condition)
    if key is None or any(one.callable is not None for one in key.bindparams):
        return None
    # Equal values may be sent differently: True and 1 within JSON, times in two zones.
    return key.key, [(type(one.value), one.value, repr(one.value)) for one in key.bindparams]


def is_same(fingerprints: Sequence[object], before: Sequence[object]) -> bool:
    try:
        return None not in fingerprints and fingerprints == before
    except Exception:  # noqa: BLE001 - an array's comparison with another has no truth: in doubt, no
        return False
