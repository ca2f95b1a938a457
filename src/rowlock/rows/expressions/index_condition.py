"""What of a pipeline's `ready` the condition of an index can say.

The one idea: a claim uses an index whose condition is weaker than its own. So a part of `ready`
that no index can hold, because it asks another table or the clock, is left out, and the index holds
a few rows more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import ARRAY, BindParameter, ColumnElement, Table, and_, cast
from sqlalchemy.orm import Mapper
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.elements import BooleanClauseList, ColumnClause, Grouping
from sqlalchemy.sql.functions import Function, FunctionElement
from sqlalchemy.sql.selectable import SelectBase

from rowlock.errors import ModelError
from rowlock.rows.model_check import CLEARED_COLUMNS

_UNSTABLE = frozenset(
    {
        *("now", "current_timestamp", "current_date", "current_time", "localtimestamp"),
        *("localtime", "clock_timestamp", "statement_timestamp", "transaction_timestamp"),
        *("timeofday", "random", "sysdate", "gen_random_uuid", "current_setting"),
    }
)
"""Functions whose value changes by itself, so that no index may keep it."""


def index_condition(
    name: str, ready: ColumnElement[bool], mapper: Mapper[Any]
) -> ColumnElement[bool]:
    """Return the parts of `ready`, joined by AND, that an index of the model's table can hold.

    Args:
        name: whose `ready` it is, for the error.
        ready: one SQL expression over the columns of the model.
        mapper: of the model.

    Raises:
        ModelError: there is none, or `ready` asks a lock column.
    """
    table = mapper.local_table
    assert isinstance(table, Table)
    _refuse_lock_columns(name, ready, mapper)
    kept = [_with_typed_arrays(part) for part in _parts_of(ready) if _fits_index(part, table)]
    if not kept:
        raise ModelError(
            f"no part of the condition of {name} can stand in an index of {table.name}: each of"
            " them asks another table or the clock; give the index one of its own,"
            f' due_index({table.name!r}, ready="..."), which the condition of {name} implies',
            model=table.name,
        )
    # As a claim has it: SQLite uses the index only where both are spelt alike.
    return and_(*kept) if len(kept) > 1 else kept[0].self_group(against=operators.and_)


def _refuse_lock_columns(name: str, ready: ColumnElement[bool], mapper: Mapper[Any]) -> None:
    # By the columns, since a model may call them otherwise in its table.
    columns = _columns_in(ready)
    for attribute in CLEARED_COLUMNS:
        column = mapper.columns[attribute]
        if column in columns:
            raise ModelError(
                f"the condition of {name} asks {column.name}, which no index may mention: every"
                " claim and heartbeat changes it, and would have to write every index of the table;"
                " take it out, the claim looks at the lock columns by itself",
                model=mapper.class_.__name__,
                column=column.name,
            )


def _columns_in(condition: ColumnElement[bool]) -> set[Any]:
    # What the ORM gives of a column is another object that is equal to it.
    return {element for element in visitors.iterate(condition) if isinstance(element, ColumnClause)}


def _parts_of(condition: Any) -> Iterator[ColumnElement[bool]]:
    match condition:
        case Grouping():
            yield from _parts_of(condition.element)
        case BooleanClauseList() if condition.operator is operators.and_:
            for part in condition.clauses:
                yield from _parts_of(part)
        case _:
            yield condition


def _fits_index(part: ColumnElement[bool], table: Table) -> bool:
    own = set(table.columns)
    named = (column for column in _columns_in(part) if column.table is not None)
    return all(column in own for column in named) and all(
        _is_stable(element) for element in visitors.iterate(part)
    )


def _with_typed_arrays(part: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition with the type at each array: as a literal it would be one of another
    type, with which PostgreSQL compares no column.
    """
    if not any(_is_array(element) for element in visitors.iterate(part)):
        return part

    def typed(element: Any, **_: Any) -> Any:
        return cast(element, element.type) if _is_array(element) else None

    found: ColumnElement[bool] = visitors.replacement_traverse(part, {}, typed)
    return found


def _is_array(element: object) -> bool:
    return isinstance(element, BindParameter) and isinstance(element.type, ARRAY)


def _is_stable(element: object) -> bool:
    match element:
        case SelectBase():
            return False
        case Function():
            return element.name.lower() not in _UNSTABLE
        case FunctionElement():
            return False
        case _:
            return True
