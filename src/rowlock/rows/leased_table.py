"""A host's mapped class, read once and checked: which column is which.

The one idea: everything that could be wrong with a model is found when the pipeline is built,
before anything was started, and reported by the name of the column with what to change.

Instances are made of the columns of a row as SQLAlchemy would have loaded them, but only where an
instance is no more than its row: relationships that come along, expressions, a class for each kind
of row, or a listener to loads are SQLAlchemy's to load, by a SELECT.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any, Final, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    DateTime,
    Dialect,
    Integer,
    SmallInteger,
    String,
    Table,
    Uuid,
    inspect,
    join,
)
from sqlalchemy.exc import ArgumentError, NoInspectionAvailable, SQLAlchemyError
from sqlalchemy.orm import (
    ColumnProperty,
    InstanceState,
    InstrumentedAttribute,
    LoaderCallableStatus,
    Mapper,
)
from sqlalchemy.orm.attributes import instance_dict, instance_state
from sqlalchemy.types import TypeDecorator, TypeEngine

from rowlock.errors import ModelError, OutcomeError
from rowlock.rows.lock_tokens import fresh_token


def is_ours(type_: TypeEngine[Any], dialect: Dialect) -> bool:
    """Whether no code of the host's makes values of the type, on `dialect` either."""
    both = (type_, type_.dialect_impl(dialect))
    return all(type(one).__module__.startswith(("sqlalchemy.", "rowlock.")) for one in both)


# ---------------------------------------------------------------- checks


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
    "attempts": (lambda type_: isinstance(type_, Integer), "Integer"),
    "last_error": (lambda type_: isinstance(type_, String), "Text"),
}
_NEVER_NULL = ("due_at", "attempts")


def mapper_of(model: type[Any], *, configured: bool = True) -> Mapper[Any]:
    """Return the mapper of `model`; not `configured`, where other models may still be to come."""
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
    """Return the one table behind a model; `ModelError` if there are several."""
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
    """Return the one column of a model's primary key; `ModelError` if there are several."""
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
    """Whether a model has all columns of a schedule; `ModelError` if it has some only."""
    present = [name for name in SCHEDULE_COLUMNS if name in mapper.columns]
    if len(present) == len(SCHEDULE_COLUMNS):
        return True
    # A column named due_at or attempts may well be the host's own; together they are
    # an unfinished schedule.
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
    """Check a column that rowlock needs, by its attribute; `ModelError` if it is wrong."""
    model = mapper.class_.__name__
    fits, wanted = _EXPECTED.get(name, (_is_time, "UtcDateTime or DateTime(timezone=True)"))
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
        is_naive = keeps_time(column.type)
        hint = ": a time without a zone means another moment on every replica" if is_naive else ""
        raise ModelError(
            f"{model}.{name} has the type {column.type!r}; it must be {wanted}{hint}",
            model=model,
            column=name,
        )
    if column.nullable == (name in _NEVER_NULL):
        why = (
            "must not be nullable: a row without it would never be claimed"
            if column.nullable
            else "must be nullable: null means that it is free"
        )
        raise ModelError(f"{model}.{name} {why}", model=model, column=name)


def with_zone(value: Any, column: Column[Any]) -> Any:
    # SQLite keeps no zone: a plain DateTime(timezone=True) is read naive there, and it was written
    # in UTC.
    is_naive = isinstance(value, datetime) and value.tzinfo is None and _is_time(column.type)
    return value.replace(tzinfo=UTC) if is_naive else value


def keeps_time(type_: TypeEngine[Any], dialect: Dialect | None = None) -> bool:
    """Whether columns of this type keep dates with times; `dialect` as for `innermost`."""
    return isinstance(innermost(type_, dialect), DateTime)


def innermost(type_: TypeEngine[Any], dialect: Dialect | None = None) -> TypeEngine[Any]:
    """Return what a decorated type comes down to; on `dialect`, where variants may differ."""
    if dialect is not None:
        type_ = type_.dialect_impl(dialect)
    while isinstance(type_, TypeDecorator):
        type_ = type_.impl_instance
        type_ = type_ if dialect is None else type_.dialect_impl(dialect)
    return type_


