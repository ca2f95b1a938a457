"""The one index that serves the claim, for models and for migrations.

The one idea: of a large table only the rows that are ready are in it, in the order in which they
are claimed; so a claim costs the same however many settled rows there are. The key stands behind
the time, so that a claim finds where the last one ended, also among rows that were never processed
or became due at one time. Parked rows are not in an index of ``due_at``: they are ready and were
due long ago, and would all stand before the first row that can be claimed. No lock column is
mentioned, because a heartbeat must not have to write an index: an update that changes a column of
any index (also one in its condition) cannot be heap-only on PostgreSQL.

Not here: the steps that build it in a table of a host (``migrations.py``).
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias

from sqlalchemy import ColumnElement, Index, and_, literal_column
from sqlalchemy import column as named_column
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from rowlock.errors import ModelError
from rowlock.rows.row_dialect import partial_index_options, rows_of

DueColumn = Literal["last_processed_at", "due_at"]
"""The columns by which rows are claimed: the second one by models with `ScheduleColumns`."""
DueOrder: TypeAlias = DueColumn | tuple[DueColumn, str]
"""The same, with the name of the primary key where that is not `KEY`."""
KEY = "id"
"""The primary key, if no other is named. It tells rows of one time apart."""

_LOCK_COLUMN = re.compile(r"\block_(?:token|owner|expires_at)\b", re.IGNORECASE)
_STRING = re.compile(r"'(?:[^']|'')*'")


def due_index(
    table_name: str,
    *,
    ready: str | ColumnElement[bool],
    column: DueOrder = "last_processed_at",
    name: str | None = None,
) -> Index:
    """Return the index for the model's ``__table_args__``, where ``create_all`` and Alembic's
    autogenerate look for it.

    Args:
        table_name: the host's table.
        ready: what the pipeline's ``ready()`` says, as SQL: ``"status = 'submitted'"``. The
            database uses the index only where the claim's condition implies this one. With
            ``due_at``, ``parked_at IS NULL`` is added.
        column: by which rows are claimed; with the primary key, if that is not ``id``: ``("due_at",
            "job_id")``.
        name: of the index, ``ix_<table>_<column>`` by default.

    Raises:
        ModelError: `ready` mentions a lock column, or rows are not claimed by `column`.
    """
    columns, options = due_index_parts(table_name, ready=ready, column=column)
    return Index(name or due_index_name(table_name, column), *columns, **options)


def due_index_name(table_name: str, column: DueOrder) -> str:
    """Return the name of the index if none is given."""
    return f"ix_{table_name}_{column if isinstance(column, str) else column[0]}"


def due_index_parts(
    table_name: str, *, ready: str | ColumnElement[bool], column: DueOrder
) -> tuple[list[Any], dict[str, Any]]:
    """Return the columns and the options of the index, as ``Index`` and ``op.create_index`` take
    them.

    Raises:
        ModelError: `ready` mentions a lock column, or rows are not claimed by `column`.
    """
    _refuse_lock_columns(table_name, ready)
    where: Any = literal_column(ready) if isinstance(ready, str) else ready
    place, key = (column, KEY) if isinstance(column, str) else column
    if place == "due_at":
        in_play = named_column("parked_at").is_(None)
        where = and_(literal_column(f"({ready})") if isinstance(ready, str) else ready, in_play)
    return [_order_column(table_name, place), key], partial_index_options(where)


def _refuse_lock_columns(table_name: str, ready: str | ColumnElement[bool]) -> None:
    # An expression is compiled without its values, and strings in the host's own SQL may say
    # anything: columns are left.
    if found := _LOCK_COLUMN.search(_STRING.sub("''", str(ready))):
        raise ModelError(
            f"no index of {table_name} may mention {found[0]}: every claim and heartbeat changes"
            " it, and would have to write every index of the table; take it out of `ready`, the"
            " claim looks at the lock columns by itself",
            model=table_name,
            column=found[0].lower(),
        )


def _order_column(table_name: str, column: str) -> Any:
    match column:
        case "due_at":
            return column
        case "last_processed_at":
            return _NullsFirst(named_column(column))
    raise ModelError(
        f"rows are claimed by due_at or by last_processed_at, so an index on {column!r} serves no"
        " claim; name one of the two",
        model=table_name,
        column=column,
    )


class _NullsFirst(FunctionElement[Any]):
    """A column in the order of claims, where what was never processed comes first."""

    name = "nulls_first"
    inherit_cache = True


@compiles(_NullsFirst)
def _nulls_first(element: _NullsFirst, compiler: SQLCompiler, **kw: Any) -> str:
    return rows_of(compiler).nulls_first(compiler.process(next(iter(element.clauses)), **kw))
