"""Indexes of a leased table: the one that serves the claim, and that of parked rows.

No index may mention a ``lock_*`` column: every claim and heartbeat changes these, and would have to
write every index of the table. The condition of an index is taken from `ready` of the pipeline, as
far as it can stand in an index: what asks another table or the clock is left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from operator import and_ as and_of_python
from typing import Any, Final, Literal, TypeAlias, get_args

from sqlalchemy import (
    ARRAY,
    BindParameter,
    Column,
    ColumnElement,
    Dialect,
    Index,
    Table,
    TextClause,
    UnaryExpression,
    and_,
    cast,
    inspect,
    literal_column,
    true,
)
from sqlalchemy import column as named_column
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Mapper
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import BooleanClauseList, ClauseElement, ColumnClause, Grouping
from sqlalchemy.sql.functions import Function, FunctionElement
from sqlalchemy.sql.selectable import SelectBase

from rowlock.dialects import known_dialects
from rowlock.errors import ModelError
from rowlock.rows.database_time import rows_of
from rowlock.rows.leased_table import (
    CLEARED_COLUMNS,
    LOCK_COLUMNS,
    LeasedTable,
    check_column,
    mapper_of,
    single_key,
    single_table,
    spells_schedule,
)

# ---------------------------------------------------------------- conditions of indexes


def partial_index_options(where: ColumnElement[Any] | TextClause | None) -> dict[str, Any]:
    """Return the options by which an ``Index`` has only the rows of `where`, on every database."""
    if where is None:
        return {}
    able = (dialect.name for dialect in known_dialects() if dialect.has_partial_indexes)
    return {f"{name}_where": where for name in able}


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

    Raises:
        ModelError: none can, or one reads a column that is cleared behind the claim.
    """
    table = mapper.local_table
    assert isinstance(table, Table)
    # By the columns, since a model may call them otherwise in its table.
    named = _columns_in(ready)
    for column in (mapper.columns[attribute] for attribute in CLEARED_COLUMNS):
        if column in named:
            raise _refused(mapper.class_.__name__, column.name)
    kept = [_with_typed_arrays(part) for part in conjuncts_of(ready) if _fits_index(part, table)]
    if not kept:
        raise ModelError(
            f"no part of the condition of {name} can stand in an index of {table.name}: each of"
            " them asks another table or the clock; give the index one of its own,"
            f' due_index({table.name!r}, ready="..."), which the condition of {name} implies',
            model=table.name,
        )
    condition = _all_of(kept)
    _refuse_lock_columns(table.name, condition)
    return condition


def _columns_in(condition: ColumnElement[bool]) -> set[Any]:
    # What the ORM gives of a column is another object that is equal to it.
    return {element for element in visitors.iterate(condition) if isinstance(element, ColumnClause)}


def _all_of(parts: Sequence[ColumnElement[bool]]) -> ColumnElement[bool]:
    # As a claim has it: SQLite uses the index only where both are spelt alike.
    return and_(*parts) if len(parts) > 1 else parts[0].self_group(against=operators.and_)


def conjuncts_of(condition: Any) -> list[ColumnElement[bool]]:
    """Return the clauses of the condition's top AND, those of an AND within it among them."""
    inner = condition.element if isinstance(condition, Grouping) else condition
    if isinstance(inner, BooleanClauseList) and inner.operator in {operators.and_, and_of_python}:
        return [part for clause in inner.clauses for part in conjuncts_of(clause)]
    return [condition]


def _fits_index(part: ColumnElement[bool], table: Table) -> bool:
    own = set(table.columns)
    named = (column for column in _columns_in(part) if column.table is not None)
    return all(column in own for column in named) and all(
        _is_stable(element) for element in visitors.iterate(part)
    )


def _with_typed_arrays(part: ColumnElement[bool]) -> ColumnElement[bool]:
    """Cast arrays: as a literal, PostgreSQL would compare one with no column."""

    def typed(element: Any, **_: Any) -> Any:
        is_array = isinstance(element, BindParameter) and isinstance(element.type, ARRAY)
        return cast(element, element.type) if is_array else None

    found: ColumnElement[bool] = visitors.replacement_traverse(part, {}, typed)
    return found