# ---------------------------------------------------------------- instances


_EAGER = ("joined", False, "selectin", "subquery", "immediate")
"""How relationships are loaded together with their row; False is an older word for joined."""

PLANS_MAX: Final = 1000
"""Of at most so many mappers it is remembered how their instances are made."""


def attributes_of(mapper: Mapper[Any]) -> dict[str, Column[Any]]:
    columns = ((prop.key, prop.columns[0]) for prop in mapper.column_attrs)
    return {name: column for name, column in columns if isinstance(column, Column)}


def instance_of(mapper: Mapper[Any], values: Mapping[str, Any]) -> Any:
    """Return a detached instance of a plain mapper with these `values`, as if just loaded."""
    model: Any = mapper.class_
    instance = model.__new__(model)
    # Where SQLAlchemy's own loading puts them; there is no history yet that `set_committed_value`
    # would have to keep.
    instance_dict(instance).update(values)
    add_state(mapper, instance)
    return instance


def add_state(mapper: Mapper[Any], instance: Any) -> InstanceState[Any]:
    """Make an instance that has the values of its row a detached one, and return its state."""
    # What `make_transient_to_detached` does, which asks each attribute of each instance for it.
    (keys, attributes), values = _plan_of(mapper), instance_dict(instance)
    identity = tuple([values.get(name) for name in keys])
    missing = attributes - values.keys()
    mapper.class_manager.setup_instance(instance)
    state = instance_state(instance)
    state.key = mapper.identity_key_from_primary_key(identity)
    if missing:
        state.expired_attributes.update(missing)
    return state


