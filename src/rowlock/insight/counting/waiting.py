"""Asks what waits for one pipeline, and what stands in its way."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import describe
from rowlock.insight.counting.counts import KEYS_MAX, Counts, counts_of, first_key
from rowlock.insight.counting.wings import coordinates, flow_line
from rowlock.insight.facts import RowAsked, ask_pause, left_in, lock_of
from rowlock.insight.listing.row_page import ListedState
from rowlock.insight.listing.states import StateQuestion, read_keys
from rowlock.insight.questions import ask_part
from rowlock.insight.verdicts import (
    OVERDUE_WINDOWS,
    PipelinePause,
    Refused,
    Rules,
    TableLock,
    TouchingTransaction,
)
from rowlock.insight.wing_line import WingLine


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits for one pipeline.

    Attributes:
        model: of its rows.
        rules: of the pipeline.
        counts: what waits.
        pause: why it is paused; None if it is not, or if that could not be asked.
        lock: who keeps everybody out of its table; None if nobody does.
        first_key: of the row that the next claim would take, if rows wait too long.
        unknown: what could not be asked, and why.
        flow: how far its flow is, in a line, where it is of one.
        left: transactions that were prepared, left behind, and have rows of its table.
    """

    model: str
    rules: Rules
    counts: Counts
    pause: PipelinePause | None = None
    lock: TableLock | None = None
    first_key: str | None = None
    unknown: tuple[str, ...] = field(default=())
    flow: WingLine | None = None
    left: tuple[TouchingTransaction, ...] = ()

    @property
    def overdue_after_s(self) -> float:
        """Rows that have been due for longer wait too long."""
        return OVERDUE_WINDOWS * self.rules.takes_over_within.total_seconds()


async def waiting_of(connection: AsyncConnection, asked: RowAsked) -> Waiting:
    """Ask what waits for one pipeline; joins the caller's transaction."""
    pipeline, parts = asked.pipeline, asked.question.parts
    rules, model = asked.rivals[pipeline.name], pipeline.leased.name
    if asked.failure is None:
        counts = await counts_of(connection, pipeline.leased, parts, owner=pipeline.name)
    else:
        # Without the host's condition all rows would seem to wait.
        counts = Counts(refused=f"ready() raises {describe(asked.failure)}")
    if counts.due is None and (lock := await lock_of(connection, asked)) is not None:
        return Waiting(model, rules, counts, lock=lock)
    if counts.parked:
        counts = replace(counts, parked_keys=await _parked_keys(connection, asked))
    pause: PipelinePause | None = None
    unknown: tuple[str, ...] = ()
    if asked.tables is not None:
        found = await ask_pause(connection, asked.tables, pipeline.name, apart=True)
        if isinstance(found, Refused):
            unknown = (f"pauses: {found.why}",)
        else:
            pause = found
    told = Waiting(model, rules, counts, pause, unknown=unknown)
    key = None
    if counts.oldest_s is not None and counts.oldest_s > told.overdue_after_s:
        key = await first_key(connection, pipeline.leased, parts)
    flow = await flow_line(connection, pipeline) if coordinates(pipeline) else None
    left = await left_in(connection, pipeline.leased.table)
    return replace(told, first_key=key, flow=flow, left=left)


async def _parked_keys(connection: AsyncConnection, asked: RowAsked) -> tuple[str, ...]:
    leased, parts, owner = asked.pipeline.leased, asked.question.parts, asked.pipeline.name
    question = StateQuestion(leased, parts, owner, ListedState.PARKED, KEYS_MAX)
    found = await ask_part(connection, partial(read_keys, connection, question), apart=True)
    return () if isinstance(found, Refused) else found
