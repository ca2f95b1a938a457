"""A host's mapped class, read once and checked: which column is which.

The one idea: everything that could be wrong with a model is found when the pipeline is built,
before anything was started, and told by the name of the column with what to change. After that, the
rest of the code asks `LeasedTable` and checks nothing again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Dialect,
    Integer,
    SmallInteger,
    String,
    Table,
    Uuid,
    inspect,
    join,
)
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import (
    ColumnProperty,
    InstrumentedAttribute,
    LoaderCallableStatus,
    Mapper,
    MapperProperty,
)

from rowlock.errors import ModelError, OutcomeError
from rowlock.rows.instances import attributes_of, instance_of, is_plain
from rowlock.rows.lock_tokens import fresh_token
from rowlock.rows.model_check import (
    KEPT_SCHEDULE_COLUMNS,
    LOCK_COLUMNS,
    SCHEDULE_COLUMNS,
    check_column,
    innermost,
    mapper_of,
    single_key,
    single_table,
    spells_schedule,
    with_zone,
)

ModelT = TypeVar("ModelT")
ModelT_co = TypeVar("ModelT_co", covariant=True)
"""The model of what is only asked for rows and never given any: a claim, a pipeline."""
StatementT = TypeVar("StatementT")

NEXT_VERSION: Final = object()
"""Stands for what the host's generator of versions gives for the row's present one."""
SMALL_MAX, INTEGER_MAX = 2**15 - 1, 2**31 - 1
PREPARED_MAX = 500
"""Most statements that a table remembers: as many as SQLAlchemy keeps compiled by default."""


@dataclass(frozen=True, eq=False)
class LeasedTable:
    """The parts of a host's model that leases are made of.

    Attributes:
        model: the mapped class.
        mapper: its mapper.
        table: the one table behind it.
        key: its primary key column.
        has_schedule: whether `ScheduleColumns` are there.
        columns_by_keys: what update maps with these keys write; written by ``rows/updates.py``,
            bounded by `KEYS_MAX`.
        spoilt_keys: what stands in keys that do not find their rows; written, and bounded, by
            ``leases/spoilt_keys.py``.
        sound_key_classes: classes of keys that are equal where their values are; written, and
            bounded, by ``leases/equal_keys.py``.
    """

    model: type[Any]
    mapper: Mapper[Any]
    table: Table
    key: Column[Any]
    has_schedule: bool
    columns_by_keys: dict[tuple[object, ...], tuple[Column[Any], ...]] = field(
        default_factory=dict, repr=False
    )
    spoilt_keys: set[object] = field(default_factory=set, repr=False)
    sound_key_classes: set[type] = field(default_factory=set, repr=False)
    _prepared: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    # Asked several times for each outcome; SQLAlchemy's own collection is slower.
    _columns: dict[str, Column[Any]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, model: type[Any]) -> LeasedTable:
        """Read and check `model`.

        Raises:
            ModelError: it is not mapped to one table with a single-column key and the lock columns.
        """
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
        """The model's class name: what a hint says."""
        return self.model.__name__

    def column(self, name: str) -> Column[Any]:
        """Return the table's column behind the attribute `name`."""
        column = self._columns.get(name)
        if column is None:
            found = self.mapper.columns[name]
            assert isinstance(found, Column)
            column = self._columns[name] = found
        return column

    def attribute(self, name: str) -> InstrumentedAttribute[Any]:
        """Return the mapped attribute `name`, for use in SELECTs of the model."""
        attribute: InstrumentedAttribute[Any] = getattr(self.model, name)
        return attribute

    def value_as_read(self, row: object, column: Column[Any]) -> Any:
        """Return what `column` was when `row` was loaded, also where the instance was changed
        since.

        Raises:
            OutcomeError: the column was not loaded.
        """
        name = self.mapper.get_property_by_column(column).key
        state = inspect(row)
        assert state is not None
        value = state.committed_state.get(name, state.dict.get(name, LoaderCallableStatus.NO_VALUE))
        if value is LoaderCallableStatus.NO_VALUE:
            cure = "undefer it in options(), and change nothing in item.row in place"
            raise OutcomeError(f"{self.name}.{name} was not loaded; {cure}", column=name)
        return with_zone(value, column)

    def value_as_claimed(self, values: Sequence[Any], column: Column[Any]) -> Any:
        """Return what `column` is among `values`, those of all the attributes of a plain model."""
        return with_zone(values[self._place_of[column]], column)

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each of the `attributes` among them."""
        return {name: place for place, name in enumerate(self.attributes)}

    @cached_property
    def _place_of(self) -> dict[Column[Any], int]:
        return {column: place for place, column in enumerate(self.attributes.values())}

    def prepared(self, key: Hashable, build: Callable[[], StatementT]) -> StatementT:
        """Return what `build` gives, built once for each `key`: to build a statement takes longer
        than to execute it.

        What differs from one execution to the next must be bound by name.
        """
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
        """The attribute name of the primary key."""
        return self.mapper.get_property_by_column(self.key).key

    def new_token(self, *, is_reserved: bool = False, in_crowd: bool = False) -> Any:
        """Return a fresh lock token in the shape in which the column is read; `is_reserved`: of
        a holder that comes back; `in_crowd`: of one that has many rows in hand.
        """
        return self.as_token(fresh_token(is_reserved=is_reserved, in_crowd=in_crowd))

    def as_token(self, token: Any) -> Any:
        """Return a token of another table in the shape of this one's column."""
        return token if isinstance(token, self._token_class) else self._token_class(str(token))

    @cached_property
    def _token_class(self) -> type[uuid.UUID] | type[str]:
        return (
            uuid.UUID
            if getattr(innermost(self.column("lock_token").type), "as_uuid", True)
            else str
        )

    def fits_owner(self, owner: str) -> bool:
        """Whether the column can hold the name of `owner`."""
        type_ = innermost(self.column("lock_owner").type)
        return not isinstance(type_, String) or type_.length is None or len(owner) <= type_.length

    def check_owner(self, owner: str) -> None:
        """Refuse an owner that the column cannot hold.

        Raises:
            ModelError: `owner` is too long.
        """
        if not self.fits_owner(owner):
            length = getattr(innermost(self.column("lock_owner").type), "length", None)
            raise ModelError(
                f"the name {owner} does not fit into {self.name}.lock_owner ({length} characters);"
                " widen the column or shorten the class name",
                model=self.name,
                column="lock_owner",
            )

    def check_token(self, dialect: Dialect) -> None:
        """Refuse a token that is something else in the database of `dialect` than in the model.

        Raises:
            ModelError: the column has a variant that keeps or reads tokens in another shape.
        """
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
        """The attribute names of the columns that rowlock keeps here."""
        return (*LOCK_COLUMNS, *(SCHEDULE_COLUMNS if self.has_schedule else ()))

    @cached_property
    def attempts_max(self) -> int:
        """The most attempts that are counted: one more fits into the column."""
        is_short = isinstance(innermost(self.column("attempts").type), SmallInteger)
        return (SMALL_MAX if is_short else INTEGER_MAX) - 1

    @cached_property
    def is_plain(self) -> bool:
        """Whether `instance` can make instances."""
        return is_plain(self.mapper)

    @cached_property
    def attributes(self) -> dict[str, Column[Any]]:
        """The columns of a plain model by the names of their attributes."""
        return attributes_of(self.mapper)

    def instance(self, values: Sequence[Any]) -> Any:
        """Return a detached instance of a plain model with the `values` of all its `attributes`,
        as if just loaded.
        """
        return instance_of(self.mapper, dict(zip(self.attributes, values, strict=True)))

    @cached_property
    def columns_by_name(self) -> dict[str, Column[Any]]:
        """Every column by its attribute name, by its synonyms and, where that name is free, by its
        own.
        """
        by_attribute = {prop.key: prop.columns[0] for prop in self.mapper.column_attrs}
        by_attribute |= {
            synonym.key: meant.columns[0]
            for synonym in self.mapper.synonyms.values()
            if isinstance(meant := _meant(self.mapper, synonym.key), ColumnProperty)
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


def _meant(mapper: Mapper[Any], name: str) -> MapperProperty[Any] | None:
    """Return the property that is called `name`, or for which a synonym of that name stands."""
    while name in mapper.synonyms:
        name = mapper.synonyms[name].name
    return mapper.attrs.get(name)


def relation_between(leased: LeasedTable, related: LeasedTable) -> ColumnElement[bool] | None:
    """Return the condition that a related row belongs to a main row; None if there is no foreign
    key to say so.

    Raises:
        ModelError: there are several foreign keys.
    """
    if leased.table is related.table or not _has_foreign_key(leased, related):
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
    """Return whether a foreign key of a table of the same metadata refers to this one."""
    tables = leased.table.metadata.tables.values()
    return any(key.references(leased.table) for table in tables for key in table.foreign_keys)


def _has_foreign_key(one: LeasedTable, other: LeasedTable) -> bool:
    return any(
        key.references(b.table)
        for a, b in ((one, other), (other, one))
        for key in a.table.foreign_keys
    )