@lru_cache(PLANS_MAX)
def _plan_of(mapper: Mapper[Any]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the attributes of the primary key, and all."""
    keys = (mapper.get_property_by_column(column).key for column in mapper.primary_key)
    return tuple(keys), frozenset(prop.key for prop in mapper.column_attrs)


def changed_attributes(row: object) -> list[str]:
    """Return which attributes of an instance were set to something else since it was read."""
    state: Any = getattr(row, "_sa_instance_state", None)
    if state is None or not state.modified:
        return []
    return [name for name in state.committed_state if state.attrs[name].history.has_changes()]


ModelT = TypeVar("ModelT")
ModelT_co = TypeVar("ModelT_co", covariant=True)
"""The model of what is only asked for rows and never given any: a claim, a pipeline."""
StatementT = TypeVar("StatementT")

NEXT_VERSION: Final = object()
"""Stands for what the host's generator of versions gives for the row's present one."""
SMALL_MAX, INTEGER_MAX = 2**15 - 1, 2**31 - 1
PREPARED_MAX = 500
"""Most statements that a table remembers: as many as SQLAlchemy keeps compiled by default."""


@dataclass(eq=False)
class LeasedTable:
    """The parts of a host's model that leases are made of.

    Attributes:
        spoilt_keys: values of keys that do not find their rows; bounded by ``leases/``.
        has_places: whether a statement may find a row again by its place in the table, as in no
            view; written by ``leases/table_looks.py``.
    """

    model: type[Any]
    mapper: Mapper[Any]
    table: Table
    key: Column[Any]
    has_schedule: bool
    spoilt_keys: set[object] = field(default_factory=set, repr=False)
    has_places: bool = field(default=False, repr=False)
    _prepared: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    # Asked several times for each outcome; SQLAlchemy's own collection is slower.
    _columns: dict[str, Column[Any]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, model: type[Any]) -> LeasedTable:
        """Read and check `model`; `ModelError` if it cannot be leased."""
        mapper = mapper_of(model)
        table = single_table(mapper)
        for name in LOCK_COLUMNS:
            check_column(mapper, name)
        has_schedule = spells_schedule(mapper)
        for name in SCHEDULE_COLUMNS if has_schedule else ():
            check_column(mapper, name)
        return cls(model, mapper, table, single_key(mapper), has_schedule)

    @property
    def name(self) -> str:
        return self.model.__name__

    def column(self, name: str) -> Column[Any]:
        column = self._columns.get(name)
        if column is None:
            found = self.mapper.columns[name]
            assert isinstance(found, Column)
            column = self._columns[name] = found
        return column

    def attribute(self, name: str) -> InstrumentedAttribute[Any]:
        attribute: InstrumentedAttribute[Any] = getattr(self.model, name)
        return attribute

    def value_as_read(self, row: object, column: Column[Any]) -> Any:
        """Return what `column` was when `row` was loaded, also where that was changed since."""
        name = self.mapper.get_property_by_column(column).key
        state = inspect(row)
        assert state is not None
        value = state.committed_state.get(name, state.dict.get(name, LoaderCallableStatus.NO_VALUE))
        if value is LoaderCallableStatus.NO_VALUE:
            cure = "undefer it in options(), and change nothing in item.row in place"
            raise OutcomeError(f"{self.name}.{name} was not loaded; {cure}", column=name)
        return with_zone(value, column)

    def value_as_claimed(self, values: Sequence[Any], column: Column[Any]) -> Any:
        """`values` are those of all the attributes of a plain model."""
        name = self.mapper.get_property_by_column(column).key
        return with_zone(values[self.places[name]], column)

    @cached_property
    def places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.attributes)}

    def prepared(self, key: Hashable, build: Callable[[], StatementT]) -> StatementT:
        """Return what `build` gives, built once for each `key`; what differs is bound by name."""
        statement = self._prepared.get(key)
        if statement is None:
            statement = build()
            if len(self._prepared) < PREPARED_MAX:
                self._prepared[key] = statement
        return statement

    @cached_property
    def kept_columns(self) -> frozenset[Column[Any]]:
        """The columns that rowlock itself keeps, and no outcome writes."""
        schedule = KEPT_SCHEDULE_COLUMNS if self.has_schedule else ()
        return frozenset(self.column(name) for name in (*LOCK_COLUMNS, *schedule))

    @cached_property
    def key_name(self) -> str:
        return self.mapper.get_property_by_column(self.key).key

    def new_token(self, *, is_reserved: bool = False, in_crowd: bool = False) -> Any:
        """Return a fresh token in the shape in which it is read; as `fresh_token`."""
        return self.as_token(fresh_token(is_reserved=is_reserved, in_crowd=in_crowd))

    def as_token(self, token: Any) -> Any:
        """Return a token of another table in the shape of this one's column."""
        return token if isinstance(token, self._token_class) else self._token_class(str(token))

    @cached_property
    def _token_class(self) -> type[uuid.UUID] | type[str]:
        type_ = innermost(self.column("lock_token").type)
        return uuid.UUID if getattr(type_, "as_uuid", True) else str

    @cached_property
    def _owner_length(self) -> int | None:
        return getattr(innermost(self.column("lock_owner").type), "length", None)

    def fits_owner(self, owner: str) -> bool:
        return self._owner_length is None or len(owner) <= self._owner_length

    def check_owner(self, owner: str) -> None:
        if not self.fits_owner(owner):
            raise ModelError(
                f"the name {owner} does not fit into {self.name}.lock_owner ({self._owner_length}"
                " characters); widen the column or shorten the class name",
                model=self.name,
                column="lock_owner",
            )

    def check_token(self, dialect: Dialect) -> None:
        """Refuse, by `ModelError`, tokens that `dialect` keeps otherwise than the model."""
        type_ = self.column("lock_token").type
        declared, there = innermost(type_), innermost(type_, dialect)
        if not isinstance(there, Uuid) or there.as_uuid != getattr(declared, "as_uuid", True):
            raise ModelError(
                f"{self.name}.lock_token has the type {there!r} on {dialect.name}; it must be Uuid"
                " on every database, with the same as_uuid: take the variant away",
                model=self.name,
                column="lock_token",
            )

    @property
    def lease_columns(self) -> tuple[str, ...]:
        return (*LOCK_COLUMNS, *(SCHEDULE_COLUMNS if self.has_schedule else ()))

    @cached_property
    def attempts_max(self) -> int:
        """The most attempts that are counted: one more fits into the column."""
        is_short = isinstance(innermost(self.column("attempts").type), SmallInteger)
        return (SMALL_MAX if is_short else INTEGER_MAX) - 1

    @cached_property
    def is_plain(self) -> bool:
        """Whether an instance is no more than the columns of its row."""
        return (
            self.mapper.polymorphic_on is None
            and self.mapper.inherits is None
            and all(
                len(prop.columns) == 1 and isinstance(prop.columns[0], Column) and not prop.deferred
                for prop in self.mapper.column_attrs
            )
            and all(relation.lazy not in _EAGER for relation in self.mapper.relationships)
            and not self.mapper.composites
            # Host code, or a type whose values know their parents (sqlalchemy.ext.mutable).
            and not self.mapper.class_manager.dispatch.load
        )

    @cached_property
    def attributes(self) -> dict[str, Column[Any]]:
        return attributes_of(self.mapper)

    def instance(self, values: Sequence[Any]) -> Any:
        return instance_of(self.mapper, dict(zip(self.attributes, values, strict=True)))

    @cached_property
    def columns_by_name(self) -> dict[str, Column[Any]]:
        """Columns by attribute name, by synonyms and, where that is free, by own name."""
        by_attribute = {prop.key: prop.columns[0] for prop in self.mapper.column_attrs}
        by_attribute |= {
            name: meant.columns[0]
            for name in self.mapper.synonyms.keys()  # noqa: SIM118 - of SQLAlchemy
            if isinstance(meant := self.attribute(name).property, ColumnProperty)
        }
        by_column = {column.name: column for column in self.table.columns}
        return {
            **by_column,
            **{name: column for name, column in by_attribute.items() if isinstance(column, Column)},
        }

    @cached_property
    def version_generator(self) -> Callable[[Any], Any] | None:
        """The host's own ``version_id_generator``: gives the next version for the present one."""
        generator = self.mapper.version_id_generator
        if not callable(generator) or getattr(generator, "__module__", "") == Mapper.__module__:
            return None
        return generator if isinstance(self.mapper.version_id_col, Column) else None

    @cached_property
    def next_version(self) -> dict[Column[Any], Any]:
        """What is written to the host's ``version_id_col``, which SQLAlchemy moves for instances
        only; `NEXT_VERSION` for the host's own generator. Nothing where the server keeps it.
        """
        column = self.mapper.version_id_col
        if not isinstance(column, Column) or self.mapper.version_id_generator is False:
            return {}
        if self.version_generator is not None:
            return {column: NEXT_VERSION}
        # The same expression for all rows, so that they share a statement.
        return {column: column + 1} if isinstance(innermost(column.type), Integer) else {}

    @cached_property
    def columns_with_onupdate(self) -> tuple[Column[Any], ...]:
        """Columns that SQLAlchemy would change by itself on any UPDATE, such as ``updated_at``."""
        return tuple(column for column in self.table.columns if column.onupdate is not None)

    @cached_property
    def columns_stamped_by_host_code(self) -> frozenset[Column[Any]]:
        """Those of them for which Python is called for each row that is written."""
        return frozenset(
            column
            for column in self.columns_with_onupdate
            if getattr(column.onupdate, "is_callable", False)
        )


def relation_between(leased: LeasedTable, related: LeasedTable) -> ColumnElement[bool] | None:
    """Return the condition that a related row belongs to a main row; None without a foreign key."""
    pairs = ((leased, related), (related, leased))
    if leased.table is related.table or not any(
        key.references(b.table) for a, b in pairs for key in a.table.foreign_keys
    ):
        return None
    try:
        return join(leased.table, related.table).onclause
    except ArgumentError as error:
        raise ModelError(
            f"several foreign keys connect {leased.name} and {related.name}; say which rows belong"
            f" together: Related({related.name}, on=...)",
            model=related.name,
        ) from error


def is_referenced(leased: LeasedTable) -> bool:
    """Whether a foreign key of a table of the same metadata refers to this one."""
    tables = leased.table.metadata.tables.values()
    return any(key.references(leased.table) for table in tables for key in table.foreign_keys)