def _is_stable(element: object) -> bool:
    if isinstance(element, Function):
        return element.name.lower() not in _UNSTABLE
    return not isinstance(element, SelectBase | FunctionElement)


# ---------------------------------------------------------------- due index


DueColumn = Literal["last_processed_at", "due_at"]
"""The columns by which rows are claimed: the second one by models with `ScheduleColumns`."""
DueOrder: TypeAlias = DueColumn | tuple[DueColumn, str]
"""The same, with the name of the primary key where that is not `KEY`."""
KEY = "id"
"""The primary key, if no other is named. It tells rows of one time apart."""

_LOCK_COLUMN = re.compile(r"\block_(?:token|owner|expires_at)\b", re.IGNORECASE)
_ALWAYS = re.compile(r"true|1( = 1)?", re.IGNORECASE)
"""What ``sqlalchemy.true()`` becomes on the databases."""
STRING = re.compile(r"'(?:[^']|'')*'")


INDEX_INFO = "rowlock_index"
"""Where ``Index.info`` keeps the `DueIndex` or `ParkedIndex` that an index was made of."""
IndexParts: TypeAlias = tuple[list[Any], dict[str, Any]]
PARKED: Final = "parked_at"
"""The column of `ScheduleColumns` that says since when a row is set aside."""


@dataclass(frozen=True, slots=True)
class DueIndex:
    """What an index of claims is made of; `ready` is without ``parked_at IS NULL``."""

    ready: str | ColumnElement[bool]
    column: DueOrder

    def parts(self, table_name: str) -> IndexParts:
        """Return columns and options, as ``Index`` and ``op.create_index`` take them.

        Raises:
            ModelError: no claim is ordered by the column.
        """
        place, key = (self.column, KEY) if isinstance(self.column, str) else self.column
        if place not in get_args(DueColumn):
            raise ModelError(
                f"rows are claimed by due_at or by last_processed_at, so an index on {place!r}"
                " serves no claim; name one of the two",
                model=table_name,
                column=place,
            )
        parked: Any = named_column(PARKED) if place == "due_at" else None
        return _parts(table_name, self.ready, (named_column(place), key), parked=parked)


@dataclass(frozen=True, slots=True)
class ParkedIndex:
    key: str = KEY

    def parts(self, table_name: str) -> IndexParts:
        return [PARKED, self.key], partial_index_options(named_column(PARKED).is_not(None))


def index_name(table_name: str, column: str | DueOrder) -> str:
    return f"ix_{table_name}_{column if isinstance(column, str) else column[0]}"


def due_indexes(table: Table) -> list[Index]:
    """Return the indexes of claims that the model of a table declares."""
    return [one for one in table.indexes if isinstance(one.info.get(INDEX_INFO), DueIndex)]


