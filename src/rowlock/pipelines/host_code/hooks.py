"""What the host writes, as its pipeline's actors see it; `ready` is checked here, the others
where their results are used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from sqlalchemy import ColumnElement
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock.errors import HostCodeError, ModelError, describe
from rowlock.leases.item import PipelineItem
from rowlock.rows.expressions.parameter_names import with_names_of_its_own
from rowlock.rows.leased_table import LeasedTable, ModelT


def ready_condition(name: str, leased: LeasedTable, hooks: Hooks[Any]) -> ColumnElement[bool]:
    """Return what the host's `ready` says.

    Raises:
        ModelError: it is not an SQL expression.
    """
    try:
        condition = hooks.ready()
    except Exception:
        raise
    except BaseException as error:
        raise HostCodeError(f"{name}.ready() ended with {describe(error)}") from error
    # A mapped attribute, such as a boolean column, stands for its column.
    condition = getattr(condition, "expression", condition)
    if not isinstance(condition, ColumnElement):
        raise ModelError(
            f"{name}.ready() must return one SQL expression, such as {leased.name}.status =="
            f" 'submitted', not {condition!r:.100}",
            model=leased.name,
        )
    return with_names_of_its_own(condition)


class Hooks(Protocol[ModelT]):
    """What the host writes: `Pipeline` itself, seen from its actors."""

    def ready(self) -> ColumnElement[bool]:
        """Which rows want work."""
        ...

    def process(self, item: PipelineItem[ModelT]) -> Any:
        """Work on one row."""
        ...

    def options(self) -> Sequence[LoaderOption]:
        """Loader options for the row."""
        ...

    def on_stale(self, item: PipelineItem[ModelT], outcome: Any) -> Awaitable[None] | None:
        """Clean up after a result that was not applied."""
        ...

    def on_refused(self, item: PipelineItem[ModelT], error: Exception) -> Any:
        """Say what comes of a row whose result the database refused: an outcome."""
        ...
