"""What an SQL condition says, to be compared with what it said before: a statement made of one
serves for the other if both agree.

The one idea: the text that goes to the database, and the values. SQLAlchemy's own comparison of
expressions takes some for the same that differ, such as ``a BETWEEN 1 AND 10`` and ``a BETWEEN 10
AND 1``. When in doubt, two conditions are not the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Dialect
from sqlalchemy.exc import SQLAlchemyError

Fingerprint: TypeAlias = tuple[str, list[tuple[object, ...]]]
"""Text and values, each with its types."""


def fingerprint_of(condition: ColumnElement[Any], dialect: Dialect) -> Fingerprint | None:
    """Return what `condition` says to a database, or None if that cannot be told: some value is
    asked for at each execution.
    """
    try:
        compiled: Any = condition.compile(dialect=dialect)
    except SQLAlchemyError:
        return None
    values: list[tuple[object, ...]] = []
    for bound, name in compiled.bind_names.items():
        if bound.callable is not None:
            return None
        values.append((name, repr(bound.type), type(bound.value), bound.value))
    return compiled.string, values


def is_same(fingerprints: Iterable[object], before: Iterable[object]) -> bool:
    """Whether all of these say the same."""
    try:
        return all(
            one is not None and one == other
            for one, other in zip(fingerprints, before, strict=True)
        )
    # Values of the host's own types are compared and may raise anything: in doubt, no.
    except Exception:  # noqa: BLE001
        return False
