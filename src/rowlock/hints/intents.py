"""Which columns of a model services own, as far as the pipelines of this process say so.

A service must know: what it writes to such a column puts a parked row back into play. It runs in
another process than the pipeline, as often as not; there every request counts as one.

Not here: who writes it (``services/request.py``), and what it does to outcomes (`Pipeline.intent`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Column

_known: WeakKeyDictionary[type, set[str]] = WeakKeyDictionary()


def declare_intent(model: type, columns: Iterable[Column[Any]]) -> None:
    """Note that a pipeline of `model` was built here, and which columns its services own."""
    _known.setdefault(model, set()).update(column.key for column in columns)


def is_intent(model: type, columns: Iterable[Column[Any]]) -> bool:
    """Whether one of `columns` is a service's own, or nothing in this process can tell."""
    own = _known.get(model)
    return own is None or any(column.key in own for column in columns)
