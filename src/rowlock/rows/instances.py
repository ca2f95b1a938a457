"""Mapped instances made of the columns of a row, as SQLAlchemy would have loaded them: detached,
nothing changed, nothing expired.

The one idea: only where an instance is no more than its row. Whatever else belongs to it
(relationships that come along, expressions, a class for each kind of row, somebody who listens when
rows are loaded) is SQLAlchemy's to load, by a SELECT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Column
from sqlalchemy.orm import Mapper, make_transient_to_detached
from sqlalchemy.orm.attributes import instance_dict

_EAGER = ("joined", False, "selectin", "subquery", "immediate")
"""How relationships are loaded together with their row; False is an older word for joined."""


def is_plain(mapper: Mapper[Any]) -> bool:
    """Whether an instance is no more than the columns of its row."""
    return (
        mapper.polymorphic_on is None
        and mapper.inherits is None
        and all(_is_plain_column(prop) for prop in mapper.column_attrs)
        and all(relation.lazy not in _EAGER for relation in mapper.relationships)
        and not mapper.composites
        # Host code, or a type whose values know whom they belong to (sqlalchemy.ext.mutable).
        and not mapper.class_manager.dispatch.load
    )


def _is_plain_column(prop: Any) -> bool:
    return len(prop.columns) == 1 and isinstance(prop.columns[0], Column) and not prop.deferred


def attributes_of(mapper: Mapper[Any]) -> dict[str, Column[Any]]:
    """Return the columns of a plain mapper by the names of their attributes."""
    return {
        prop.key: prop.columns[0]
        for prop in mapper.column_attrs
        if isinstance(prop.columns[0], Column)
    }


def instance_of(mapper: Mapper[Any], values: Mapping[str, Any]) -> Any:
    """Return a detached instance of a plain mapper that has these `values`, by attribute name,
    as if just loaded.
    """
    instance = mapper.class_manager.new_instance()
    # Where SQLAlchemy's own loading puts them; there is no history yet that `set_committed_value`
    # would have to keep.
    instance_dict(instance).update(values)
    make_transient_to_detached(instance)
    return instance
