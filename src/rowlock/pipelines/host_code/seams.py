"""What a host adds to every pipeline of a manager, without a subclass: conditions of claims, and
what is around each attempt.

The one idea: a pause, a span and a field of log lines concern all pipelines alike and know nothing
of any. So they enter at two places that the actors pass by anyway, and no pipeline learns of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement

from rowlock.errors import ConfigurationError
from rowlock.leases.item import PipelineItem
from rowlock.rows.expressions.parameter_names import with_names_of_its_own
from rowlock.rows.leased_table import LeasedTable

Gate = Callable[[LeasedTable, str], ColumnElement[bool]]
"""Returns a condition of every claim, for the table and the name of a pipeline."""
Surround = Callable[[PipelineItem[Any]], AbstractContextManager[object]]
"""Returns what is entered before `process` is called for an item, and left behind it."""


@dataclass(frozen=True, slots=True)
class Seams:
    """What a host adds to every pipeline of a manager.

    Attributes:
        gates: a row is claimed only if what each of them returns is true.
        surround: entered around each attempt, in this order, and left in the other one.
    """

    gates: tuple[Gate, ...] = ()
    surround: tuple[Surround, ...] = ()

    @classmethod
    def of(cls, gates: Iterable[Gate], surround: Iterable[Surround]) -> Seams:
        """Return the seams of a manager.

        Raises:
            ConfigurationError: they are no lists of functions.
        """
        return cls(_functions("gates", gates), _functions("surround", surround))

    def conditions(self, leased: LeasedTable, pipeline: str) -> tuple[ColumnElement[bool], ...]:
        """Return what the gates say of a pipeline.

        Raises:
            ConfigurationError: one of them has returned no SQL expression.
        """
        return tuple(_condition(gate, leased, pipeline) for gate in self.gates)


NO_SEAMS: Final = Seams()


def _functions(name: str, given: Iterable[Any]) -> tuple[Any, ...]:
    functions = tuple(given) if isinstance(given, Iterable) else (given,)
    if not isinstance(given, Iterable) or not all(callable(one) for one in functions):
        raise ConfigurationError(f"{name} is a list of functions, not {given!r:.100}")
    return functions


def _condition(gate: Gate, leased: LeasedTable, pipeline: str) -> ColumnElement[bool]:
    condition = gate(leased, pipeline)
    # A mapped attribute, such as a boolean column, stands for its column.
    condition = getattr(condition, "expression", condition)
    if not isinstance(condition, ColumnElement):
        raise ConfigurationError(
            f"the gate {getattr(gate, '__qualname__', repr(gate)):.100} must return one SQL"
            f" expression for {pipeline}, not {condition!r:.100}"
        )
    return with_names_of_its_own(condition)
