"""What the host writes, as its pipeline's actors see it; `ready` is checked here, the others
where their results are used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy import Column, ColumnElement
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock.errors import HostCodeError, ModelError, OutcomeError, describe
from rowlock.leases.item import PipelineItem
from rowlock.rows.expressions.parameter_names import with_names_of_its_own
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import compared_column

ModelT_contra = TypeVar("ModelT_contra", contravariant=True)


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


def intent_columns(name: str, leased: LeasedTable, intent: object) -> tuple[Column[Any], ...]:
    """Return the columns of `intent`, given as attributes or names.

    Raises:
        ModelError: the model has no such column, or rowlock writes it itself.
    """
    if isinstance(intent, str) or not isinstance(intent, Sequence):
        raise ModelError(
            f"{name}.intent is a list of columns, not {intent!r:.100}", model=leased.name
        )
    try:
        columns = tuple(dict.fromkeys(compared_column(leased, key) for key in intent))
    except OutcomeError as error:
        raise ModelError(
            f"{name}.intent: {error.args[0]}", model=leased.name, column=error.column
        ) from None
    for column in columns:
        if column.key in leased.lease_columns or column is leased.key:
            raise ModelError(
                f"{name}.intent names {leased.name}.{column.name}, which no service changes for"
                " itself; list columns of the host's",
                model=leased.name,
                column=column.name,
            )
    return columns


class Hooks(Protocol[ModelT_contra]):
    """What the host writes: `Pipeline` itself, seen from its actors."""

    def ready(self) -> ColumnElement[bool]:
        """Which rows want work."""
        ...

    def process(self, item: PipelineItem[ModelT_contra]) -> Any:
        """Work on one row."""
        ...

    def options(self) -> Sequence[LoaderOption]:
        """Loader options for the row."""
        ...

    def on_stale(self, item: PipelineItem[ModelT_contra], outcome: Any) -> Awaitable[None] | None:
        """Clean up after a result that was not applied."""
        ...

    def on_refused(self, item: PipelineItem[ModelT_contra], error: Exception) -> Any:
        """Say what comes of a row whose result the database refused: an outcome."""
        ...