def due_index(
    of: object,
    *,
    ready: str | ColumnElement[bool] | None = None,
    column: DueOrder | None = None,
    name: str | None = None,
) -> Index:
    """Return the one index that serves the claim, where ``create_all`` and Alembic's autogenerate
    look for it.

    ``due_index(VolumePipeline)``, below the class, adds it to the table of the pipeline's model.
    Parts of its ``ready()`` that no index can hold, such as a subquery, are left out. Import the
    module in ``env.py``, so that Alembic sees the index. ``due_index(Volume, ready=...)`` does the
    same for a condition. ``due_index("volumes", ready=...)`` is for ``__table_args__``, where there
    is no model yet.

    Args:
        of: a pipeline, its class, a mapped class, or the name of the host's table.
        ready: what the pipeline's ``ready()`` says, as an expression or as SQL: ``"status =
            'submitted'"``. The database uses the index only where the claim's condition implies
            this one. With ``due_at``, ``parked_at IS NULL`` is added. Of a pipeline it is known.
        column: by which rows are claimed, ``"last_processed_at"`` by default; with the primary key,
            if that is not ``id``: ``("due_at", "job_id")``. Of a pipeline or a mapped class it is
            known.
        name: of the index, ``ix_<table>_<column>`` by default.

    Raises:
        ModelError: `ready` mentions a lock column, or is missing, or nothing of it can stand in an
            index; rows are not claimed by `column`; the table has an index of that name.
    """
    if isinstance(of, str):
        if ready is None:
            raise ModelError(
                f"which rows of {of} want work? due_index({of!r}, ready=\"status = 'submitted'\"),"
                " or due_index(YourPipeline) below the class",
                model=of,
            )
        made_of = DueIndex(ready, column or "last_processed_at")
        return _index(name or index_name(of, made_of.column), made_of, made_of.parts(of))
    whose, is_pipeline = _name_of(of), _is_of_pipeline(of)
    if column is not None or is_pipeline is (ready is not None):
        usage = (
            f"due_index({whose}) knows table, order and condition; give it a name at most"
            if is_pipeline
            else f"which rows of {whose} want work? due_index({whose}, ready={whose}.status =="
            " 'submitted'), or due_index(YourPipeline); table and order are known"
        )
        raise ModelError(usage, model=whose)
    mapper, table, key = _mapped(of)
    for lock_column in LOCK_COLUMNS:
        check_column(mapper, lock_column)
    place: DueColumn = "due_at" if spells_schedule(mapper) else "last_processed_at"
    ordered = mapper.columns[place]
    name = name or index_name(table.name, ordered.name)
    _refuse_taken(table, name, call=f"due_index({whose}, name=...)")
    condition = _ready_of(whose, of) if is_pipeline else ready
    if isinstance(condition, ColumnElement):
        condition = index_condition(whose, condition, mapper)
    assert condition is not None
    parked = mapper.columns[PARKED] if place == "due_at" else None
    parts = _parts(table.name, condition, (ordered, key), parked=parked)
    return _index(name, DueIndex(condition, (place, key.name)), parts)


def _index(name: str, made_of: DueIndex | ParkedIndex, parts: IndexParts) -> Index:
    columns, options = parts
    return Index(name, *columns, info={INDEX_INFO: made_of}, **options)


def _mapped(of: Any) -> tuple[Mapper[Any], Table, Column[Any]]:
    # Not configured: while modules are imported, models that a relationship names may be to come.
    mapper = mapper_of(of.model if _is_of_pipeline(of) else of, configured=False)
    return mapper, single_table(mapper), single_key(mapper)


def _refuse_taken(table: Table, name: str, *, call: str) -> None:
    if any(other.name == name for other in table.indexes):
        raise ModelError(
            f"{table.name} has an index named {name} already; give this one another name: {call}",
            model=table.name,
        )


def _name_of(of: object) -> str:
    return str(getattr(of, "__name__", type(of).__name__))


def _is_of_pipeline(of: object) -> bool:
    # A host's table may have columns of these names.
    is_mapped = inspect(of, raiseerr=False) is not None
    return not is_mapped and hasattr(of, "ready") and hasattr(of, "model")


def _ready_of(whose: str, pipeline: Any) -> ColumnElement[bool]:
    try:
        # Of a class: unbuilt, since building it would configure mappers while modules are imported.
        ready: Any = (object.__new__(pipeline) if isinstance(pipeline, type) else pipeline).ready()
    except AttributeError as error:
        raise ModelError(
            f"{whose}.ready() cannot be asked of the class ({error}); give due_index an instance:"
            f" due_index({whose}(...))",
            model=whose,
        ) from error
    # A mapped attribute, such as a boolean column, stands for its column.
    ready = getattr(ready, "expression", ready)
    if not isinstance(ready, ColumnElement):
        raise ModelError(
            f"{whose}.ready() must return one SQL expression, not {ready!r:.100}", model=whose
        )
    return ready


def _parts(
    table_name: str,
    ready: str | ColumnElement[bool],
    columns: tuple[Any, Any],
    *,
    parked: ColumnElement[Any] | None,
) -> IndexParts:
    _refuse_lock_columns(table_name, ready)
    place, key = columns
    if parked is None:
        return [_NullsFirst(place), key], partial_index_options(_where(ready))
    return [place, key], partial_index_options(_where(ready, parked.is_(None)))


