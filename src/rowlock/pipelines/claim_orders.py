"""What the next claim asks for: the host's and the other pipelines' conditions, asked anew for each claim.

The one idea: `ready` may say something else each time, but hardly ever does. As long as all say the same, the order stays, and
with it the statement that was made for it: to build one takes longer than to execute it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic

from sqlalchemy import ColumnElement

from rowlock.clock import monotonic
from rowlock.errors import HostCodeError, ModelError, describe
from rowlock.leases.dialects import bind_of
from rowlock.leases.dialects.claims import ClaimOrder, Position
from rowlock.pipelines.context import Hooks, PipelineContext
from rowlock.rows.eligibility import Taker, eligible, oldest_first
from rowlock.rows.leased_table import LeasedTable, ModelT
from rowlock.rows.parameter_names import with_names_of_its_own
from rowlock.rows.same_sql import is_same, said_by

UNREADABLE_S = 60.0
"""How long claims do without rows after one that could not be read, in seconds."""


class ClaimOrders(Generic[ModelT]):
    """Makes the orders of one pipeline.

    Attributes:
        context: what the actors of the pipeline share.
    """

    def __init__(self, context: PipelineContext[ModelT]) -> None:
        self.context = context
        self._dialect = bind_of(context.session_factory(), context.leased).dialect
        self._last: tuple[list[object], ClaimOrder] | None = None
        self._with_rows_from = float("-inf")

    def do_without_rows(self) -> None:
        """For a while, do not ask for rows with claims: one of them could not be read, and its claim failed with all others."""
        self._with_rows_from = monotonic() + UNREADABLE_S

    def next(self, limit: int, *, after: Position | None = None) -> ClaimOrder:
        """Return the order to claim up to `limit` rows behind a position; from the head of the line if that is None.

        Raises:
            ModelError: `ready` gave no SQL expression.
        """
        context = self.context
        ready = ready_condition(context.name, context.leased, context.hooks)
        takers = context.takers()
        said = self._said(ready, takers)
        if self._last is None or not is_same(said, self._last[0]):
            self._last = (said, self._new(ready, takers))
        with_rows = context.claims_rows and context.starts_soon and monotonic() >= self._with_rows_from
        related = context.locker.tables
        return replace(self._last[1], limit=limit, related=related, after=after, with_rows=with_rows)

    def unchanged(self) -> ClaimOrder | None:
        """Return the order to claim one row, or None if it is not the same as the last one.

        Raises:
            ModelError: `ready` gave no SQL expression.
        """
        last, order = self._last, self.next(1)
        return order if last is self._last else None

    def _said(self, ready: ColumnElement[bool], takers: Sequence[Taker]) -> list[object]:
        said: list[object] = [said_by(ready, self._dialect)]
        for taker in takers:
            conditions = [taker.ready] if taker.on is None else [taker.ready, taker.on]
            said += [(taker.owner, taker.leased, taker.patience, taker.patience_at_work, len(conditions))]
            said += [said_by(condition, self._dialect) for condition in conditions]
        return said

    def _new(self, ready: ColumnElement[bool], takers: Sequence[Taker]) -> ClaimOrder:
        context, settings = self.context, self.context.settings
        condition = eligible(
            context.leased,
            ready=ready,
            owner=context.name,
            min_processing_interval=settings.min_processing_interval,
            reset_interval=settings.retry_delay,
            takers=takers,
        )
        return ClaimOrder(
            context.leased,
            eligible=condition,
            oldest_first=oldest_first(context.leased),
            owner=context.name,
            lock_timeout=settings.lock_timeout,
            limit=0,
            lockers=frozenset(taker.owner for taker in takers),
        )


def ready_condition(name: str, leased: LeasedTable[Any], hooks: Hooks[Any]) -> ColumnElement[bool]:
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
            f"{name}.ready() must return one SQL expression, such as {leased.name}.status == 'submitted', "
            f"not {condition!r:.100}",
            model=leased.name,
        )
    return with_names_of_its_own(condition)
