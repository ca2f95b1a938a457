"""What a host's model must have to be leased: every mistake is found here, and named with what to
change.

Not here: what is built from such a model (`leased_table`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column, DateTime, Dialect, Integer, String, Table, Uuid, inspect
from sqlalchemy.exc import NoInspectionAvailable, SQLAlchemyError
from sqlalchemy.orm import Mapper
from sqlalchemy.types import TypeDecorator, TypeEngine

from rowlock.errors import ModelError

CLEARED_COLUMNS = ("lock_token", "lock_owner", "lock_expires_at")
"""Those lock columns that are null where no holder has the row."""
LOCK_COLUMNS = (*CLEARED_COLUMNS, "last_processed_at")
KEPT_SCHEDULE_COLUMNS = ("attempts", "last_error", "parked_at")
SCHEDULE_COLUMNS = ("due_at", "attempts", "last_error", "parked_at", "deadline_at")


def _is_time(type_: TypeEngine[Any]) -> bool:
    return isinstance(type_, DateTime) and type_.timezone


_EXPECTED: dict[str, tuple[Callable[[TypeEngine[Any]], bool], str]] = {
    "lock_token": (lambda type_: isinstance(type_, Uuid), "Uuid"),
    "lock_owner": (lambda type_: isinstance(type_, String), "String"),
    "lock_expires_at": (_is_time, "UtcDateTime or DateTime(timezone=True)"),
    "last_processed_at": (_is_time, "UtcDateTime or DateTime(timezone=True)"),
    "due_at": (_is_time, "UtcDateTime or DateTime(timezone=True)"),
    "attempts": (lambda type_: isinstance(type_, Integer), "Integer"),
    "last_error": (lambda type_: isinstance(type_, String), "Text"),
    "parked_at": (_is_time, "UtcDateTime or DateTime(timezone=True)"),
    "deadline_at": (_is_time, "UtcDateTime or DateTime(timezone=True)"),
}
_NEVER_NULL = ("due_at", "attempts")


def mapper_of(model: type[Any], *, configured: bool = True) -> Mapper[Any]:
    """Return the mapper of `model`; not `configured`, where other models may still be to come.

    Raises:
        ModelError: it is otherwise.
    """
    name = getattr(model, "__name__", repr(model))
    try:
        mapper: Mapper[Any] = inspect(model)
        if configured:
            mapper.registry.configure()
    except (NoInspectionAvailable, AttributeError):
        raise ModelError(
            f"{name} is not a mapped class; set `model` to a declarative SQLAlchemy model",
            model=name,
        ) from None
    except SQLAlchemyError as error:
        raise ModelError(
            f"the mapping of {name} does not hold together: {error}", model=name
        ) from error
    return mapper


def single_table(mapper: Mapper[Any]) -> Table:
    """Return the one table behind a model.

    Raises:
        ModelError: it is otherwise.
    """
    name = mapper.class_.__name__
    table = mapper.local_table
    if not isinstance(table, Table) or mapper.persist_selectable is not table:
        raise ModelError(
            f"{name} is spread over several tables; a lease lives in one row of one table, so give"
            " the pipeline the model of the table that has the lock columns",
            model=name,
        )
    return table


def single_key(mapper: Mapper[Any]) -> Column[Any]:
    """Return the one column of a model's primary key.

    Raises:
        ModelError: it is otherwise.
    """
    name = mapper.class_.__name__
    if len(mapper.primary_key) != 1:
        columns = ", ".join(column.name for column in mapper.primary_key)
        raise ModelError(
            f"{name} has a composite primary key ({columns}); rowlock needs a single-column key:"
            " add a surrogate key and keep the others as a unique constraint",
            model=name,
        )
    key = mapper.primary_key[0]
    assert isinstance(key, Column)
    return key


def spells_schedule(mapper: Mapper[Any]) -> bool:
    """Whether a model has all columns of a schedule.

    Raises:
        ModelError: it is otherwise.
    """
    present = [name for name in SCHEDULE_COLUMNS if name in mapper.columns]
    if len(present) == len(SCHEDULE_COLUMNS):
        return True
    # A column named due_at or attempts may well be the host's own; together they are somebody's
    # unfinished schedule.
    if "due_at" in present and len(present) > 1:
        missing = [name for name in SCHEDULE_COLUMNS if name not in present]
        model = mapper.class_.__name__
        raise ModelError(
            f"{model} has {', '.join(present)} but lacks {', '.join(missing)}; mix in"
            " ScheduleColumns, or add the missing columns, or rename those that mean something"
            " else",
            model=model,
            column=missing[0],
        )
    return False


def check_column(mapper: Mapper[Any], name: str) -> None:
    """Check that a model has a column of a name that rowlock needs, and that it is what it should
    be.

    Raises:
        ModelError: it is otherwise.
    """
    model = mapper.class_.__name__
    fits, wanted = _EXPECTED[name]
    if name not in mapper.columns:
        mixin = "LockColumns" if name in LOCK_COLUMNS else "ScheduleColumns"
        raise ModelError(
            f"{model} has no column {name}; mix in {mixin}, or add {name}: Mapped[...] ="
            f" mapped_column({wanted})",
            model=model,
            column=name,
        )
    column = mapper.columns[name]
    if not isinstance(column, Column):
        raise ModelError(f"{model}.{name} is not a column of the table", model=model, column=name)
    if not fits(innermost(column.type)):
        raise ModelError(
            f"{model}.{name} has the type {column.type!r}; it must be {wanted}"
            + _time_zone_hint(column.type),
            model=model,
            column=name,
        )
    if column.nullable and name in _NEVER_NULL:
        raise ModelError(
            f"{model}.{name} must not be nullable: a row without it would never be claimed",
            model=model,
            column=name,
        )
    if not column.nullable and name not in _NEVER_NULL:
        raise ModelError(
            f"{model}.{name} must be nullable: null means that it is free", model=model, column=name
        )


def with_zone(value: Any, column: Column[Any]) -> Any:
    """Return what was read of `column`, aware if it is a time."""
    # SQLite keeps no zone: a plain DateTime(timezone=True) is read naive there, and it was written
    # in UTC.
    is_naive = isinstance(value, datetime) and value.tzinfo is None and _is_time(column.type)
    return value.replace(tzinfo=UTC) if is_naive else value


def keeps_time(type_: TypeEngine[Any], dialect: Dialect | None = None) -> bool:
    """Whether a column of this type keeps dates with times, with a zone or without; `dialect` as
    for `innermost`.
    """
    return isinstance(innermost(type_, dialect), DateTime)


def innermost(type_: TypeEngine[Any], dialect: Dialect | None = None) -> TypeEngine[Any]:
    """Return what a decorated type comes down to; with a `dialect`, what it is there, where a
    variant may be another type.
    """
    if dialect is not None:
        type_ = type_.dialect_impl(dialect)
    while isinstance(type_, TypeDecorator):
        type_ = (
            type_.impl_instance if dialect is None else type_.impl_instance.dialect_impl(dialect)
        )
    return type_


def _time_zone_hint(type_: TypeEngine[Any]) -> str:
    is_naive = isinstance(innermost(type_), DateTime)
    return ": a time without a zone means another moment on every replica" if is_naive else ""
