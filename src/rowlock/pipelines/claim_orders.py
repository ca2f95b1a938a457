"""What the next claim asks for: the host's and the other pipelines' conditions, asked anew for each claim.

The one idea: `ready` may say something else each time, but hardly ever does. As long as all say the same, the order stays, and
with it the statement that was made for it: to build one takes longer than to execute it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic

from sqlalchemy import ColumnElement

from rowlock.errors import HostCodeError, ModelError, describe
from rowlock.leases.dialects.claims import ClaimOrder, Position
from rowlock.pipelines.context import Hooks, PipelineContext
from rowlock.rows.eligibility import Sibling, Taker, eligible, oldest_first
from rowlock.rows.leased_table import LeasedTable, ModelT
from rowlock.rows.same_sql import is_same_sql

Asked = tuple[ColumnElement[bool], Sequence[Taker], Sequence[Sibling]]


class ClaimOrders(Generic[ModelT]):
    """Makes the orders of one pipeline.

    Attributes:
        context: what the actors of the pipeline share.
    """

    def __init__(self, context: PipelineContext[ModelT]) -> None:
        self.context = context
        self._last: tuple[Asked, ClaimOrder] | None = None

    def next(self, limit: int, *, after: Position | None = None) -> ClaimOrder:
        """Return the order to claim up to `limit` rows behind a position; from the head of the line if that is None.

        Raises:
            ModelError: `ready` gave no SQL expression.
        """
        context = self.context
        ready = ready_condition(context.name, context.leased, context.hooks)
        asked: Asked = (ready, tuple(context.takers()), tuple(context.siblings()))
        if self._last is None or not _is_same(self._last[0], asked):
            self._last = (asked, self._new(*asked))
        return replace(self._last[1], limit=limit, related=context.locker.tables, after=after)

    def _new(self, ready: ColumnElement[bool], takers: Sequence[Taker], siblings: Sequence[Sibling]) -> ClaimOrder:
        context, settings = self.context, self.context.settings
        condition = eligible(
            context.leased,
            ready=ready,
            owner=context.name,
            min_processing_interval=settings.min_processing_interval,
            reset_interval=settings.retry_delay,
            takers=takers,
            siblings=siblings,
        )
        return ClaimOrder(
            context.leased,
            eligible=condition,
            oldest_first=oldest_first(context.leased),
            owner=context.name,
            lock_timeout=settings.lock_timeout,
            limit=0,
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
    return condition


def _is_same(one: Asked, other: Asked) -> bool:
    (ready, takers, siblings), (other_ready, other_takers, other_siblings) = one, other
    return (
        len(takers) == len(other_takers)
        and len(siblings) == len(other_siblings)
        and is_same_sql(ready, other_ready)
        and all(map(_is_same_taker, takers, other_takers))
        and all(map(_is_same_sibling, siblings, other_siblings))
    )


def _is_same_taker(one: Taker, other: Taker) -> bool:
    if one.leased is not other.leased or one.owner != other.owner:
        return False
    patience, other_patience = ((taker.patience, taker.patience_at_work) for taker in (one, other))
    return patience == other_patience and is_same_sql(one.ready, other.ready) and is_same_sql(one.on, other.on)


def _is_same_sibling(one: Sibling, other: Sibling) -> bool:
    return (one.owner, one.patience) == (other.owner, other.patience) and is_same_sql(one.ready, other.ready)
