"""Mapped instances made of the columns of a row, as SQLAlchemy would have loaded them: detached,
nothing changed, nothing expired.

The one idea: only where an instance is no more than its row. Whatever else belongs to it
(relationships that come along, expressions, a class for each kind of row, somebody who listens when
rows are loaded) is SQLAlchemy's to load, by a SELECT.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from sqlalchemy import Column
from sqlalchemy.orm import InstanceState, Mapper
from sqlalchemy.orm.attributes import instance_dict, instance_state

_EAGER = ("joined", False, "selectin", "subquery", "immediate")
"""How relationships are loaded together with their row; False is an older word for joined."""

PLANS_MAX: Final = 1000
"""Of at most so many mappers it is remembered how their instances are made."""


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
    as if just loaded; among them those of the primary key.
    """
    model: Any = mapper.class_
    instance = model.__new__(model)
    # Where SQLAlchemy's own loading puts them; there is no history yet that `set_committed_value`
    # would have to keep.
    instance_dict(instance).update(values)
    add_state(mapper, instance)
    return instance


def add_state(mapper: Mapper[Any], instance: Any) -> InstanceState[Any]:
    """Have an instance that has the values of its row be detached, and return its state."""
    # What `make_transient_to_detached` does, which asks each attribute of each instance for it.
    plan, values = _plan_of(mapper), instance_dict(instance)
    identity = tuple([values.get(name) for name in plan.identity])
    missing = plan.attributes - values.keys()
    mapper.class_manager.setup_instance(instance)
    state = instance_state(instance)
    state.key = mapper.identity_key_from_primary_key(identity)
    if missing:
        state.expired_attributes.update(missing)
    return state


class _Plan(NamedTuple):
    identity: tuple[str, ...]
    attributes: frozenset[str]


@lru_cache(PLANS_MAX)
def _plan_of(mapper: Mapper[Any]) -> _Plan:
    identity = (mapper.get_property_by_column(column).key for column in mapper.primary_key)
    return _Plan(tuple(identity), frozenset(prop.key for prop in mapper.column_attrs))


def changed_attributes(row: object) -> list[str]:
    """Return which attributes of an instance were set to something else since it was read."""
    state: Any = getattr(row, "_sa_instance_state", None)
    if state is None or not state.modified:
        return []
    return [name for name in state.committed_state if state.attrs[name].history.has_changes()]
