"""What the next claim asks for, and from where it starts.

`ready` may say something else each time, but hardly ever does. As long as the host's and the other
pipelines' conditions say the same, the request stays, and with it the statement that was made for
it: to build one takes longer than to execute it.

A claim changes nothing that the index looks at, so from the head it walks past all rows that are
leased. While claims follow one another, the next one starts where the last one ended; older rows
that became claimable meanwhile (a dead holder's, those of a replica that stopped, a request whose
hint was lost) are found by looks at the head, which are never further apart than a fetch delay or
`lock_timeout`. A hint, and a claim that brought less than was asked for, have the next claim look
at the head.

Decides only; the fetcher acts. Not here: how a database starts behind a position (``dialects/``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, Protocol

from sqlalchemy import ColumnElement

from rowlock.clock import monotonic
from rowlock.database.transaction import bind_of
from rowlock.leases.claim_request import ClaimRequest, OwnRows, Position
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.hooks import ready_condition
from rowlock.pipelines.loader import LOADER
from rowlock.pipelines.settings import PipelineSettings
from rowlock.rows.eligibility import (
    EligibleParts,
    LockingPipeline,
    eligible_parts,
    oldest_first,
)
from rowlock.rows.expressions import fingerprint_of, is_same, of_no_row
from rowlock.rows.leased_table import LeasedTable, ModelT


class ClaimCursor:
    """Remembers where the last claim ended, and until when claims may resume there.

    Without `position`, after a failure, and once `resumes_until` has passed, on the monotonic
    clock, a claim starts at the head. `head_scan_due` (rows may have become claimable before the
    position) is cleared by a claim from the head alone.
    """

    def __init__(self, fetch_delays_s: Sequence[float], lock_timeout_s: float) -> None:
        self.position: Position | None = None
        self.head_scan_due = False
        self.resumes_until = float("-inf")
        self._resumes_for_s = min(*fetch_delays_s, lock_timeout_s)

    def start(self, now: float, *, hinted: bool) -> Position | None:
        """Return the position behind which a claim starts `now`; None is the head of the order."""
        self.head_scan_due = self.head_scan_due or hinted
        return None if self.head_scan_due or now >= self.resumes_until else self.position

    def ended(
        self, start: Position | None, *, began_at: float, reached: Position | None, is_full: bool
    ) -> None:
        self.position = reached or self.position
        if start is None:
            self.head_scan_due = False
            self.resumes_until = began_at + self._resumes_for_s
        self.head_scan_due = self.head_scan_due or not is_full

    def failed(self) -> None:
        self.position = None


UNREADABLE_S = 60.0
"""How long claims do without rows after one that could not be read, in seconds."""


class Claiming(Protocol):
    """A pipeline, or what its actors share, seen from its claims."""

    leased: LeasedTable
    settings: PipelineSettings

    @property
    def name(self) -> str: ...


def claim_parts(
    pipeline: Claiming,
    *,
    ready: ColumnElement[bool],
    locking_pipelines: Sequence[LockingPipeline],
    gates: Sequence[ColumnElement[bool]],
) -> EligibleParts:
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
    def __init__(
        self, context: PipelineContext[ModelT], own_rows: Callable[[], OwnRows] = OwnRows
    ) -> None:
        self.context = context
        self._own_rows = own_rows
        self._dialect = bind_of(context.session_factory(), context.leased).dialect
        self._last: tuple[list[object], ClaimRequest] | None = None
        self._with_rows_from = float("-inf")

    def do_without_rows(self) -> None:
        """For `UNREADABLE_S`, claim without rows: one could not be read."""
        self._with_rows_from = monotonic() + UNREADABLE_S

    def next(self, limit: int, *, after: Position | None = None) -> ClaimRequest:
        """Return the request for up to `limit` rows behind `after`."""
        context = self.context
        ready = ready_condition(context.name, context.leased, context.hooks.ready)
        locking_pipelines = context.locking_pipelines()
        fingerprints = self._fingerprints(ready, locking_pipelines)
        if self._last is None or not is_same(fingerprints, self._last[0]):
            self._last = (fingerprints, self._new(ready, locking_pipelines))
        with_rows = (
            context.claims_rows
            # Only rows that are read by themselves show that a failure is over.
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