def claim_index_parts(leased: LeasedTable, conditions: Sequence[ColumnElement[bool]]) -> IndexParts:
    place = leased.column("due_at" if leased.has_schedule else "last_processed_at")
    parked = leased.column(PARKED) if leased.has_schedule else None
    ready = _all_of(conditions) if conditions else true()
    return _parts(leased.table.name, ready, (place, leased.key), parked=parked)


def _where(
    ready: str | ColumnElement[bool], in_play: ColumnElement[bool] | None = None
) -> ColumnElement[bool] | None:
    # What is always true implies nothing: SQLite would not use an index that asks for it.
    if _ALWAYS.fullmatch(str(ready)):
        return in_play
    if isinstance(ready, str):
        ready = literal_column(ready if in_play is None else f"({ready})")
    return ready if in_play is None else and_(ready, in_play)


def _refuse_lock_columns(table_name: str, ready: str | ColumnElement[bool]) -> None:
    # An expression is compiled without its values, and strings in the host's own SQL may say
    # anything: columns are left.
    if found := _LOCK_COLUMN.search(STRING.sub("''", str(ready))):
        raise _refused(table_name, found[0].lower())


def _refused(of: str, column: str) -> ModelError:
    return ModelError(
        f"no index of {of} may mention {column}: every claim and heartbeat changes it, and would"
        " have to write every index of the table; take it out of `ready`, the claim looks at the"
        " lock columns by itself",
        model=of,
        column=column,
    )


class _NullsFirst(UnaryExpression[Any]):
    """A column of which nulls come first. It is no function: Alembic compares no index of those on
    SQLite.
    """

    inherit_cache = True

    def __init__(self, column: ColumnElement[Any]) -> None:
        super().__init__(column, modifier=operators.nulls_first_op)


@compiles(_NullsFirst)
def _nulls_first(element: _NullsFirst, compiler: SQLCompiler, **kw: Any) -> str:
    return rows_of(compiler).nulls_first(compiler.process(element.element, **kw))


# ---------------------------------------------------------------- parked index


def parked_index(of: object, *, key: str | None = None, name: str | None = None) -> Index:
    """Return the index with which parked rows are counted and listed, oldest first, by `Insight`,
    ``rowlock status`` and the dashboard; where ``create_all`` and Alembic's autogenerate look for
    it.

    ``parked_index(Volume)``, below the class, is added to the table of the model, as is
    ``parked_index(VolumePipeline)``.
    ``parked_index("volumes")`` is for ``__table_args__``, where there is no model yet.

    Args:
        of: a mapped class with `ScheduleColumns`, a pipeline of one or its class, or the name of
            the host's table.
        key: the primary key, ``id`` by default. Of a mapped class it is known.
        name: of the index, ``ix_<table>_parked_at`` by default.

    Raises:
        ModelError: the model has no schedule, so that its rows are never parked; its table has an
            index of that name; the key of a mapped class was named.
    """
    if isinstance(of, str):
        parked = ParkedIndex(key or KEY)
        return _index(name or index_name(of, PARKED), parked, parked.parts(of))
    whose = _name_of(of)
    if key is not None:
        raise ModelError(f"parked_index({whose}) knows the key; leave it out", model=whose)
    mapper, table, own_key = _mapped(of)
    if not spells_schedule(mapper):
        raise ModelError(
            f"rows of {whose} are never parked, since it has no schedule; mix in ScheduleColumns,"
            " or leave parked_index out",
            model=whose,
        )
    name = name or index_name(table.name, PARKED)
    _refuse_taken(table, name, call=f"parked_index({whose}, name=...)")
    parked_at = mapper.columns[PARKED]
    parts = [parked_at, own_key], partial_index_options(parked_at.is_not(None))
    return _index(name, ParkedIndex(own_key.name), parts)


def sql_of(clause: ClauseElement, dialect: Dialect) -> str:
    """Return an expression as the SQL of an index: with its values, without its table."""
    nothing: Any = None
    compiler: Any = dialect.ddl_compiler(dialect, nothing).sql_compiler
    # A driver whose parameters begin with % wants it doubled, and an index has none.
    compiler.preparer = copy(compiler.preparer)
    compiler.preparer._double_percents = False
    return str(compiler.process(clause, include_table=False, literal_binds=True))
