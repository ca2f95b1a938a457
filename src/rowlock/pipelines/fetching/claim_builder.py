"""What the next claim asks for: the host's and the other pipelines' conditions, asked anew for each
claim.

The one idea: `ready` may say something else each time, but hardly ever does. As long as all say the
same, the request stays, and with it the statement that was made for it: to build one takes longer
than to execute it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, Protocol

from sqlalchemy import ColumnElement

from rowlock.clock import monotonic
from rowlock.database.binds import bind_of
from rowlock.leases.claim_request import ClaimRequest, OwnRows, Position
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.host_code.hooks import ready_condition
from rowlock.pipelines.processing.loader import LOADER
from rowlock.pipelines.settings import PipelineSettings
from rowlock.rows.eligibility import (
    EligibleParts,
    LockingPipeline,
    eligible_parts,
    oldest_first,
)
from rowlock.rows.expressions.fingerprint import fingerprint_of, is_same
from rowlock.rows.expressions.row_free import of_no_row
from rowlock.rows.leased_table import LeasedTable, ModelT

UNREADABLE_S = 60.0
"""How long claims do without rows after one that could not be read, in seconds."""


class Claiming(Protocol):
    """A pipeline, or what its actors share, seen from its claims."""

    leased: LeasedTable
    settings: PipelineSettings

    @property
    def name(self) -> str:
        """Its name."""
        ...


def claim_parts(
    pipeline: Claiming,
    *,
    ready: ColumnElement[bool],
    locking_pipelines: Sequence[LockingPipeline],
    gates: Sequence[ColumnElement[bool]],
) -> EligibleParts:
    """Return the condition of the pipeline's claims, part by part."""
    return eligible_parts(
        pipeline.leased,
        ready=ready,
        owner=pipeline.name,
        min_processing_interval=pipeline.settings.min_processing_interval,
        reset_interval=pipeline.settings.retry_delay,
        locking_pipelines=locking_pipelines,
        gates=gates,
    )


class ClaimBuilder(Generic[ModelT]):
    """Makes the claim requests of one pipeline.

    Attributes:
        context: what the actors of the pipeline share.
    """

    def __init__(
        self, context: PipelineContext[ModelT], own_rows: Callable[[], OwnRows] = OwnRows
    ) -> None:
        self.context = context
        self._own_rows = own_rows
        self._dialect = bind_of(context.session_factory(), context.leased).dialect
        self._last: tuple[list[object], ClaimRequest] | None = None
        self._with_rows_from = float("-inf")

    def do_without_rows(self) -> None:
        """For a while, do not ask for rows with claims: one of them could not be read, and its
        claim failed with all others.
        """
        self._with_rows_from = monotonic() + UNREADABLE_S

    def next(self, limit: int, *, after: Position | None = None) -> ClaimRequest:
        """Return the request to claim up to `limit` rows behind a position; from the head of the
        order if that is None.

        Raises:
            ModelError: `ready` gave no SQL expression.
        """
        context = self.context
        ready = ready_condition(context.name, context.leased, context.hooks)
        locking_pipelines = context.locking_pipelines()
        fingerprints = self._fingerprints(ready, locking_pipelines)
        if self._last is None or not is_same(fingerprints, self._last[0]):
            self._last = (fingerprints, self._new(ready, locking_pipelines))
        with_rows = (
            context.claims_rows
            # Only rows that are read by themselves tell that a failure is over.
            and LOADER not in context.failures.errors
            and context.queue.starts_soon
            and monotonic() >= self._with_rows_from
        )
        related = context.locker.tables
        return replace(
            self._last[1],
            limit=limit,
            related=related,
            after=after,
            with_rows=with_rows,
            left_out=context.left_out.keys(monotonic()),
        )

    def _fingerprints(
        self, ready: ColumnElement[bool], locking_pipelines: Sequence[LockingPipeline]
    ) -> list[object]:
        fingerprints: list[object] = [fingerprint_of(ready, self._dialect)]
        for locking in locking_pipelines:
            conditions = [locking.ready] if locking.on is None else [locking.ready, locking.on]
            fingerprints += [
                (
                    locking.owner,
                    locking.leased,
                    locking.precedence_timeout,
                    locking.precedence_timeout_at_work,
                    len(conditions),
                )
            ]
            fingerprints += [fingerprint_of(condition, self._dialect) for condition in conditions]
        return fingerprints

    def _new(
        self, ready: ColumnElement[bool], locking_pipelines: Sequence[LockingPipeline]
    ) -> ClaimRequest:
        context, settings = self.context, self.context.settings
        parts = claim_parts(
            context,
            ready=ready,
            locking_pipelines=locking_pipelines,
            gates=context.seams.conditions(context.leased, context.name),
        )
        return ClaimRequest(
            context.leased,
            eligible=parts.whole,
            oldest_first=oldest_first(context.leased),
            owner=context.name,
            lock_timeout=settings.lock_timeout,
            limit=0,
            gates=of_no_row(context.leased, parts.gates),
            lockers=frozenset(locking.owner for locking in locking_pipelines),
            own_rows=self._own_rows,
            max_deaths=settings.max_deaths if context.leased.has_schedule else None,
        )
