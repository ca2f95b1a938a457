"""What a table is in the database, as far as a check needs it. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ColumnSeen:
    """A column in the database.

    Attributes:
        name: of the column.
        type_sql: its type as DDL has it.
        type_code: the same as a migration writes it.
        is_nullable: whether it takes a null.
        has_default: whether an INSERT may leave it out, though it takes no null.
    """

    name: str
    type_sql: str
    type_code: str
    is_nullable: bool
    has_default: bool


@dataclass(frozen=True, slots=True)
class IndexSeen:
    """An index in the database; that of the primary key is none of them.

    Attributes:
        name: of the index.
        definition: the statement that makes it.
        body: of that, what stands behind the name of the table: columns and condition.
        is_valid: whether the planner may use it.
        is_being_built: whether somebody builds it at this moment.
        is_constraint: whether it goes with a constraint of the table.
    """

    name: str
    definition: str
    body: str
    is_valid: bool = True
    is_being_built: bool = False
    is_constraint: bool = False


@dataclass(frozen=True, slots=True)
class StorageSeen:
    """How a table is stored.

    Attributes:
        fillfactor: how far its pages are filled at first, in percent; None where pages have no
            such room.
        rows: about how many rows it has; None if nobody has counted.
        row_bytes: how large a row is, the largest of a few, where each update writes all of it; 0
            where large values are stored apart.
    """

    fillfactor: int | None
    rows: int | None
    row_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TableSeen:
    """A table in the database.

    Attributes:
        columns: by name.
        indexes: in the order of their names.
        storage: how it is stored.
    """

    columns: Mapping[str, ColumnSeen]
    indexes: tuple[IndexSeen, ...]
    storage: StorageSeen
